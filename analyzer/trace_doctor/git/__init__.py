"""git, asked so that nothing of the repository runs: no filter, hook, monitor, pager or transport."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from trace_doctor.errors import one_line
from trace_doctor.isolation import program_in

_SETTINGS = (
    "core.fsmonitor=false", f"core.hooksPath={os.devnull}", "core.pager=cat", "core.untrackedCache=false",
    "submodule.recurse=false", "protocol.allow=never", "credential.helper=", "core.quotePath=false",
    "core.useReplaceRefs=false",  # a repository that sets it is not turned back by GIT_NO_REPLACE_OBJECTS
    "core.commitGraph=false",  # says which tree a commit has, and is held against nothing
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_PATIENCE = 20.0
"""Seconds in which git answers; it waits for ever where a FIFO lies in place of a file of its own"""
_LONGEST_ANSWER = 512 << 20
"""Bytes that are kept of an answer: the longest is the index, some 300 a file"""
_PIECE = 1 << 20
_LONGEST_COMPLAINT = 1 << 10
"""Bytes of what git says when it fails: its first line is passed on"""


class GitFailed(Exception):
    """git is not there, or does not answer."""


class GitUnanswered(GitFailed):
    """git does not answer in time, or does not come to an end."""


def in_git(folder: Path) -> bool:
    """Whether the folder lies in a git work tree, as its `.git` says."""
    here = folder.resolve()
    return any((up / ".git").exists() for up in (here, *here.parents))


def is_git_folder(folder: Path) -> bool:
    """Whether git keeps a repository or a work tree's state in the folder, whatever its name is: what git itself asks."""
    kept = (folder / "objects").is_dir() and (folder / "refs").is_dir()
    return os.path.lexists(folder / "HEAD") and (kept or (folder / "commondir").is_file())


def git(folder: Path, *arguments: str, input_bytes: bytes = b"", timeout: float = _PATIENCE) -> bytes:
    """What a git command says. Raises GitFailed."""
    program = _program()
    if program is None:
        raise GitFailed("git is not installed")
    command = [program, "--no-optional-locks", *(part for s in _SETTINGS for part in ("-c", s)), *arguments]
    # a hook or a rebase that runs this has variables that point to its own repository
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _ENVIRONMENT
    with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as complaints:
        questions.write(input_bytes)
        questions.seek(0)
        try:
            with subprocess.Popen(
                command,
                bufsize=0,
                cwd=folder,
                env=environment,
                stdin=questions,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            ) as process:
                try:
                    output = _read(process, timeout)
                except BaseException:  # Ctrl-C too, which does not reach another session
                    _kill(process)
                    raise
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise GitFailed(str(error)) from None
        if process.returncode != 0:
            complaints.seek(0)
            why = complaints.read(_LONGEST_COMPLAINT).decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitFailed(one_line(why) or f"git ended with {process.returncode}")
    return output


def answer(folder: Path, *arguments: str) -> bytes | None:
    """As `git`, but None where git says that it fails. Raises GitUnanswered."""
    try:
        return git(folder, *arguments)
    except GitUnanswered:
        raise
    except GitFailed:
        return None


def _read(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """What a process writes until it ends. Raises GitUnanswered where that takes too long, or is too much to be kept."""
    pipe, pieces, end = process.stdout, list[bytes](), time.monotonic() + timeout
    assert pipe is not None  # asked for above

    def read() -> None:
        size = 0
        with contextlib.suppress(OSError, ValueError):  # the pipe was closed: it is not waited for any more
            while size <= _LONGEST_ANSWER and (piece := pipe.read(_PIECE)):
                pieces.append(piece)
                size += len(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout)
    if not reader.is_alive() and sum(map(len, pieces)) > _LONGEST_ANSWER:
        raise GitUnanswered(f"git answers with more than {_LONGEST_ANSWER >> 20} MB")
    try:
        process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise GitUnanswered(f"git does not answer within {timeout:.0f} s") from None
    if reader.is_alive():
        raise GitUnanswered(f"git does not answer within {timeout:.0f} s")
    return b"".join(pieces)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started and that could keep its pipes open."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _program() -> str | None:
    """git, but never one that lies in the folder it is asked about."""
    return program_in(os.environ.get("PATH", os.defpath), "git.exe" if os.name == "nt" else "git")


def top(folder: Path) -> Path:
    """The top of the work tree that a folder lies in. Raises GitFailed outside of any, also where the repository around
    the folder says that its work tree is elsewhere (`core.worktree`)."""
    found = Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    if not folder.resolve().is_relative_to(found.resolve()):
        raise GitFailed(f"the work tree of the repository around {folder} is {found}")
    return found
