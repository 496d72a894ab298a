"""The git work tree that a scratch copy is: a `.git` of its own, so that scripts that ask git for their revision work."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trace_doctor import git

_PATIENCE = 120.0
"""Seconds for what writes or removes a work tree, which may be large"""


def top(folder: Path) -> Path | None:
    """The top of the git work tree that a folder lies in; None outside of any, and where there is no git."""
    try:
        return git.top(folder)
    except git.GitFailed:
        return None


def add(repository: Path, target: Path) -> bool:
    """Makes `target` a work tree at HEAD without any file in it; False where git refuses (no commit yet, read-only).

    Files are not checked out by git: no filter and no hook of the repository runs.
    """
    try:
        git.git(
            repository, "worktree", "add", "--quiet", "--detach", "--no-checkout", str(target), "HEAD",
            timeout=_PATIENCE,
        )  # fmt: skip
    except git.GitFailed:
        return False
    try:
        git.git(target, "read-tree", "HEAD", timeout=_PATIENCE)  # else git takes every file for deleted
    except git.GitFailed:
        remove(repository, target)
        return False
    return True


def remove(repository: Path, target: Path) -> None:
    """Has git forget the work tree; git would delete files of it that are there, also those that are mounted."""
    # where git refuses, it forgets a work tree whose folder is gone with its next `gc`
    with contextlib.suppress(git.GitFailed):
        git.git(repository, "worktree", "remove", "--force", "--force", str(target), timeout=_PATIENCE)
