"""What git knows of a folder, asked so that nothing of the repository runs: no filter, hook, monitor, pager or transport.

`git status` runs the clean filters of files that were touched, so the state of a work tree is not asked of it: git lists
the index and compares that with HEAD; the files are compared with the index here.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SETTINGS = (
    "core.fsmonitor=false", f"core.hooksPath={os.devnull}", "core.pager=cat", "core.untrackedCache=false",
    "submodule.recurse=false", "protocol.allow=never", "credential.helper=", "core.quotePath=false",
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_ENTRY = re.compile(
    rb"(\S) (\d{6}) ([0-9a-f]+) (\d)\t([^\0]+)\0(?:  ctime: \d+:\d+\n  mtime: (\d+):(\d+)\n(?:  .*\n){2}  size: (\d+)\t.*\n)?"
)
_LINK, _SUBMODULE = 0o120000, 0o160000
_CONVERSIONS = ("filter", "ident", "working-tree-encoding")
"""attributes by which git changes a file's content between the work tree and the index"""


class GitFailed(Exception):
    """git is not there, or does not answer."""


def in_git(folder: Path) -> bool:
    """Whether the folder lies in a git work tree, as its `.git` says."""
    here = folder.resolve()
    return any((up / ".git").exists() for up in (here, *here.parents))


def git(folder: Path, *arguments: str, given: bytes = b"", timeout: float = 120) -> bytes:
    """What a git command says. Raises GitFailed."""
    program = _program()
    if program is None:
        raise GitFailed("git is not installed")
    command = [program, "--no-optional-locks", *(part for s in _SETTINGS for part in ("-c", s)), *arguments]
    # a hook or a rebase that runs this has variables that point to its own repository
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _ENVIRONMENT
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            input=given,
            capture_output=True,
            check=True,
            timeout=timeout,
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise GitFailed(str(error)) from None


