"""Whether a git work tree has uncommitted changes.

`git status` runs the clean filters of files that were touched, so the state of a work tree is not asked of it: git lists
the index and compares that with HEAD; the files are compared with the index here.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trace_doctor.errors import one_line
from trace_doctor.git import GitFailed, answer, git, top

_PIECE = 1 << 20
_ENTRY = re.compile(
    rb"(\S) (\d{6}) ([0-9a-f]+) (\d)\t([^\0]+)\0(?:  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n"
    rb"  dev: \d+\tino: (\d+)\n  uid: (\d+)\tgid: (\d+)\n  size: (\d+)\t.*\n)?"
)
_LINK, _SUBMODULE = 0o120000, 0o160000
_CONVERSIONS = ("filter", "ident", "working-tree-encoding")
"""attributes by which git changes a file's content between the work tree and the index"""
_YES = (b"true", b"yes", b"on", b"1", b"")
_MAX_TEXT = 256 << 20
_MAX_COMPARED = 8 << 30
"""Bytes of all files whose content is compared"""
_LOST = "git has lost what is committed of"


def uncommitted(folder: Path, files: Sequence[Path]) -> str | None:
    """What speaks against editing `files` of a work tree, because the edit could not be told from earlier changes: a tracked
    file of the work tree that differs from HEAD, or one of `files` that is not tracked; and what to do first, where that helps.
    None where nothing does."""
    try:
        root = top(folder).resolve()
        reasons, untracked = _survey(root, [f.resolve() for f in files])
    except _TooMuch:
        return (
            "whether the git work tree has uncommitted changes cannot be told: more than "
            f"{_MAX_COMPARED >> 30} GB would have to be read (`git status` may spare that)"
        )
    except (GitFailed, OSError, ValueError) as why:
        return f"the state of the git work tree cannot be read: {one_line(str(why))}"
    if untracked:
        return f"{min(untracked).name} is not committed to git: commit it first"
    count = len(reasons)
    if count == 0:
        return None
    untold = [r for r in reasons if r]
    lost = [r for r in untold if r.startswith(_LOST)]  # what git cannot read it can neither compare nor stash
    if lost or len(untold) == count:
        return f"whether the git work tree has uncommitted changes cannot be told ({(lost or untold)[0]})"
    return f"the git work tree has uncommitted changes ({count} {'file' if count == 1 else 'files'}): commit or stash first"


