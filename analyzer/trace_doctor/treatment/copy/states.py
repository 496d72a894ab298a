"""The state of a file, by which a later look tells whether it is still the same."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

LARGE_SCRIPT = 16 << 20
"""what is larger is compared by its state, whatever it is called"""
PROGRAM = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".ipynb", ".cu", ".cpp", ".c", ".h")
CACHES = re.compile(
    r"\.(git|hg|svn|tox|nox|ipynb_checkpoints|(mypy|pytest|ruff)_cache)|__pycache__|node_modules"
)
_HASHED = (*PROGRAM, ".json", ".bash", ".slurm", ".sbatch", ".txt", ".env", "Dockerfile", "Makefile")

State = tuple[int, int, int, int, int]
"""size, times of change in ns, inode, mode: of the copies"""
Stamp = int | bytes
"""of scripts and configuration their hash, of anything else a hash of its state"""


def state(info: os.stat_result) -> State:
    """What tells whether a file is as it was, without reading it."""
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, stat.S_IMODE(info.st_mode)


def stamp(info: os.stat_result) -> int:
    """The state of an original. Of a folder who may do what with it: what is in it has states of its own."""
    rights = (info.st_mode, info.st_uid, info.st_gid)
    return hash(rights if stat.S_ISDIR(info.st_mode) else (*rights, *state(info)))


def digest(data: bytes, info: os.stat_result) -> bytes:
    """Of a script or a configuration file: what is in it, and who may do what with it."""
    rights = f"{stat.S_IMODE(info.st_mode)} {info.st_uid} {info.st_gid}\n"
    return hashlib.sha256(rights.encode() + data).digest()


def is_hashed(name: str, info: os.stat_result) -> bool:
    """Whether a file is a script or configuration, which is compared by what is in it."""
    return name.endswith(_HASHED) and info.st_size <= LARGE_SCRIPT


def open_unlinked(path: Path) -> BinaryIO:
    """A file for reading. Raises OSError for a link, and for what is no file, without waiting for a pipe's other end."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "not a regular file")
    return open(number, "rb")
