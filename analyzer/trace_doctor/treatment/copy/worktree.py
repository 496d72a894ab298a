"""The git work tree that a scratch copy is: a `.git` of its own, so that scripts that ask git for their revision work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
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


def remove_gone(repository: Path, before: Collection[str]) -> list[str]:
    """Has git forget each work tree that it did not know `before` and whose folder is gone: that of the copy, wherever runs have
    moved it, and those that they made. Returns the new ones that are left, as their folders are still there."""
    new = [path for path in known(repository) if path not in before]
    for path in new:
        if not os.path.lexists(path):
            remove(repository, Path(path))
    return [path for path in new if os.path.lexists(path)]


def known(repository: Path) -> list[str]:
    """Folders of all work trees of a repository, as git tells them; none where it cannot."""
    try:
        output = git.git(repository, "worktree", "list", "--porcelain", timeout=_PATIENCE)
    except git.GitFailed:
        return []
    lines = os.fsdecode(output).splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]