def _survey(root: Path, files: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """For each file that differs from its commit an entry: why that cannot be told, or nothing; and those of `files` that are
    not tracked. Each submodule that is checked out is a work tree of its own, and differs where it is at another commit."""
    reasons, untracked, compared = list[str](), list[Path](), 0
    work_trees = [(root, list(files))]
    while work_trees:
        here, own = work_trees.pop()
        listed, entries = list(_index(here)), []
        for entry in listed:
            place = here / os.fsdecode(entry.path)
            if entry.mode != _SUBMODULE:
                entries.append(entry)
            elif place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
                reasons.append("")
            elif os.path.lexists(place / ".git"):
                if top(place).resolve() != place:
                    raise GitFailed(f"{place} is no work tree of its own")
                reasons += [""] * (_commit(place) != entry.digest)
                work_trees.append((place, [f for f in own if f.is_relative_to(place)]))
                own = [f for f in own if not f.is_relative_to(place)]
        tracked = {entry.path for entry in entries}
        names = {os.fsencode(f.relative_to(here).as_posix()): f for f in own}
        modes = _setting(here, "core.fileMode")
        work_tree = _WorkTree(here, _index_written(here), modes is None or modes in _YES, compared)
        turned = {entry.path for entry in entries if work_tree.is_turned(entry)}
        others = [entry for entry in entries if entry.path not in turned]
        changed = [entry for entry in others if not work_tree.same(entry, entry.path in names)]
        trees = _trees(listed, commit := _commit(here))
        staged = _staged(here, commit, trees) if listed or here != root else 0
        reasons += [*_not_conversions(here, changed), *[""] * (len(turned) + staged)]
        reasons += _not_kept(
            here, [entry for entry in entries if entry.path in names], {} if staged else trees
        )
        untracked += [f for name, f in names.items() if name not in tracked]
        compared = work_tree.compared
    return reasons, untracked


def _not_kept(root: Path, entries: Sequence[_Entry], trees: dict[bytes, str]) -> Iterator[str]:
    """The files that git could not give back after an edit, and the folders on the way to them: without one of these it can
    neither compare nor stash. `trees`: those of HEAD."""
    lost = [os.fsdecode(e.path) for e in entries if not _is_kept(root, e.digest, b"blob")]
    folders = {folder for e in entries for folder in _above(e.path)} & trees.keys()
    lost += [
        os.fsdecode(f) or "the top folder" for f in sorted(folders) if not _is_kept(root, trees[f], b"tree")
    ]
    return (f"{_LOST} {name}" for name in lost)


def _above(path: bytes) -> Iterator[bytes]:
    """The folders that a file lies in, up to the top of its work tree, which has no name."""
    while path:
        path = os.path.dirname(path)
        yield path


def _is_kept(root: Path, digest: str, kind: bytes) -> bool:
    """Whether git has an object, and that is what its name says."""
    content = answer(root, "cat-file", kind.decode(), digest)
    return content is not None and _digest_of(content, digest, kind) == digest


def _commit(root: Path) -> str:
    """What a work tree is at; empty where nothing is committed yet."""
    return (answer(root, "rev-parse", "--quiet", "--verify", "HEAD^{commit}") or b"").decode().strip()


@dataclass(frozen=True)
class _Entry:
    """A file of the index. `stat` is of the file when git last compared it, None where git does not say: ctime and mtime
    (ns), inode, owner, group and size, as far as 32 bits hold them."""

    tag: str
    mode: int
    digest: str
    path: bytes
    stat: tuple[int, ...] | None


def _index(root: Path) -> Iterator[_Entry]:
    listed = git(root, "ls-files", "--stage", "-v", "-z", "--debug")
    at = 0
    for match in _ENTRY.finditer(listed):
        if match.start() != at:
            break
        at = match.end()
        tag, mode, digest, stage, path, *numbers = match.groups()
        known = None
        if stage == b"0" and numbers[0] is not None:
            ctime, ctime_ns, mtime, mtime_ns, *others = map(int, numbers)
            known = (ctime * 10**9 + ctime_ns, mtime * 10**9 + mtime_ns, *others)
        yield _Entry(tag.decode(), int(mode, 8), digest.decode(), path, known)
    if at != len(listed):
        raise GitFailed("git lists its index in a form that is not known")


def _staged(root: Path, commit: str, trees: dict[bytes, str]) -> int:
    """Files whose entry in the index is not that of HEAD. `trees`: those of the index. git does not check the trees it reads, nor what it keeps of commits
    beside them: the hash of the index as a tree decides, and that of the commit."""
    if not commit:
        return 1  # nothing is committed yet
    content = git(root, "cat-file", "commit", commit)
    if _digest_of(content, commit, b"commit") != commit:
        raise GitFailed("the commit is not what its name says")
    if content.startswith(b"tree %s\n" % trees[b""].encode()):
        return 0
    raw = git(
        root, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-ext-diff",
        "--ignore-submodules=none", "HEAD",
    )  # fmt: skip
    return max(raw.count(b"\0") // 2, 1)


def _trees(entries: Sequence[_Entry], like: str) -> dict[bytes, str]:
    """Folder -> the hash of its tree in a commit of these entries."""
    folders: dict[bytes, list[tuple[bytes, bytes, str]]] = {b"": []}
    for entry in entries:
        folder, name = os.path.split(entry.path)
        folders.setdefault(folder, []).append((name, b"%o" % entry.mode, entry.digest))
        while folder := os.path.dirname(folder):
            folders.setdefault(folder, [])
    trees = dict[bytes, str]()
    for folder in sorted(folders, key=lambda f: (f.count(b"/"), f), reverse=True):
        lines = [
            b"%s %s\0%s" % (mode, name.rstrip(b"/"), bytes.fromhex(digest))
            for name, mode, digest in sorted(folders[folder])
        ]
        trees[folder] = _digest_of(b"".join(lines), like, b"tree")
        if folder:  # git sorts folders as if their names ended so
            above, name = os.path.split(folder)
            folders[above].append((name + b"/", b"40000", trees[folder]))
    return trees


def _index_written(root: Path) -> int:
    """When the index was written (ns): a file that changed since may have the time and size that it had before."""
    path = os.path.join(root, os.fsdecode(git(root, "rev-parse", "--git-path", "index").rstrip(b"\n")))
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


class _TooMuch(Exception):
    """The files whose content would have to be compared are too large together."""


class _WorkTree:
    """The files of a work tree, compared with the index."""

    def __init__(self, root: Path, index_written: int, modes: bool, compared: int) -> None:
        self.root = root
        self.index_written = index_written
        self.modes = modes
        """whether the bit that makes a file executable counts, which some file systems do not have"""
        self.compared = compared
        """bytes, with those of other work trees"""
        self._linked: dict[bytes, bool] = {b"": False}

    def _below_link(self, path: bytes) -> bool:
        """Whether a folder above a file is a link: what lies there is no part of the work tree."""
        folder = os.path.dirname(path)
        if folder not in self._linked:
            here = os.path.join(os.fsencode(self.root), folder)
            self._linked[folder] = self._below_link(folder) or os.path.islink(here)
        return self._linked[folder]

    def is_turned(self, entry: _Entry) -> bool:
        """Whether a file can be executed and is not to be, or the other way round."""
        if not self.modes or not stat.S_ISREG(entry.mode):
            return False
        try:
            now = os.lstat(os.path.join(os.fsencode(self.root), entry.path))
        except FileNotFoundError:
            return False
        return stat.S_ISREG(now.st_mode) and bool((now.st_mode ^ entry.mode) & stat.S_IXUSR)

    def same(self, entry: _Entry, look: bool) -> bool:
        """Whether a file is what the index says. All that git keeps of it decides, as in `git status`, whatever the repository
        sets, but not for files that git was told to take for unchanged, and not for those that are to be edited (`look`)."""
        path = os.path.join(os.fsencode(self.root), entry.path)
        try:
            now = os.lstat(path)
        except FileNotFoundError:
            return entry.tag in "Ss"  # a sparse checkout has not all of them
        if self._below_link(entry.path):
            return False
        link = stat.S_ISLNK(now.st_mode)
        if link != (entry.mode == _LINK) or not (link or stat.S_ISREG(now.st_mode)):
            return False
        if entry.tag == "H" and not look and self._untouched(entry, now):
            return True
        self.compared += now.st_size
        if self.compared > _MAX_COMPARED:
            raise _TooMuch
        return entry.digest == _digest(path, now, entry.digest)

    def _untouched(self, entry: _Entry, now: os.stat_result) -> bool:
        """A file that changed after the index was written may have the times and size that it had before."""
        if entry.stat is None or max(entry.stat[:2]) >= self.index_written or not entry.stat[-1]:
            return False
        stamp = (now.st_ctime_ns, now.st_mtime_ns, now.st_ino, now.st_uid, now.st_gid, now.st_size)
        return entry.stat == (*stamp[:2], *(number & 0xFFFFFFFF for number in stamp[2:]))


def _opened(path: bytes) -> BinaryIO:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb")


def _digest(path: bytes, now: os.stat_result, like: str) -> str:
    """The name of a file's content as a blob, by the hash function of the repository."""
    if stat.S_ISLNK(now.st_mode):
        return _digest_of(os.readlink(path), like)
    digest = _begun(now.st_size, like)
    with _opened(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _digest_of(content: bytes, like: str, kind: bytes = b"blob") -> str:
    digest = _begun(len(content), like, kind)
    digest.update(content)
    return digest.hexdigest()


def _begun(size: int, like: str, kind: bytes = b"blob") -> hashlib._Hash:
    return (hashlib.sha1 if len(like) == 40 else hashlib.sha256)(b"%s %d\0" % (kind, size))


def _not_conversions(root: Path, changed: Iterable[_Entry]) -> list[str]:
    """For each file that really differs an entry: why it cannot be told, or nothing. One that has the line ends which a
    checkout gives it is none; line ends that git ignores, and would not give, are."""
    entries = list(changed)
    if not entries:
        return []
    attributes = _attributes(root, [e.path for e in entries])
    automatic, own = _line_ends(root)
    reasons = []
    for entry in entries:
        own_attributes = attributes.get(entry.path, {})
        converted = next(
            (
                name
                for name in _CONVERSIONS
                if own_attributes.get(name, "unspecified") not in ("unspecified", "unset")
            ),
            None,
        )
        if converted is not None:
            reasons.append(f"{os.fsdecode(entry.path)}: the attribute {converted} is set")
        elif not (_gets_crlf(own_attributes, automatic, own) and _same_with_crlf(root, entry)):
            reasons.append("")
    return reasons


def _attributes(root: Path, paths: list[bytes]) -> dict[bytes, dict[str, str]]:
    output = git(
        root,
        "check-attr",
        "-z",
        "--stdin",
        "text",
        "eol",
        "crlf",
        *_CONVERSIONS,
        input_bytes=b"\0".join(paths) + b"\0",
    )
    by_path: dict[bytes, dict[str, str]] = {}
    fields = output.split(b"\0")
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        by_path.setdefault(path, {})[name.decode()] = value.decode("utf-8", "replace")
    return by_path


def _line_ends(root: Path) -> tuple[bool, bool]:
    """Whether a checkout gives CRLF to text: to every file that looks like it, and to those that an attribute calls so."""
    if (automatic := _setting(root, "core.autocrlf")) in _YES or automatic == b"input":
        return automatic != b"input", automatic != b"input"
    eol = _setting(root, "core.eol")
    return False, eol == b"crlf" or (eol != b"lf" and os.name == "nt")


def _setting(root: Path, name: str) -> bytes | None:
    """A setting in small letters; None where it is not set."""
    value = answer(root, "config", "--get", name)
    return None if value is None else value.strip().lower()


def _gets_crlf(attributes: dict[str, str], automatic: bool, own: bool) -> bool:
    """Whether a checkout gives CRLF to a file of these attributes; `crlf` is the old name of `text`."""
    text, eol = attributes.get("text", "unspecified"), attributes.get("eol", "unspecified")
    if text == "unspecified":
        text = attributes.get("crlf", "unspecified")
        eol = "lf" if text == "input" and eol == "unspecified" else eol
    if text == "unset" or eol == "lf":
        return False
    return eol == "crlf" or automatic or (own and text in ("set", "auto"))


def _same_with_crlf(root: Path, entry: _Entry) -> bool:
    path = os.path.join(os.fsencode(root), entry.path)
    try:
        with _opened(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_TEXT:
                return False
            content = file.read()
    except OSError:
        return False
    committed = content.replace(b"\r\n", b"\n")
    return committed.replace(b"\n", b"\r\n") == content and entry.digest == _digest_of(
        committed, entry.digest
    )
