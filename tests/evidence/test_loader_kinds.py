"""Waits for data: what is one, what they were spent on, and what their names and frames prove."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.data_loading import DataLoading, loader_kind
from trace_doctor.evidence.names.event_names import is_loader
from trace_doctor.run import Cat


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "in_process"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "workers"),
        ("enumerate(DataPipe)#ShufflerIterDataPipe", "pipe"),
        ("fetch batch", "other"),
    ],
)
def test_what_the_name_of_a_wait_proves(name: str, kind: str) -> None:
    assert loader_kind(name) == kind


NOTE, OP, CALL, PY = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.PYTHON
WAIT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FETCH = "torch/utils/data/_utils/fetch.py(50): fetch"
COLLATE = "torch/utils/data/_utils/collate.py(9): default_collate"
ITEM, NEXT = "data.py(5): __getitem__", "data.py(9): __next__"
Make = Callable[..., Facts]


def spent(made: Facts, start: float = 0, end: float = 10_000) -> dict[str, int]:
    """us of each part of the waits."""
    parts = made[DataLoading].parts([(round(start * 1e3), round(end * 1e3))])
    return {name: ns // 1000 for name, ns in parts.items()}


def test_each_moment_of_a_wait_goes_to_its_most_specific_frame(facts: Make) -> None:
    made = facts(
        [
            (NOTE, WAIT, 0, 100, {}),
            (PY, FETCH, 10, 80, {}),
            (PY, COLLATE, 60, 30, {}),
            (PY, COLLATE, 200, 50, {}),
            (PY, COLLATE, 0, 50, {"thread": 1}),
            (NOTE, WAIT, 500, 100, {}),
        ]
    )
    assert spent(made, end=400) == {
        "collating": 30,
        "reading and transforming samples": 50,
        "the rest of the loader": 20,
    }
    assert spent(made, start=500) == {}


def test_a_wait_that_frames_fill_has_no_rest(facts: Make) -> None:
    assert spent(facts([(NOTE, WAIT, 0, 100, {}), (PY, COLLATE, 0, 100, {})])) == {"collating": 100}


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(StatefulDataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__", True),
        (
            "MyDataLoader.__next__",
            False,
        ),  # an annotation of the user's, which may lie around more than the wait
        ("torch/utils/data/dataloader.py(701): __next__", False),
    ],
)
def test_a_wait_for_a_batch_is_what_torch_marks_as_one(name: str, waits: bool) -> None:
    assert is_loader(name) == waits


@pytest.mark.parametrize(
    ("frames", "indexed"),
    [
        ([(PY, ITEM, 10, 5, {})], True),
        ([(PY, ITEM, 10, 5, {}), (PY, NEXT, 30, 5, {})], False),
        ([(PY, ITEM, 10, 5, {}), (PY, NEXT, 130, 5, {})], True),
        ([(PY, ITEM, 10, 5, {}), (PY, NEXT, 30, 5, {"thread": 1})], True),
        ([(PY, ITEM, 130, 5, {})], False),
        ([(PY, NEXT, 10, 5, {})], False),
        ([], False),
    ],
)
def test_samples_that_are_taken_by_their_number(facts: Make, frames: list[object], indexed: bool) -> None:
    assert facts([(NOTE, WAIT, 0, 100, {}), *frames])[DataLoading].indexed == indexed


@pytest.mark.parametrize(
    ("events", "starts"),
    [
        ([(NOTE, "load batch", 0, 100, {})], [0]),
        ([(OP, "load batch", 0, 100, {})], [0]),
        ([(PY, "load batch", 0, 100, {})], []),
        ([(NOTE, "load batch", 0, 100, {}), (CALL, "cudaLaunchKernel", 50, 5, {})], []),
        ([(NOTE, "load batch", 0, 100, {}), (CALL, "cudaLaunchKernel", 150, 5, {})], [0]),
        ([(NOTE, "load batch", 0, 100, {}), (NOTE, WAIT, 50, 5, {})], [50]),
        ([(NOTE, WAIT, 0, 100, {}), (NOTE, WAIT, 10, 5, {})], [0]),
        ([(NOTE, WAIT, 0, 100, {}), (NOTE, WAIT, 200, 5, {"thread": 1})], [0]),
        ([(PY, "ffcv/loader/epoch_iterator.py(9): __next__", 0, 100, {})], [0]),
        ([(NOTE, "my reader", 0, 100, {}), (PY, "my reader", 200, 10, {})], [0]),
        ([(PY, "reader.py(5): pull", 0, 100, {}), (NOTE, "reader.py(5): pull", 200, 9, {})], [0]),
    ],
)
def test_what_is_a_wait_for_data(facts: Make, events: list[object], starts: list[int]) -> None:
    named = Options(loader_annotations=("my reader",), loader_frames=("reader.py(5)",))
    made = facts(events, options=named)
    if not starts:
        with pytest.raises(NotCaptured):
            made[DataLoading]
        return
    assert (made.run.ts[made[DataLoading].rows] // 1000).tolist() == starts


def test_without_settings_other_names_are_no_loader(facts: Make) -> None:
    with pytest.raises(NotCaptured):
        facts([(NOTE, "my reader", 0, 100, {}), (PY, "reader.py(5): pull", 200, 9, {})])[DataLoading]
