"""Names of source files as captures hold them: whatever `sys.path` and the import left in them."""

from __future__ import annotations

import ntpath
import posixpath
import re
from functools import lru_cache

_DETOUR = re.compile(r"(?:^|[/\\])\.\.?[/\\]")


@lru_cache(maxsize=65536)
def plain_path(name: str) -> str:
    """`pkg/../train.py` and `./train.py` as `train.py`, so that one file has one name. Other names stay as they are."""
    if _DETOUR.search(name) is None:
        return name
    return ntpath.normpath(name) if "\\" in name else posixpath.normpath(name)
