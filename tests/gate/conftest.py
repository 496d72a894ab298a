"""A repository with scripts and captures, and the command line called in this process."""

from __future__ import annotations

import csv
import gzip
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from made_captures import healthy

from trace_doctor import cli
from trace_doctor.model import Result

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def result(self) -> Result:
        return Result.from_json(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`run("check", "logs")`: the exit code and what was printed."""

    def call(*args: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["trace-doctor", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.run()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git work tree; the working directory."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train").mkdir()
    for name in ("TRACE_DOCTOR_OUTPUT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def logs(repository: Path) -> Path:
    """A folder with one healthy rank."""
    (repository / "logs").mkdir()
    healthy().write(repository / "logs" / "rank0.pt.trace.json")
    return repository / "logs"


@pytest.fixture
def record(repository: Path) -> Callable[..., None]:
    """What one run leaves: its script in `train/`, its capture in `logs/RUN/`, nothing of earlier runs where it is run
    0. With `noise` the clock runs unevenly: up to that much faster and slower, 3 % slower on the whole."""

    def leave(scenario: str, machine: str, twin: str, run: int = 0, noise: float = 0.0) -> None:
        if not run:
            shutil.rmtree(repository / "logs", ignore_errors=True)
        shutil.copy(SAMPLES / scenario / f"{twin}.py", repository / "train")
        folder = repository / "logs" / str(run)
        shutil.copytree(SAMPLES / scenario / machine / twin, folder)
        for trace in folder.glob("*.json.gz") if noise else ():
            content = json.loads(gzip.decompress(trace.read_bytes()))
            _uneven(content["traceEvents"], noise, run)
            trace.write_bytes(gzip.compress(json.dumps(content).encode()))
        for steps in folder.glob("steps.csv") if noise else ():
            _slower(steps, 1.03)

    return leave


def _slower(steps: Path, factor: float) -> None:
    """The plain step times of a recording."""
    with steps.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with steps.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(row | {"milliseconds": float(row["milliseconds"]) * factor} for row in rows)


def _uneven(events: list[dict[str, Any]], noise: float, phase: int) -> None:
    """Warps time without changing the order of anything: its rate stays within 1.03 +- noise."""
    timed = [e for e in events if isinstance(e.get("ts"), int | float)]
    start = min(e["ts"] for e in timed)
    period = (max(e["ts"] for e in timed) - start) / (3.7 + phase)

    def warped(ts: float) -> float:
        t = ts - start
        return start + 1.03 * t + noise * period / (2 * math.pi) * math.sin(2 * math.pi * t / period)

    for event in timed:
        end = event["ts"] + event.get("dur", 0)
        event["ts"] = warped(event["ts"])
        if "dur" in event:
            event["dur"] = warped(end) - event["ts"]
