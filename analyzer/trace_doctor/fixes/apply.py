"""Writing the edits: all files or none, each replaced atomically, never outside the source folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.fixes.plan import Plan


def apply(plan: Plan, *, force: bool = False) -> list[str]:
    """Writes what is ready and returns the names of the files changed.

    Raises UsageError, with nothing changed, when the git work tree has uncommitted changes (unless `force`), when a
    file changed since it was read, or when a path leaves the source folder.
    """
    outputs = plan.outputs
    if not outputs:
        return []
    root = plan.tree.root.resolve()
    targets = {name: _inside(plan.tree.path(name), root, name) for name in outputs}
    for name, (script, _) in outputs.items():
        if targets[name].read_bytes() != script.data:
            raise UsageError(f"{name} changed while it was being fixed: nothing was written")
    if not force and (dirt := uncommitted(root, list(targets.values()))) is not None:
        raise UsageError(f"{dirt}: commit or stash first, or pass --force")
    written: list[str] = []
    try:
        for name, (_, data) in outputs.items():
            _replace(targets[name], data)
            written.append(name)
    except OSError as error:
        for name in written:
            _replace(targets[name], outputs[name][0].data)
        raise UsageError(f"cannot write {name}: {error.strerror}; nothing was changed") from None
    return written


def _inside(path: Path, root: Path, name: str) -> Path:
    """The file itself: no link in it or on the way to it may lead out of the source folder."""
    if path.is_symlink() or path.resolve() != root / name:
        raise UsageError(f"{name} is a link or lies behind one: it is left alone")
    return path


def _replace(path: Path, data: bytes) -> None:
    """Atomic replacement that keeps permissions, and owner and group where that is allowed."""
    before = path.stat()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, before.st_mode & 0o7777)
        if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (os.getuid(), os.getgid()):
            with contextlib.suppress(PermissionError):
                os.chown(temporary, before.st_uid, before.st_gid)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def uncommitted(root: Path, files: list[Path]) -> str | None:
    """Why an edit could not be told from earlier changes, or None: a clean work tree, or no git at all."""
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return None
    try:
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        untracked = _git(root, "ls-files", "--others", "-z", "--", *[str(f.resolve()) for f in files])
    except (OSError, subprocess.SubprocessError):
        return "the state of the git work tree cannot be read"
    if changed.strip():
        return f"the git work tree has uncommitted changes ({len(changed.splitlines())} files)"
    if untracked.strip("\0"):
        return f"{Path(untracked.split(chr(0))[0]).name} is not committed to git"
    return None


def _git(root: Path, *arguments: str) -> str:
    # no optional locks, no file system monitor: reading the state must not run what the repository configures
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60)
    return done.stdout.decode("utf-8", "replace")
