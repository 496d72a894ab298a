"""Rules that rank 2 comes to grief with: in a module, so that child processes can import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.progress import advanced
from trace_doctor.rule import Claim, Context, Rule


class EndsTheProcess(Rule):
    """As the system does to a process that takes too much memory."""

    code = "ZZ999"
    name = "ends-the-process"
    title = "Ends the process"
    needs = (Steps,)

    def check(self, ctx: Context) -> Iterator[Claim]:
        """Ends its process on rank 2."""
        if ctx.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from ()


class EndsTheWorker(EndsTheProcess):
    """As a machine does that goes down: the worker of a cluster that made the call is gone. With `once` this happens as long as
    that file is not there. `process`: another one that ends, by its id."""

    name = "ends-the-worker"

    def __init__(self, once: Path | None = None, process: int | None = None) -> None:
        super().__init__()
        self.once, self.process = once, process

    def check(self, ctx: Context) -> Iterator[Claim]:
        """Ends the process that started its own on rank 2."""
        if ctx.rank == 2 and not (self.once is not None and self.once.exists()):
            if self.once is not None:
                self.once.touch()
            os.kill(self.process or os.getppid(), signal.SIGKILL)
            time.sleep(60)
        yield from ()


class NeverEnds(EndsTheProcess):
    """As a file on a file system that does not answer."""

    name = "never-ends"

    def check(self, ctx: Context) -> Iterator[Claim]:
        """Does not return on rank 2."""
        if ctx.rank == 2:
            reads_for_ever()
        yield from ()


def reads_for_ever() -> None:
    """And says so all the time."""
    while True:
        advanced(1)
        time.sleep(0.01)
