"""Access lists of files, made without the programs that make them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

NOBODY = 65534
_NONE = 0xFFFFFFFF


def set_list(path: Path, which: str, others: int = 0) -> None:
    """Gives nobody all rights by a list, `access` or `default`. Skips the test where the file system has none."""
    rows = [
        (0x01, 7, _NONE),
        (0x02, 7, NOBODY),
        (0x04, others, _NONE),
        (0x10, 7, _NONE),
        (0x20, others, _NONE),
    ]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    if not hasattr(os, "setxattr"):
        pytest.skip("the system has no access lists")
    try:
        os.setxattr(path, f"system.posix_acl_{which}", value)
    except OSError as error:
        pytest.skip(f"the file system has no access lists: {error.strerror}")
