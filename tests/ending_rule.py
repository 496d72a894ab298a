"""A rule that ends the process which looks at rank 2: in a module, so that child processes can import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from trace_doctor.evidence.trace.steps import Steps
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
