"""What to record, handed from the launcher to the recorded processes as one JSON file, and the names of the files made.

Standard library only: this is imported inside the user's process.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from trace_doctor.recording import whole_files

Phase = Literal["warmup", "timing", "light", "detailed", "memory"]
PHASES: tuple[Phase, ...] = get_args(Phase)

OPTIONS_VARIABLE = "TRACE_DOCTOR_RECORD"
"""environment variable that names the options file; a process without it is not recorded"""

BOOTSTRAP = Path(__file__).parent / "agent" / "bootstrap"
"""the folder that goes in front of PYTHONPATH; it holds `sitecustomize.py` and what that imports, nothing else"""

OPTIONS_FILE = "options.json"
PLAN_FILE = "plan.json"
RECORDING_FILE = "recording.json"
STEPS_FILE = "steps.csv"
ENVIRONMENT_FILE = "environment.json"
COMMAND_FILE = "command.txt"
LINES_FILE = "lines.tsv"
"""rows of a line that ran and its file, each once in a process; before them of the file's SHA-256 and its file"""
INCOMPLETE = "-"
"""a row of it: more ran than is written"""
TORCH_TRACE_FOLDER = "torch_trace"
STEPS_COLUMNS = ("rank", "step", "phase", "milliseconds", "loss")

MOST_WINDOWS = 20
"""of a job that is recorded again and again, so that a trail of any length stays small"""

Role = Literal["light", "detailed", "peak", "boundary", "oom", "exception"]


def rank_file(rank: int) -> str:
    """What the agent of a rank says of its recording."""
    return f"rank{rank}.recording.json"


def rank_steps_file(rank: int) -> str:
    """The steps of one rank while it records; the launcher joins them into `steps.csv`."""
    return f"rank{rank}.steps.csv"


def capture_file(rank: int, role: Role) -> str:
    """The trace or memory snapshot of a rank."""
    return f"rank{rank}.{role}.json.gz" if role in ("light", "detailed") else f"rank{rank}.{role}.pickle"


@dataclass(frozen=True)
class RecordOptions:
    """Raises ValueError for a number below its least value or without end, an unknown phase or phases out of order."""

    folder: str
    """of the recording, absolute; it exists"""
    at: int = 0
    """the step with which recording begins; those before it are only timed"""
    max_steps: int = 400
    """steps from the one `at` to the end of the last phase, warm-up included"""
    max_seconds: float = 600.0
    """wall seconds from step `at` to the end of the last phase; when it is used up the next phases get one step or none"""
    max_mb: float = 200.0
    """MB of traces and snapshots of one rank, as they lie on disk"""
    every: int | None = None
    """steps from the beginning of a recording to that of the next, each in a folder of its own; None: one recording"""
    let_it_run: bool = False
    """False: the script is stopped at a step boundary when enough is recorded"""
    step_every: int | None = None
    """so many outermost module calls make a step, where there is no optimizer; None: 1"""
    phases: tuple[Phase, ...] = PHASES
    warmup_steps: int = 3
    """the fewest; warm-up lasts until step times settle"""
    max_warmup_steps: int = 60
    timing_steps: int = 20
    light_steps: int = 5
    detailed_steps: int = 3
    memory_steps: int = 3
    stacks: bool = True
    """Python stacks in the detailed trace"""
    shapes: bool = True
    """input shapes in the detailed trace"""
    memory_entries: int = 100_000
    """the allocator keeps so many events"""
    imports: bool = False
    """which files of Python the process has loaded, those of installed packages left out"""
    kernel_lines: bool = False
    """the lines that compiled kernels are made from; code in the compile cache that was made without them is compiled again"""
    lines: bool = False
    """which lines of the script's own files run"""
    grace_seconds: float = 10.0
    """what a script gets to leave after it was stopped"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        order = [PHASES.index(p) for p in self.phases if p in PHASES]
        if len(order) != len(self.phases) or order != sorted(set(order)):
            raise ValueError(f"phases are {', '.join(PHASES)}, in this order: not {', '.join(self.phases)}")
        for name, value in asdict(self).items():
            least = 0 if name in ("at", "warmup_steps", "max_warmup_steps", "grace_seconds") else 1
            if name.endswith("mb") or name == "max_seconds":
                least = 0
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and not least <= value < math.inf
            ):
                raise ValueError(f"{name} is at least {least}, and finite: not {value}")

    def window(self, number: int) -> RecordOptions:
        """Of the recording with this number, of those that `every` asks for; the first is 0."""
        if not number or self.every is None:
            return self
        at = self.at + number * self.every
        return replace(self, at=at, folder=f"{self.folder}-step{at:08}")

    @property
    def last_steps(self) -> int:
        """The first step that is not recorded any more, whatever happens."""
        return self.at + self.max_steps

    def write(self, path: Path, **more: str) -> None:
        """Whole or not at all. `more` is there for others to read."""
        whole_files.write(path, json.dumps({**asdict(self), **more}, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> RecordOptions:
        """Raises OSError, ValueError, TypeError for what is no options file. Unknown names are another version's."""
        field_names = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in json.loads(path.read_bytes()).items() if k in field_names})
