"""Which line of the user's code a recorded event belongs to."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.model import Location, Target
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import (
    Frame,
    brief_path,
    called,
    is_user_frame,
    is_user_function,
    plain_path,
    python_frame,
    shown_path,
)

WITH_STACK = "profile(..., with_stack=True)"
_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d{1,9})")
_OLD_FRAME = re.compile(r"\s*(.+)\((\d{1,9})\): (.+?)\s*")
_PROBED = 64
"""Operators whose arguments are looked at for the `Call stack` of torch 1.8 to 1.10."""


class Site(Struct, frozen=True):
    """A frame of the user's code.

    Traces of today hold the functions that were open, not the lines that ran: then `exact` is False and `line` is the
    function's first line (decorators included), or, for a function that was open when recording began, the line it
    stood on then. Only old `Call stack` arguments and the resume functions of graph breaks give the line itself.
    """

    file: str
    line: int
    function: str
    exact: bool = False

    def __str__(self) -> str:
        return f"{called(self.function)} ({brief_path(self.file)}{f':{self.line}' if self.exact else ''})"

    @property
    def target(self) -> Target:
        """What a codemod is to edit: the line where it is known, else somewhere in the function."""
        return Target(file=self.file, line=self.line if self.exact else None, function=self.function)


def location(site: Site | Frame | None, *, device: int | None = None, ts_us: float | None = None) -> Location:
    """Where a finding points: the line where one is known, and the moment in the capture.

    A line that is not exact would send people to the wrong place: then the function alone is named.
    """
    if site is None:
        return Location(device=device, ts_us=ts_us)
    line = site.line if isinstance(site, Frame) or site.exact else None
    return Location(file=site.file, line=line, function=site.function, device=device, ts_us=ts_us)


class CallSites(Evidence, frozen=True):
    """User frames around events, from `python_function` events of the same thread or old `Call stack` arguments.

    Raises NotCaptured where the trace has no user frame at all. Events of autograd threads have none: backward runs
    without Python.
    """

    run: Run
    nesting: Nesting
    launches: Launches | None
    source: Path | None = None
    old_stacks: bool = False
    """the stacks are arguments of the operators, as torch 1.8 to 1.10 wrote them"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        frames = len(_user_rows(run)) > 0
        old = not frames and _has_call_stacks(run)
        if not frames and not old:
            raise NotCaptured("no Python stacks in the trace", WITH_STACK)
        return cls(run, facts[Nesting], facts.get(Launches), facts.options.source, old)

    def site(self, row: int) -> Site | None:
        """The innermost user frame around an event; for GPU work, around the call that launched it.

        A Python event of the user's is its own site. None where no user frame is open (autograd threads, code that
        only libraries run).
        """
        return next(iter(self.stack(row)), None)

    def stack(self, row: int) -> tuple[Site, ...]:
        """All user frames around an event, innermost first; none where there is no row (-1)."""
        host = self._host(row)
        if host < 0:
            return ()
        if self.old_stacks:
            return self._call_stack(host)
        user = self._user
        return tuple(self._site(r) for r in (host, *self.nesting.ancestors(host)) if user[r])

    def frames(self, rows: I64) -> I64:
        """The innermost Python event of the user's around each of these host events, -1 where none is (or the row is).
        Without the old stacks, which are no events."""
        return self.nesting.around(rows, self._user)

    def _host(self, row: int) -> int:
        if row < 0 or self.run.device[row] < 0 or self.launches is None:
            return row
        return int(self.launches.launch_of(row))

    @cached_property
    def _user(self) -> Bool:
        mask = np.zeros(len(self.run), dtype=bool)
        mask[_user_rows(self.run)] = True
        return mask

    def _site(self, row: int) -> Site:
        frame = python_frame(self.run.text(row))
        assert frame is not None
        file = shown_path(frame.file, self.source)
        resumed = _RESUME.fullmatch(frame.function)
        if resumed:
            return Site(file, int(resumed.group(2)), resumed.group(1), exact=True)
        return Site(file, frame.line, frame.function)

    def _call_stack(self, row: int) -> tuple[Site, ...]:
        """`Call stack` of the nearest operator that has one: innermost first, with the lines that ran."""
        for arguments in self.run.args([row, *self.nesting.ancestors(row)]):
            text = arguments.get("Call stack")
            if text:
                matches = (_OLD_FRAME.fullmatch(part) for part in str(text).split(";"))
                return tuple(
                    Site(
                        shown_path(plain_path(m.group(1)), self.source),
                        int(m.group(2)),
                        m.group(3),
                        exact=True,
                    )
                    for m in matches
                    if m and is_user_frame(m.group(1))
                )
        return ()


def _user_rows(run: Run) -> I64:
    return run.named(is_user_function, Cat.PYTHON)


def _has_call_stacks(run: Run) -> bool:
    operators = np.flatnonzero(run.is_cat(Cat.CPU_OP))
    probed = operators[:: max(1, len(operators) // _PROBED)][:_PROBED]
    return any(arguments.get("Call stack") for arguments in run.args(probed.tolist()))
