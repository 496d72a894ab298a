"""How the program ends: what it says last, and to whom."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def tell(text: str) -> None:
    """What ends the program. The exit code says it as well where nobody can be told: 1 would be a verdict of `check`."""
    with contextlib.suppress(OSError):
        print(f"trace-doctor: {text}", file=sys.stderr)


def interrupted() -> NoReturn:
    tell("interrupted")
    sys.exit(130)


def leave_stdout() -> None:
    """What is still to be written goes nowhere: the interpreter would fail over it once more on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
