"""How the interpreter is set up in processes of our own: for short runs over large columns. A program that uses the library
keeps its own settings.

Least user and system seconds of six turns of `trace-doctor analyze`, on a busy machine, as it is, without one of the three,
and without all: 300 MB of `bench/amplify.py` 1.24; 1.28 (collector), 1.30 (malloc), 1.36 (BLAS threads); 1.34. A small
sample trace 0.73; 0.75, 0.76, 0.76; 0.79.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os

COLLECT = (500_000, 20, 100)
"""Objects made until the collector looks at the youngest, and how often then at the older ones. By default it looks at
the hundred thousand objects of the imported modules again and again: a tenth of a short run."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""from malloc.h"""
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def tune() -> None:
    """Before NumPy is imported."""
    gc.set_threshold(*COLLECT)
    _keep_what_is_freed()
    _do_without_threads()


def _keep_what_is_freed() -> None:
    """Columns come and go by the hundred. glibc gives each back to the system and takes the next anew, page by page,
    a tenth of a run; below its limits they stay. Other C libraries know no such call."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


def _do_without_threads() -> None:
    """NumPy's BLAS starts a thread for each core, which wait for work in a loop: 0.1 cpu seconds of every command, and nothing
    here multiplies matrices. Not in `os.environ`, of which the programs that `record` and `treat` run get a copy."""
    if _BLAS_THREADS not in os.environ:
        os.putenv(_BLAS_THREADS, "1")