def _program() -> str | None:
    """git, but never one that lies in the folder it is asked about: a relative entry of PATH would find that."""
    names = ("git.exe",) if os.name == "nt" else ("git",)
    folders = [f for f in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(f)]
    found = (os.path.join(f, n) for f in folders for n in names)
    return next((path for path in found if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def top(folder: Path) -> Path:
    """The top of the work tree that a folder lies in. Raises GitFailed outside of any."""
    return Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def uncommitted(folder: Path, files: Sequence[Path]) -> str | None:
    """What speaks against editing `files` of a work tree, because the edit could not be told from earlier changes: a tracked
    file of the work tree that differs from HEAD, or one of `files` that is not tracked. None where nothing does."""
    try:
        root = top(folder).resolve()
        entries = list(_index(root))
        staged = _staged(root) if entries else 0
        written = _index_written(root)
        tracked = {entry.path for entry in entries}
        wanted = {os.fsencode(f.resolve().relative_to(root).as_posix()) for f in files}
        changed = [entry for entry in entries if not _same(root, entry, entry.path in wanted, written)]
        reasons = _not_conversions(root, changed)
    except (GitFailed, OSError, ValueError):
        return "the state of the git work tree cannot be read"
    if untracked := sorted(wanted - tracked):
        return f"{os.fsdecode(untracked[0]).rpartition('/')[2]} is not committed to git"
    count = len(reasons) + staged
    if count == 0:
        return None
    untold = [r for r in reasons if r]
    if len(untold) == count:
        return f"whether the git work tree has uncommitted changes cannot be told ({untold[0]})"
    return f"the git work tree has uncommitted changes ({count} {'file' if count == 1 else 'files'})"


@dataclass(frozen=True)
class _Entry:
    """A file of the index. `mtime_ns` and `size` are those of the file when git last compared it, None where git does
    not say."""

    tag: str
    mode: int
    digest: str
    path: bytes
    mtime_ns: int | None
    size: int | None


def _index(root: Path) -> Iterator[_Entry]:
    listed = git(root, "ls-files", "--stage", "-v", "-z", "--debug")
    at = 0
    for match in _ENTRY.finditer(listed):
        if match.start() != at:
            break
        at = match.end()
        tag, mode, digest, stage, path, seconds, nanoseconds, size = match.groups()
        whole = seconds is not None and stage == b"0"
        yield _Entry(
            tag.decode(), int(mode, 8), digest.decode(), path,
            int(seconds) * 10**9 + int(nanoseconds) if whole else None, int(size) if whole else None,
        )  # fmt: skip
    if at != len(listed):
        raise GitFailed("git lists its index in a form that is not known")


def _staged(root: Path) -> int:
    """Files whose entry in the index is not that of HEAD."""
    try:
        git(root, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
    except GitFailed:
        return 1  # nothing is committed yet
    raw = git(root, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-ext-diff", "HEAD")
    return raw.count(b"\0") // 2


def _index_written(root: Path) -> int:
    """When the index was written (ns): a file that changed since may have the time and size that it had before."""
    path = os.path.join(root, os.fsdecode(git(root, "rev-parse", "--git-path", "index").rstrip(b"\n")))
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _same(root: Path, entry: _Entry, look: bool, index_written: int) -> bool:
    """Whether a file is what the index says. Sizes and times decide as in git, but not for files that git was told to take
    for unchanged, and not for those that are to be edited (`look`)."""
    if entry.mode == _SUBMODULE:
        return True
    path = os.path.join(os.fsencode(root), entry.path)
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return entry.tag in "Ss"  # a sparse checkout has not all of them
    trusted = entry.tag == "H" and not look and entry.mtime_ns is not None and entry.mtime_ns < index_written
    if trusted and (now.st_mtime_ns, now.st_size & 0xFFFFFFFF) == (entry.mtime_ns, entry.size) and entry.size:
        return True
    if stat.S_ISLNK(now.st_mode) != (entry.mode == _LINK) or not (
        stat.S_ISLNK(now.st_mode) or stat.S_ISREG(now.st_mode)
    ):
        return False
    return entry.digest == _digest(_content(path, now), entry.digest)


def _content(path: bytes, now: os.stat_result) -> bytes:
    if stat.S_ISLNK(now.st_mode):
        return os.readlink(path)
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(number, "rb") as file:
        return file.read()


def _digest(content: bytes, like: str) -> str:
    """The name of a blob, by the hash function of the repository."""
    function = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return function(b"blob %d\0" % len(content) + content).hexdigest()


def _not_conversions(root: Path, changed: Iterable[_Entry]) -> list[str]:
    """For each file that really differs an entry: why it cannot be told, or nothing. One that only has the other line ends
    which git gives it is none."""
    entries = list(changed)
    if not entries:
        return []
    attributes = _attributes(root, [e.path for e in entries])
    automatic = _automatic_line_ends(root)
    reasons = []
    for entry in entries:
        mine = attributes.get(entry.path, {})
        converted = next(
            (name for name in _CONVERSIONS if mine.get(name, "unspecified") not in ("unspecified", "unset")),
            None,
        )
        if converted is not None:
            reasons.append(f"{os.fsdecode(entry.path)}: the attribute {converted} is set")
        elif not (_has_line_ends(mine, automatic) and _same_but_line_ends(root, entry)):
            reasons.append("")
    return reasons


def _attributes(root: Path, paths: list[bytes]) -> dict[bytes, dict[str, str]]:
    said = git(
        root,
        "check-attr",
        "-z",
        "--stdin",
        "text",
        "eol",
        "crlf",
        *_CONVERSIONS,
        given=b"\0".join(paths) + b"\0",
    )
    found: dict[bytes, dict[str, str]] = {}
    fields = said.split(b"\0")
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        found.setdefault(path, {})[name.decode()] = value.decode("utf-8", "replace")
    return found


def _automatic_line_ends(root: Path) -> bool:
    try:
        return git(root, "config", "--get", "core.autocrlf").strip().lower() in (
            b"true",
            b"input",
            b"yes",
            b"on",
            b"1",
        )
    except GitFailed:
        return False


def _has_line_ends(attributes: dict[str, str], automatic: bool) -> bool:
    text, eol = attributes.get("text", "unspecified"), attributes.get("eol", "unspecified")
    if text == "unset":
        return False
    return automatic or text in ("set", "auto") or eol in ("lf", "crlf")


def _same_but_line_ends(root: Path, entry: _Entry) -> bool:
    path = os.path.join(os.fsencode(root), entry.path)
    try:
        content = _content(path, os.lstat(path))
    except OSError:
        return False
    return entry.digest == _digest(content.replace(b"\r\n", b"\n"), entry.digest)
