"""Questions to the columns of a run, against the plain way to answer them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.run import Cat, MemoryEvents, Run, Thread

_NAMES = ["aten::add", "aten::mm", "cudaLaunchKernel", "train.py(7): step", "never used"]
_EVENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(Cat))), max_size=40)


def made(events: list[tuple[int, Cat]]) -> Run:
    """A run of events with these names and categories, 10 ns apart."""
    count = len(events)
    none = np.full(count, -1, dtype=np.int64)
    empty = np.empty(0, dtype=np.int64)
    return Run(
        path="trace.json",
        ts=np.arange(count, dtype=np.int64) * 10,
        dur=np.full(count, 5, dtype=np.int64),
        name=np.array([n for n, _ in events], dtype=np.int32),
        cat=np.array([c for _, c in events], dtype=np.uint8),
        thread=np.zeros(count, dtype=np.int32),
        device=none.astype(np.int16),
        stream=none.astype(np.int32),
        correlation=none,
        external_id=none,
        offset=none,
        names=_NAMES,
        threads=[Thread("1", "1")],
        memory=MemoryEvents(empty, empty, empty, empty, empty, empty.astype(np.int16)),
        meta={},
    )


@given(_EVENTS, st.sets(st.sampled_from(_NAMES)), st.lists(st.sampled_from(list(Cat)), max_size=3))
def test_rows_are_found_by_name_and_category(
    events: list[tuple[int, Cat]], wanted: set[str], cats: list[Cat]
) -> None:
    run = made(events)
    named = [_NAMES[n] in wanted for n, _ in events]
    of_cat = [not cats or c in cats for _, c in events]
    assert run.is_named(wanted.__contains__).tolist() == named
    assert run.named(wanted.__contains__, *cats).tolist() == [
        i for i, (a, b) in enumerate(zip(named, of_cat, strict=True)) if a and b
    ]
    assert run.is_cat(*cats).tolist() == [c in cats for _, c in events]


def test_rows_have_names_and_no_row_has_none() -> None:
    run = made([(1, Cat.CPU_OP), (3, Cat.KERNEL)])
    assert run.name_ids_at(np.array([1, -1, 0])).tolist() == [3, -1, 1]
    assert run.name_ids_at(np.empty(0, dtype=np.int64)).tolist() == []
