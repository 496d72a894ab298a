"""The bar on a terminal: phase, file, bytes and rate, for what takes more than a second."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trace_doctor.cli.console import ColorConsole
from trace_doctor.errors import unbroken
from trace_doctor.loaders.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Task

    from trace_doctor.cli.console import Console
    from trace_doctor.cli.options import Loading

log = logging.getLogger("trace_doctor")

PATIENCE = 1.0
"""Seconds before anything shows."""
_EVERY = 0.1


@contextmanager
def progress_on(console: Console, loading: Loading) -> Iterator[Progress]:
    """A bar where a person can see it; in a log the phases, with -v."""
    if console.quiet or loading.no_progress or not _watched():
        yield _Logged()
        return
    bar = Bar(no_color=isinstance(console, ColorConsole) and console.color == "never")
    try:
        yield bar
    finally:
        bar.stop()


def _watched() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


class _Logged(Progress):
    def __call__(self, phase: str, what: str) -> None:
        log.info("%s %s", phase, what)


class Bar(Progress):
    """Drawn from where the work is told of, without a thread of its own: a process with threads is hard to fork."""

    def __init__(self, *, no_color: bool = False) -> None:
        self._no_color = no_color
        self._started = self._drawn = time.monotonic()
        self._phase = self._what = ""
        self._total = self._done = 0
        self._bar: _RichBar | None = None

    def __call__(self, phase: str, what: str) -> None:
        self._phase, self._what = phase, what
        self._draw()

    def expect(self, count: int) -> None:
        """Begins to count: so many bytes will be read."""
        self._total, self._done, self._reading_since = count, 0, time.monotonic()

    def read(self, count: int) -> None:
        """So many more bytes have been read."""
        self._done += count
        self._draw()

    def stop(self) -> None:
        """Leaves no trace of the bar on the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._started < PATIENCE or now - self._drawn < _EVERY:
            return
        self._drawn = now
        if self._bar is None:
            self._bar = _RichBar(no_color=self._no_color)
        reading = self._phase == "reading" and self._total > 0
        seconds = max(now - self._reading_since, 1e-3) if reading else 0.0
        self._bar.update(
            unbroken(f"{self._phase}  {self._what}"),
            (self._done, self._total) if reading else None,
            f"{self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB  {self._done / 1e6 / seconds:.0f} MB/s"
            if reading
            else "",
        )


class _RichBar:
    """rich, imported when it is needed."""

    def __init__(self, *, no_color: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        class Bytes(BarColumn):
            def render(self, task: Task):  # type: ignore[no-untyped-def]
                return super().render(task) if task.total else ""

        self._progress = RichProgress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            Bytes(bar_width=20),
            TextColumn("{task.fields[rate]}", markup=False, table_column=Column(no_wrap=True)),
            console=Console(stderr=True, no_color=no_color or None),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", rate="")
        self._progress.start()

    def update(self, text: str, share: tuple[int, int] | None, rate: str) -> None:
        """`share`: (bytes read, of all), None where the end is unknown; `rate`: text behind the bar."""
        done, total = share or (0, 0)
        self._progress.update(
            self._task, description=text, completed=min(done, total), total=total or None, rate=rate
        )
        self._progress.refresh()

    def stop(self) -> None:
        """Takes the bar off the terminal."""
        self._progress.stop()
