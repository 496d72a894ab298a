"""What one analysis kept is what the next would have made; nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence import keeping
from trace_doctor.evidence.base import Evidence, Facts, Options
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.syncs import Syncs
from trace_doctor.evidence.threads import Threads
from trace_doctor.loaders.columns import read_arrays, write_arrays
from trace_doctor.model import Result
from trace_doctor.registry import choose
from trace_doctor.run import Capture, Run
from trace_doctor.testing import RunBuilder


def examined(run: Run, options: Options | None = None) -> tuple[Result, Facts]:
    """The result of all rules, and the evidence they asked for."""
    seen: list[Facts] = []
    result = diagnose(
        [Capture(run.rank, run)], choose(), defaults(), options, seen=lambda _, facts: seen.append(facts)
    )
    return result, seen[0]


def again(facts: Facts, tmp_path: Path) -> Run:
    """The same run with what was kept, by way of a file."""
    with (tmp_path / "kept").open("w+b") as file:
        write_arrays(file, facts.kept(), {"of": "a test"})
        _, arrays = read_arrays(file, {"of": "a test"})
    run = replace(facts.run)
    run.derived.update(facts.run.derived)
    run.earlier.update(arrays)
    return run


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two values differ, types of plain values included."""
    if isinstance(one, Run | Facts) or (place and isinstance(one, Evidence)):
        return [] if type(one) is type(other) else [place]
    if isinstance(one, np.ndarray):
        same = (
            one.dtype == other.dtype
            and one.shape == other.shape
            and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        )
        return [] if same else [place]
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} {type(other).__name__}"]
    if isinstance(one, msgspec.Struct):
        return [
            d
            for f in one.__struct_fields__
            for d in differences(getattr(one, f), getattr(other, f), f"{place}.{f}")
        ]
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return [f"{place} has other keys"]
        return [d for k in one for d in differences(one[k], other[k], f"{place}[{k}]")]
    if isinstance(one, tuple | list):
        if len(one) != len(other):
            return [f"{place} is of other length"]
        return [
            d
            for i, (a, b) in enumerate(zip(one, other, strict=True))
            for d in differences(a, b, f"{place}[{i}]")
        ]
    return [] if one == other else [f"{place}: {one} {other}"]


def test_all_evidence_of_real_captures_comes_back_as_it_was(trace_facts: Facts, tmp_path: Path) -> None:
    result, facts = examined(trace_facts.run)
    run = again(facts, tmp_path)
    later = Facts(Capture(run.rank, run))
    for kind, made in facts._made.items():
        if kind.kept or kind.of_job:
            continue
        found = keeping.restored(kind, later, run.earlier)
        if isinstance(made, NotCaptured):
            assert isinstance(found, NotCaptured) and str(found) == str(made)
        else:
            assert found is not None and not differences(made, found), kind
    assert examined(run)[0] == result


@pytest.fixture
def facts() -> Facts:
    b = RunBuilder()
    for _ in range(4):
        with b.step(), b.op("aten::mm"):
            b.launch(200, "gemm")
            b.item()
    return examined(b.run())[1]


def refuses(_: Facts) -> Threads:
    raise AssertionError("made again")


def test_nothing_is_made_twice(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = again(facts, tmp_path)
    monkeypatch.setattr(Threads, "build", refuses)
    assert examined(run)[1][Threads] == facts[Threads]


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({}, Options(device=0)),
        ({}, Options(source=Path("train.py"))),
        ({"meta": {"cpu_count": 4}}, None),
        ({"path": "other.json"}, None),
    ],
)
def test_what_follows_from_something_else_is_made_anew(
    facts: Facts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    options: Options | None,
) -> None:
    earlier = again(facts, tmp_path).earlier
    run = replace(facts.run, **change)
    run.earlier.update(earlier)
    monkeypatch.setattr(Threads, "build", refuses)
    with pytest.raises(AssertionError, match="made again"):
        Facts(Capture(0, run), options)[Threads]


def test_a_capture_of_several_files_keeps_nothing(facts: Facts) -> None:
    assert not Facts(replace(facts.capture, further=(facts.run,))).kept()


def test_what_files_of_the_user_went_into_is_not_kept(facts: Facts) -> None:
    given = Facts(facts.capture, Options(source=Path("train.py")))
    assert given[Threads] == facts[Threads]
    assert "Threads" in given.made() and not given.kept()


def test_evidence_of_another_package_is_never_kept(facts: Facts) -> None:
    class Foreign(Threads, frozen=True):
        pass

    facts[Foreign]
    assert "Foreign" not in facts.kept() and "Threads" in facts.kept()


@pytest.mark.parametrize(
    "wrong",
    [
        {"Steps": np.frombuffer(b"{", np.uint8)},
        {"Steps": np.frombuffer(b'{"window": 1}', np.uint8)},
        {"Syncs.0": np.zeros(9)},
        {"Syncs": np.frombuffer(b'{"rows":["7",3],"waited_on":["0",0],"profilers":["0",0]}', np.uint8)},
    ],
)
def test_what_is_not_as_it_should_be_is_made_anew(
    facts: Facts, tmp_path: Path, wrong: dict[str, np.ndarray]
) -> None:
    run = again(facts, tmp_path)
    assert wrong.keys() <= run.earlier.keys()
    run.earlier.update(wrong)
    later = examined(run)[1]
    assert later[Steps] == facts[Steps] and not differences(facts[Syncs], later[Syncs])
