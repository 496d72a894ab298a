"""Evidence made by the processes that read traces: the analysis finds it there, and says the same without."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trace_doctor import analyze
from trace_doctor.config import defaults
from trace_doctor.engine import prefetch
from trace_doctor.evidence.base import Options
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.threads import Threads
from trace_doctor.loaders.discover import discover
from trace_doctor.loading import Loaded, Prefetch, Ways, inputs, load_inputs, workers
from trace_doctor.model import Result
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder, SnapshotBuilder

GIVEN = prefetch.given(defaults().settings, Options())

pytestmark = pytest.mark.skipif(not workers.able(), reason="no processes for loading on this system")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(3):
        b = RunBuilder()
        for _ in range(4 + rank):
            with b.step(), b.python("train.py", 7, "train"), b.op("aten::mm"):
                b.launch(200, "gemm")
                b.item()
        b.write(folder / f"rank{rank}.json")
    return folder


@pytest.fixture(autouse=True)
def small_files_are_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PER_WORKER", 1)


def diagnosed(logs: Path, source: Path | None = None, **settings: Any) -> Result:
    """Without the settings, of which it may differ in how it was made alone."""
    found = analyze(logs, config=defaults(**settings), source=source)
    return msgspec.structs.replace(found, config={})


def never(_: Any) -> Any:
    raise AssertionError("made again")


@pytest.mark.parametrize("script", [None, "train.py"])
def test_the_analysis_finds_it_and_says_the_same(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    source = None
    if script:
        source = tmp_path / script
        source.write_text("def train():\n    pass\n")
    here = diagnosed(logs, source, jobs=1)
    assert here.findings and not any(o.outcome == "error" for o in here.outcomes)
    monkeypatch.setattr(Steps, "build", never)
    monkeypatch.setattr(Threads, "build", never)
    assert diagnosed(logs, source, jobs=2) == here


def test_the_cache_keeps_it(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = {"cache": "write", "cache_dir": str(tmp_path / "cache")}
    there = diagnosed(logs, jobs=2, **cache)
    monkeypatch.setattr(Steps, "build", never)
    assert diagnosed(logs, jobs=1, **cache) == there


def loaded(logs: Path, prefetch: Prefetch) -> list[Loaded]:
    return load_inputs(discover([logs]).found, Ways(jobs=2, prefetch=prefetch))


def test_where_it_fails_the_traces_are_there_all_the_same(logs: Path) -> None:
    files = loaded(logs, Prefetch("trace_doctor.nowhere:evidence", None))
    assert [len(f.outcome) for f in files if isinstance(f.outcome, Run) and not f.outcome.earlier] == [
        f.count for f in load_inputs(discover([logs]).found)
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_without_room_for_it_the_traces_are_read_all_the_same(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def every_other_is_full() -> Any:
        room = len(made) % 2 == 0
        made.append(tempfile.TemporaryFile() if room else open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
        return made[-1]

    monkeypatch.setattr(inputs, "_nameless", every_other_is_full)
    little = prefetch.given(defaults(select=["TD001"]).settings, Options())  # less than a buffer
    files = loaded(logs, Prefetch(prefetch.FUNCTION, little))
    assert len(made) == 6
    assert [f.count for f in files] == [f.count for f in load_inputs(discover([logs]).found)]
    assert not any(f.outcome.earlier for f in files if isinstance(f.outcome, Run))


def test_not_for_captures_of_several_files(logs: Path) -> None:
    b = SnapshotBuilder()
    b.train(steps=1)
    b.write(logs / "rank0.pickle")
    files = loaded(logs, Prefetch(prefetch.FUNCTION, GIVEN))
    assert not any(f.outcome.earlier for f in files if isinstance(f.outcome, Run))
