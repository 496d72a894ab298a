"""Replacing a file by another without losing what somebody else writes into it meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(new: Path, place: Path) -> None:
    """`place` becomes what `new` was, and `new` what `place` was at that very moment. Where the system cannot exchange two
    names at once, `place` is missing in between, and nothing that comes to stand there is overwritten: then FileExistsError
    is raised, and `new` holds what `place` was. Raises OSError."""
    if _try_exchange(new, place):
        return
    away = moved_away(new)
    os.rename(place, away)
    try:
        rename_exclusively(new, place)
    except OSError:
        with contextlib.suppress(FileExistsError):  # else it stays aside, where the caller finds it
            rename_exclusively(away, place)
            raise
        os.replace(away, new)
        raise FileExistsError(17, "another file came to stand there", str(place)) from None
    os.rename(away, new)


def moved_away(new: Path) -> Path:
    """Where a replaced file lies for a moment on systems that cannot exchange two names."""
    return new.with_name(f"{new.stem}.away.tmp")


def rename_exclusively(source: Path, target: Path) -> None:
    """Raises FileExistsError where there is a target, and OSError."""
    if os.name == "nt":
        os.rename(source, target)  # refuses where there is a target
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(17, "File exists", str(target)) from None
        os.rename(source, target)
        return
    os.unlink(source)


def _try_exchange(one: Path, other: Path) -> bool:
    """Whether the kernel exchanged the two. Raises OSError where it refuses for another reason than that it cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (22, 38, 95):  # EINVAL, ENOSYS, EOPNOTSUPP: not on this kernel or file system
        return False
    raise OSError(number, os.strerror(number), str(other))


@cache
def _renameat2() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function
