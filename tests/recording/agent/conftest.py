"""Real recordings of small scripts, each made once: torch takes seconds to start."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.recording.launch import Recorded, new_folder, record_command
from trace_doctor.recording.options import RecordOptions

pytest.importorskip("torch", reason="needs the torch extra")

FEW = {
    "phases": ("warmup", "timing", "light", "detailed"),
    "timing_steps": 6,
    "light_steps": 2,
    "detailed_steps": 1,
    "max_warmup_steps": 12,
}
"""options of a short recording"""


@dataclass(frozen=True)
class Made:
    """A recording and what the script printed."""

    recorded: Recorded
    output: str

    @property
    def folder(self) -> Path:
        return self.recorded.folder

    def said(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"rank{rank}.recording.json").read_text())

    def phases(self, rank: int = 0) -> list[tuple[str, int, int]]:
        return [(p["name"], p["first_step"], p["last_step"]) for p in self.said(rank)["phases"]]

    def rows(self, rank: int = 0) -> list[dict[str, str]]:
        with (self.folder / "steps.csv").open(newline="") as file:
            return [row for row in csv.DictReader(file) if int(row["rank"]) == rank]

    def marks(self, role: str, rank: int = 0) -> list[int]:
        """The steps that a trace marks, in time order."""
        packed = (self.folder / f"rank{rank}.{role}.json.gz").read_bytes()
        events = json.loads(gzip.decompress(packed))["traceEvents"]
        marks = sorted((e["ts"], e["name"]) for e in events if e.get("name", "").startswith("ProfilerStep#"))
        return [int(name.partition("#")[2]) for _, name in marks]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    def make(script: str, *command: str, **options: Any) -> Made:
        """Records `python script.py`, or the command with the script's path behind it."""
        place = tmp_path_factory.mktemp("recording")
        (place / "script.py").write_text(textwrap.dedent(script))
        recorded = record_command(
            [*(command or (sys.executable,)), str(place / "script.py")],
            RecordOptions(folder=new_folder(place / "logs"), **{**FEW, **options}),
            cwd=place,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            quiet_output=True,
        )
        return Made(recorded, (recorded.folder / "output.log").read_text())

    return make
