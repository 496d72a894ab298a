"""Writing the edits: all files or none, each replaced atomically, never outside the source folder."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.fixes.plan import Plan

try:
    import fcntl
except ImportError:  # Windows has none: there, what another process writes meanwhile is noticed, not kept out
    fcntl = None  # type: ignore[assignment]


def apply(plan: Plan, *, allow_dirty: bool = False) -> list[str]:
    """Writes what is ready and returns the names of the files changed.

    Raises UsageError, with nothing changed, when the git work tree has uncommitted changes (unless `allow_dirty`),
    when a file changed since it was read, is read-only or has a second name, or when a path leaves the source folder.
    """
    outputs = plan.outputs
    if not outputs:
        return []
    root = plan.tree.root.resolve()
    targets = {name: _inside(plan.tree.path(name), root, name) for name in outputs}
    if not allow_dirty and (dirt := uncommitted(root, list(targets.values()))) is not None:
        raise UsageError(f"{dirt}: commit or stash first, or pass --allow-dirty")
    written: list[str] = []
    with _alone(root):
        for name, (script, _) in outputs.items():
            _writable(targets[name], name)
            if targets[name].read_bytes() != script.data:
                raise UsageError(f"{name} changed while it was being fixed: nothing was written")
        try:
            for name, (_, data) in outputs.items():
                _replace(targets[name], data)
                written.append(name)
        except OSError as error:
            for done in written:
                _replace(targets[done], outputs[done][0].data)
            raise UsageError(f"cannot write {name}: {error.strerror}; nothing was changed") from None
    return written


def _inside(path: Path, root: Path, name: str) -> Path:
    """The file itself: no link in it or on the way to it may lead out of the source folder."""
    if path.is_symlink() or path.resolve() != root / name:
        raise UsageError(f"{name} is a link or lies behind one: it is left alone")
    return path


def _writable(path: Path, name: str) -> None:
    """A replacement would lift the write protection of a file, and part it from its other names."""
    state = path.stat()
    if not state.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{name} is read-only: nothing was written")
    if state.st_nlink > 1:
        raise UsageError(f"{name} has {state.st_nlink} names (hard links): nothing was written")


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keeps other trace-doctor processes from writing into the folder meanwhile; leaves nothing behind."""
    if fcntl is None:
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(path: Path, data: bytes) -> None:
    """Atomic replacement that keeps permissions and, where that is allowed, owner, group and extended attributes."""
    before = path.stat()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        after = os.stat(temporary)
        if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
            with contextlib.suppress(PermissionError):
                os.chown(temporary, before.st_uid, before.st_gid)
        _copy_attributes(path, temporary)
        os.chmod(temporary, stat.S_IMODE(before.st_mode))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _copy_attributes(path: Path, temporary: str) -> None:
    """Access lists and labels, where the system has them."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listxattr(path):
            with contextlib.suppress(OSError):
                os.setxattr(temporary, name, os.getxattr(path, name))


def in_git(root: Path) -> bool:
    """Whether the folder lies in a git work tree."""
    here = root.resolve()
    return any((folder / ".git").exists() for folder in (here, *here.parents))


def uncommitted(root: Path, files: list[Path]) -> str | None:
    """Why an edit could not be told from earlier changes, or None: a clean work tree, or no git at all."""
    if not in_git(root):
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
    # a hook or a rebase that runs this has variables that point to its own repository
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True, timeout=60)
    return done.stdout.decode("utf-8", "replace")
