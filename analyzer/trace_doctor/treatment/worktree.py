"""The git work tree that a scratch copy is: a `.git` of its own, so that scripts that ask git for their revision work."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def top(folder: Path) -> Path | None:
    """The top of the git work tree that a folder lies in; None outside of any, and where there is no git."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    except (OSError, subprocess.SubprocessError):
        return None


def add(repository: Path, target: Path) -> bool:
    """Makes `target` a work tree at HEAD without any file in it; False where git refuses (no commit yet, read-only).

    Files are not checked out by git: no filter and no hook of the repository runs.
    """
    try:
        _git(repository, "worktree", "add", "--quiet", "--detach", "--no-checkout", str(target), "HEAD")
    except (OSError, subprocess.SubprocessError):
        return False
    try:
        _git(target, "read-tree", "HEAD")  # else git takes every file for deleted
    except (OSError, subprocess.SubprocessError):
        remove(repository, target)
        return False
    return True


def remove(repository: Path, target: Path) -> None:
    """Takes the work tree away again, with its files."""
    # where git refuses, the caller deletes the folder, and git forgets a work tree whose folder is gone
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _git(repository, "worktree", "remove", "--force", "--force", str(target))


def _git(folder: Path, *arguments: str) -> str:
    # what the repository configures to be run is not ours to run
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *arguments]
    # a hook or a rebase that runs this has variables that point to its own repository
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, timeout=120)
    return done.stdout.decode("utf-8", "surrogateescape")
