"""Which lines of the script's own files ran, or may have: by `sys.settrace`, until warm-up ends and while stacks are recorded.

Every line is written once, when it runs: what a process has run is known however it ends. What could not be watched closely
is written whole, so that a line that is missing did not run while this watched.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from trace_doctor.recording.agent.dynamo_ignore import Unseen
from trace_doctor.recording.agent.status import is_own_file
from trace_doctor.recording.options import INCOMPLETE, LINES_FILE

_MOST_EVENTS = 20_000
"""line events of one function without a new line: what goes on like that is written whole and watched no longer"""
_MOST_CALLS = 20_000_000
"""of Python functions, before watching is given up: some seconds"""
_CHILD_SECONDS = 1.0
"""that workers and other processes of multiprocessing are watched: their functions are written whole"""
_WHOLE = -1

_Trace = Callable[[FrameType, str, Any], Any]


class ExecutedLines:
    """Of this process and those it forks. Where the script has a trace function of its own, nothing is watched.

    Nothing is raised into what is watched, and torch.compile sees none of it.
    """

    def __init__(self, torch: Any, folder: Path) -> None:
        self._path = folder / LINES_FILE
        self._files: dict[str, set[int] | None] = {}
        """file -> its lines that are written; None: not the script's own"""
        self._events: dict[tuple[str, int], int] = {}
        """function, by file and first line -> line events since its last new line, or _WHOLE"""
        self._calls = 0
        self._on = self._was_on = False
        self._until: float | None = None
        """when a child is watched no longer; None: no child"""
        self._unseen = Unseen(torch).call
        for function in (self._called, self._ran):
            Unseen(torch).skip(function)
        os.register_at_fork(after_in_child=self._is_child)
        if multiprocessing.parent_process() is not None:
            self._is_child()

    def start(self) -> None:
        """Watches from here on. What is half-way through may have run all that stands above."""
        if self._on or sys.gettrace() is not None or threading.gettrace() is not None:
            return
        self._on = self._was_on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._lines_of(frame.f_code.co_filename) is not None and frame.f_trace is None:
                above = frame.f_lineno or 0
                self._write(frame.f_code.co_filename, (n for n in code_lines(frame.f_code) if n <= above))
                frame.f_trace = self._ran
            frame = frame.f_back
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> None:
        """Watches no longer; other threads stop at their next call."""
        if not self._on:
            return
        self._on = False
        if threading.gettrace() == self._called:
            threading.settrace(None)
        if sys.gettrace() == self._called:
            sys.settrace(None)

    def finish(self) -> None:
        """At the end of the recording. torch.compile runs other functions in the place of those it has compiled, and of what
        these call, which is mostly methods: all that may have run."""
        self.stop()
        tracker = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
        codes = [code for weak in list(getattr(tracker, "seen", ())) if (code := weak()) is not None]
        if not self._was_on or not any(self._lines_of(code.co_filename) for code in codes):
            return
        for module in list(sys.modules.values()):
            if self._files.get(getattr(module, "__file__", None) or ""):
                classes = [value for value in list(vars(module).values()) if isinstance(value, type)]
                codes += [f.__code__ for c in classes for f in vars(c).values() if hasattr(f, "__code__")]
        for code in codes:
            if self._lines_of(code.co_filename) is not None:
                self._write(code.co_filename, code_lines(code))

    # -- trace functions: what happens in most calls calls no Python

    def _called(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        """A Python function begins: whether its lines are watched."""
        try:
            code = frame.f_code
            self._calls += 1
            if self._calls % 256 == 0 and self._unseen(self._is_enough):
                self._on = False
            if not self._on:
                sys.settrace(None)
                return None
            known = self._files.get(code.co_filename, self)
            if known is self:
                known = self._unseen(self._lines_of, code.co_filename)
            if known is None or self._events.get((code.co_filename, code.co_firstlineno)) == _WHOLE:
                return None
            if self._until is None:
                return self._ran
            self._unseen(self._write_whole, code)
        except Exception:
            self._on = False
        return None

    def _ran(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        """A line is about to run."""
        try:
            if not self._on:
                return None
            code, number = frame.f_code, frame.f_lineno
            if event == "line" and number is not None:
                function = (code.co_filename, code.co_firstlineno)
                if number not in self._files[code.co_filename]:  # type: ignore[operator]
                    self._unseen(self._write, code.co_filename, [number])
                    self._events[function] = 0
                events = self._events.get(function, 0)
                if events >= _MOST_EVENTS:
                    self._unseen(self._write_whole, code)
                if events >= _MOST_EVENTS or events == _WHOLE:
                    frame.f_trace = None  # what is returned would not end it
                    return None
                self._events[function] = events + 1
        except Exception:
            self._on = False
            return None
        return self._ran

    def _is_enough(self) -> bool:
        """Whether this process is watched no longer. Of one that is no child, nothing is known then."""
        if self._until is not None:
            return time.monotonic() > self._until
        if self._calls > _MOST_CALLS:
            self._append(f"{INCOMPLETE}\t\n")
        return self._calls > _MOST_CALLS

    def _is_child(self) -> None:
        self._until = time.monotonic() + _CHILD_SECONDS

    # -- rows

    def _lines_of(self, file: str) -> set[int] | None:
        """Its lines that are written; None for a file that is not the script's own."""
        if file not in self._files:
            self._files[file] = None
            if is_own_file(file):
                try:
                    with open(file, "rb") as script:
                        digest = hashlib.sha256(script.read()).hexdigest()
                except (OSError, ValueError):
                    return None
                self._files[file] = set()
                self._append(f"{digest}\t{file}\n")
        return self._files[file]

    def _write_whole(self, code: CodeType) -> None:
        function = (code.co_filename, code.co_firstlineno)
        if self._lines_of(code.co_filename) is not None and self._events.get(function) != _WHOLE:
            self._events[function] = _WHOLE
            self._write(code.co_filename, code_lines(code))

    def _write(self, file: str, numbers: Iterable[int]) -> None:
        lines = self._lines_of(file)
        if lines is not None and (new := sorted({*numbers} - lines)):
            lines.update(new)
            self._append("".join(f"{number}\t{file}\n" for number in new))

    def _append(self, rows: str) -> None:
        """In a single write to a file opened for appending: rows of processes do not mix. The launcher has made the file;
        what cannot be written there is missing whole."""
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, rows.encode("utf-8", "surrogateescape"))
            finally:
                os.close(file)
        except OSError:
            self.stop()


def code_lines(code: CodeType) -> set[int]:
    """The lines of a function, or a script, that have code, and of the functions in it."""
    own = {number for _, _, number in code.co_lines() if number}
    return own.union(*(code_lines(c) for c in code.co_consts if isinstance(c, CodeType)))
