"""The files that a command line runs, so that a typo shows before anything is made for it.

Only where it is certain: what a shell, `ssh` or a container runs lies elsewhere, or is found by rules of its own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trace_doctor.recording.command_line import shown

_PYTHON = re.compile(r"python[\d.]*w?|pypy[\d.]*")
_LAUNCHERS = (("torchrun",), ("accelerate", "launch"), ("deepspeed",))
_MACHINES = re.compile(
    r"(?<!\S)--(?:nnodes|nodes|num[-_]machines|num[-_]nodes|trainer\.num_nodes)[= ](?P<least>\d{1,6})(?::(?P<most>\d{1,6}))?(?!\S)"
)
"""options of torchrun, srun, accelerate, deepspeed and Lightning that say on how many machines a job runs"""
_COUNTS = ("PET_NNODES", "SLURM_STEP_NUM_NODES")
"""the same as variables"""
_NO_SCRIPT = re.compile(r"-m|--(?:module|no[-_]python)(?:=.*)?")
"""options of launchers with which the word behind them is no Python file"""


def missing_script(command: Sequence[str], cwd: str | os.PathLike[str]) -> str | None:
    """The Python script that the command runs, as it may be shown, where there is no such file; None where there is, or
    it names none."""
    script = started_script(command)
    return (
        shown(script, cwd) if script is not None and not os.path.exists(os.path.join(cwd, script)) else None
    )


def missing_program(command: Sequence[str]) -> str | None:
    """Why the command's own file cannot be run from here; None where it can."""
    program = command[0]
    if shutil.which(program) is not None:
        return None
    if not os.path.isfile(program):
        return f"cannot start {shown(program)}: no such program"
    how = f"; python {shown(program)} runs it" if program.endswith(".py") else ""
    return f"cannot start {shown(program)}: it is no program{how}"


def several_machines(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why runs of the command cannot be compared on this machine alone: it is one of several that train together; None where it
    is not known to be."""
    rest = " ".join(command)
    spelled = next((m for m in _MACHINES.finditer(rest) if int(m["most"] or m["least"]) > 1), None)
    told = (
        spelled[0]
        if spelled
        else next(
            (
                f"{n}={environment[n]}"
                for n in _COUNTS
                if re.fullmatch("[0-9]{1,6}", environment.get(n, "")) and int(environment[n]) > 1
            ),
            "",
        )
    )
    if not told:
        return None
    return (
        f"{told}: the job runs on several machines, and treat compares runs on one: try it with a single machine, or "
        "run `trace-doctor record` on each"
    )


def started_script(command: Sequence[str]) -> str | None:
    """The Python script that a command runs, as it is written there; None where that is not certain."""
    program = Path(command[0]).name
    if _PYTHON.fullmatch(program):
        return next(_not_options(command[1:]), None)
    for launcher in _LAUNCHERS:
        if (program, *command[1 : len(launcher)]) == launcher:
            return _behind_options(command[len(launcher) :])
    return command[0] if program.endswith(".py") and shutil.which(command[0]) is None else None


def _not_options(words: Sequence[str]) -> Iterator[str]:
    """What Python takes as its script: nothing where it runs a module, a text or its standard input."""
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
        elif not word.startswith("-"):
            yield word
            return
        elif word == "-" or re.match(r"-[^WX]*[cm]", word):
            return
        elif re.fullmatch(r"-[^WX]*[WX]", word):  # its value is the next word
            next(rest, None)


def _behind_options(words: Sequence[str]) -> str | None:
    """The first Python file: what the words before it mean differs from launcher to launcher."""
    for word in words:
        if _NO_SCRIPT.fullmatch(word):
            return None
        if word.endswith(".py") and not word.startswith("-"):
            return word
    return None
