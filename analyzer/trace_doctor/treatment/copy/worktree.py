"""The git work tree that a scratch copy is: a `.git` of its own, so that scripts that ask git for their revision work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from trace_doctor import git
from trace_doctor.errors import UsageError
from trace_doctor.recording.startable import started_script

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


def source_of(command: Sequence[str], source: Path, cwd: Path) -> Path:
    """The folder of the scripts: `source`, unless the command's script is there only as a link to elsewhere. Then that of both,
    where one git work tree has them. Raises UsageError where none does: the script would run outside of the copy."""
    script, folder = started_script(command), source.resolve()
    if script is None or not source.is_dir():
        return source
    named, real = Path(os.path.abspath(cwd / script)), Path(os.path.realpath(cwd / script))
    if real.is_relative_to(folder) or not Path(os.path.realpath(named.parent)).is_relative_to(folder):
        return source
    both, tree = Path(os.path.commonpath([folder, real.parent])), top(folder)
    if tree is not None and tree == top(real.parent):
        return both
    where = f"a link to {os.path.relpath(real, folder)}, outside of --source"
    raise UsageError(
        f"{script} is {where}, where no edit would be: --source {os.path.relpath(both, cwd)} has both"
    )
