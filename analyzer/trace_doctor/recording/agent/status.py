"""What a rank says of its recording: `rank<N>.recording.json`, written anew at each change, and its steps."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.options import STEPS_COLUMNS, Phase, rank_file, rank_steps_file

_INSTALLED = {"site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_MOST_FILES = 2_000
_OF_LOADERS = {"num_workers", "pin_memory", "persistent_workers", "prefetch_factor"}
_OF_OPTIMIZERS = {"fused", "foreach"}
_FLAGS = ("torch.backends.cudnn.benchmark", "torch.backends.cuda.matmul.allow_tf32")
_MOST_VALUES = 100


class Status:
    """The file of one rank. It exists from `claim()` on, and is replaced as a whole."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder = folder
        self.path = folder / rank_file(rank)
        self.rank = rank
        self.manifest: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "pid": os.getpid(),
            "parent_pid": os.getppid(),
            "found_steps_by": None,
            "accumulation": None,
            "backward_passes_per_step": None,
            "phases": [],
            "without": {},
            "files": {},
            "compile_steps": [],
            "periodic": None,
            "ended": None,
            "peak_allocated_bytes": None,
            "imports": [],
            "settings": {},
            "warnings": [],
        }
        self.plain_ms: float | None = None

    def claim(self) -> bool:
        """Whether this process is the one that records this rank: the first that asks."""
        temporary = whole_files.aside(self.path)
        try:
            temporary.write_text(self._text(), encoding="utf-8")
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def holder_parent(self) -> int | None:
        """The parent of the process that records this rank: one that only evaluates what its child has trained is no other
        training. None where it cannot be read."""
        try:
            parent = json.loads(self.path.read_bytes())["parent_pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return parent if isinstance(parent, int) else None

    def write(self) -> None:
        """Writes the manifest of this rank, whole or not at all."""
        whole_files.write(self.path, self._text())

    def _text(self) -> str:
        return json.dumps(self.manifest, indent=2) + "\n"

    def warn(self, text: str) -> None:
        """Keeps a warning for the manifest, once."""
        if text not in self.manifest["warnings"]:
            self.manifest["warnings"].append(text)

    def phase_ended(
        self,
        name: Phase,
        steps: tuple[int, int],
        seconds: tuple[float, float],
        milliseconds: list[float],
        why: str,
    ) -> None:
        """`steps`: the first and the last. `seconds`: that passed, and that the training thread was on a CPU.
        `milliseconds`: of the steps of the phase that say how long a step takes in it."""
        overhead = None
        if milliseconds:
            middle = statistics.median(milliseconds)
            if name == "timing":
                self.plain_ms = middle
            elif self.plain_ms and name != "warmup":
                longer = middle - self.plain_ms
                overhead = {"per_step_us": round(longer * 1e3, 1), "share": round(longer / self.plain_ms, 4)}
        self.manifest["phases"].append(
            {
                "name": name,
                "first_step": steps[0],
                "last_step": steps[1],
                "seconds": round(seconds[0], 6),
                "cpu_seconds": round(seconds[1], 6),
                "overhead": overhead,
                "why_ended": why,
            }
        )


def loaded_files() -> list[str]:
    """The files of Python's modules that are loaded, links followed, but for those of installed packages."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    real = {os.path.realpath(file) for file in files if isinstance(file, str) and file.endswith(".py")}
    return sorted(file for file in real if not _is_installed(file))[:_MOST_FILES]


def is_own_file(file: str) -> bool:
    """Whether code is of the script's own files: of no installed package, not the recorder's, and not made from a text."""
    return file.endswith(".py") and not _is_installed(file) and not os.path.abspath(file).startswith(_OURS)


def _is_installed(file: str) -> bool:
    return not _INSTALLED.isdisjoint(Path(file).parts)


def settings_in_force(torch: Any) -> dict[str, list[bool | int | float | str | None]]:
    """What the DataLoaders, the optimizers and the flags of torch say of themselves: name -> its values, of all objects."""
    values: dict[str, list[Any]] = {}
    for name in _FLAGS:
        with suppress(Exception):  # torch refuses where a script has set the same by another name
            values[name] = [attrgetter(name.partition(".")[2])(torch)]
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.utils.data.DataLoader):
            groups, names = [vars(thing)], _OF_LOADERS
        elif issubclass(kind, torch.optim.Optimizer):
            groups, names = vars(thing).get("param_groups", []), _OF_OPTIMIZERS
        else:
            continue
        for group in groups:
            for name in names & group.keys():
                values.setdefault(name, []).append(group[name])
    plain = (bool, int, float, str, type(None))
    return {name: [v for v in some if isinstance(v, plain)][:_MOST_VALUES] for name, some in values.items()}


class StepTable:
    """`rank<N>.steps.csv`: rows are added as they become known, each write a whole number of lines."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / rank_steps_file(rank)
        self.rank = rank
        whole_files.check(folder)
        self.path.write_text(",".join(STEPS_COLUMNS) + "\n", encoding="utf-8")

    def add(self, rows: list[tuple[int, Phase, float, float | None]]) -> None:
        """Rows of step, phase, milliseconds, loss."""
        lines = [
            f"{self.rank},{step},{phase},{round(ms, 6)!r},{'' if loss is None else repr(loss)}\n"
            for step, phase, ms, loss in rows
        ]
        whole_files.check(self.path.parent)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write("".join(lines))
