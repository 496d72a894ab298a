"""A folder of a project copied so that what runs in the copy leaves the original alone, without copying its data.

Files are copied (sharing their blocks where the file system can). Links that lead into the project lead into the copy.
Not copied: version control, caches. Linked: virtual environments, and large files and folders of data. What looks like
what a run writes is left out where it is large or outside of the project, since a link would let a run overwrite it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal

from trace_doctor.errors import UsageError
from trace_doctor.reporters.units import size
from trace_doctor.treatment.copy import extents
from trace_doctor.treatment.copy.confined import Confined
from trace_doctor.treatment.copy.routes import Routes, mention
from trace_doctor.treatment.copy.states import (
    CACHES,
    PROGRAM,
    Stamp,
    State,
    digest,
    is_hashed,
    open_unlinked,
    stamp,
    state,
)

RESERVE = 256 << 20
"""bytes of the disk that the copy leaves free: runs write as well"""
_OUTPUT_NAMES = re.compile(
    r"(checkpoints?|ckpts?|runs?|outputs?|out|results?|logs?|wandb|mlruns|lightning_logs|tb|tensorboard|artifacts)"
    r"([-_.].*)?$|.*\.(ckpt|log)$|.*(checkpoint|ckpt).*\.(pt|pth|safetensors|bin)$",
    re.IGNORECASE,
)
"""names of what training scripts write"""
_OURS_TO_TELL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE)
"""failures of the copy; others are of what is copied"""
_ATTEMPTS = 3

_Kind = Literal["project", "small", "data", "linked"]
"""of a folder: one that can hold data, one too small to, one of data to be copied, one whose files are linked one by one"""


def looks_written(name: str) -> bool:
    """Whether a file or folder is named like what training scripts write."""
    return _OUTPUT_NAMES.match(name) is not None


def _in_what_is_written(name: str) -> bool:
    """Whether an entry of the project, or a folder of the project around it, is named so."""
    return any(map(looks_written, name.split("/")))


@dataclass
class CopyRecord:
    """What was done with the entries of a folder; names are relative to it, with forward slashes."""

    files: dict[str, State] = field(default_factory=dict)
    """of the copies, right after they were made"""
    originals: dict[str, Stamp] = field(default_factory=dict)
    """of the same files, as they were when they were read"""
    links: dict[str, str] = field(default_factory=dict)
    """links in the copy -> what they point to"""
    folders: set[str] = field(default_factory=set)
    shared_data: list[str] = field(default_factory=list)
    """large files and folders that the copy shares with the original"""
    asked: list[str] = field(default_factory=list)
    """files and folders that are linked because `link` names them"""
    not_imported: list[str] = field(default_factory=list)
    """folders of a large repository that the copy shares with the original: the program does not import them"""
    environments: list[str] = field(default_factory=list)
    """virtual environments that the copy shares with the original"""
    outward: dict[str, str] = field(default_factory=dict)
    """links of the project that lead out of it -> where to"""
    left_out: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    """sockets, pipes and devices"""
    unstable: list[str] = field(default_factory=list)
    """files that changed each time they were copied"""
    own_path_names: set[str] = field(default_factory=set)
    """scripts and configuration in which the absolute path of the project is written"""

    def fingerprint(self, command: str) -> str:
        """Of a command and of the scripts and configuration, as they were when they were read."""
        originals = sorted(self.originals.items())
        scripts = [(n, d.hex()) for n, d in originals if isinstance(d, bytes) and n.endswith(PROGRAM)]
        return sha256(repr((command, scripts)).encode()).hexdigest()


def copy_tree(
    source: Path,
    tree: Confined,
    at: str,
    routes: Routes,
    *,
    link: Collection[str] = (),
    data: bool = False,
    beside: Collection[str] = (),
) -> CopyRecord:
    """Copies a folder to the folder `at` of a tree, which exists. `link` names files and folders of it that are linked
    whatever they look like, `beside` folders that the program does not import and that are linked; `data`: files and folders
    of data are copied as well.

    Raises UsageError where the copy cannot be written, has no room, or `link` names what is not there.
    """
    links = frozenset(_link_name(n, source) for n in link)
    copy = _Copy(source, tree, at, routes, links, data, frozenset(beside))
    try:
        copy.run()
    except OSError as error:
        raise UsageError(f"cannot copy {source}: {error.strerror}") from None
    return copy.record


def _link_name(name: str, source: Path) -> str:
    name = posixpath.relpath(name, source) if os.path.isabs(name) else posixpath.normpath(name)
    if name == "." or name.split("/")[0] == ".." or not os.path.lexists(source / name):
        raise UsageError(f"--link {name}: no such file or folder in {source}")
    return name


@dataclass
class _Copy:
    source: Path
    tree: Confined
    at: str
    routes: Routes
    link: frozenset[str]
    data: bool
    beside: frozenset[str] = frozenset()
    record: CopyRecord = field(default_factory=CopyRecord)
    _left: int = 0
    """bytes that may still be copied"""
    _later: list[tuple[str, int]] = field(default_factory=list)
    """data that is to be copied when it is known that there is room: names and bytes"""

    def run(self) -> None:
        """Data comes last, when it is known that there is room. Raises OSError, and UsageError where there is none."""
        self._left = self._free() - RESERVE
        self._folders([("", "project")])
        if not self._later:
            return
        self._room(sum(count for _, count in self._later))
        folders: list[tuple[str, _Kind]] = []
        for name, _ in self._later:
            if (self.source / name).is_dir():
                self._make(name)
                folders.append((name, "data"))
            else:
                self._file(name)
        self._folders(folders)

    def _folders(self, todo: list[tuple[str, _Kind]]) -> None:
        while todo:
            folder, kind = todo.pop()
            try:
                entries = sorted(os.scandir(self.source / folder), key=lambda e: e.name)
            except OSError:
                self.record.unreadable.append(folder or ".")
                continue
            data = extents.data_among(entries) if kind == "project" else {}
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                with suppress(FileNotFoundError):  # gone meanwhile
                    if (inner := self._entry(entry, name, kind, data)) is not None:
                        self._make(name)
                        todo.append((name, inner))

    def _entry(
        self, entry: os.DirEntry[str], name: str, kind: _Kind, data: Mapping[str, bool | None]
    ) -> _Kind | None:
        """Copies what is no folder; what a folder is that is to be copied."""
        if name in self.link:
            return self._share(name, whole=True)
        if CACHES.fullmatch(entry.name):
            return None
        if entry.is_symlink():
            self._link(name)
        elif entry.is_dir(follow_symlinks=False):
            if kind in ("data", "linked"):
                return kind
            path = Path(entry.path)
            if os.path.exists(path / "pyvenv.cfg"):
                self.record.environments.append(name)
                self._link_to(name, str(path))
                return None
            if name in self.beside:
                self.record.not_imported.append(name)
                self._link_to(name, entry.path)
                return None
            is_data = data.get(entry.name, False)
            return self._large(name) if is_data else "project" if is_data is None else "small"
        elif not entry.is_file(follow_symlinks=False):
            self.record.special.append(name)
        elif kind == "linked":
            self._link_to(name, entry.path)
        elif kind != "data" and (
            data.get(entry.name) or entry.stat(follow_symlinks=False).st_size > extents.LARGE_FILE
        ):
            self._large(name)
        else:
            self._file(name)
        return None

    def _large(self, name: str) -> _Kind | None:
        path = self.source / name
        if _in_what_is_written(name):
            self.record.left_out.append(name)
            if path.is_dir():
                self._make(name)
            return None
        if self.data:
            self._later.append((name, extents.bytes_of(path)))
            return None
        return self._share(name)

    def _share(self, name: str, whole: bool = False) -> _Kind | None:
        """Links a file or a folder: file by file, so that new files stay in the copy, unless there are too many. `whole`: only
        where links in the folder lead back into the project."""
        path = self.source / name
        final = os.path.realpath(path)
        if self.routes.within(final):
            (self.record.asked if whole else self.record.shared_data).append(name)
        else:
            self.record.outward[name] = final
        if path.is_dir() and not path.is_symlink():
            one_by_one = (
                self._leads_back(path) if whole else (extents.extent(path) or (0, 0))[1] <= extents.MOST_LINKS
            )
            if one_by_one:
                return "linked"
        self._link_to(name, final)
        return None

    def _leads_back(self, folder: Path) -> bool:
        for _, entry in extents.walk(folder):
            if entry.is_symlink():
                final = self.routes.final(entry.path)
                if self.routes.within(final) and not Path(final).is_relative_to(folder):
                    return True
        return False

    def _link(self, name: str) -> None:
        """A link of the project: into the copy where it leads into the project, else to where it leads."""
        path = self.source / name
        where = os.readlink(path)
        absolute = os.path.join(path.parent, where)
        final, target = self.routes.final(absolute), self.routes.into_copy(absolute, around=True)
        straight = os.path.normpath(self.routes.inside(path.parent) / where)
        if not os.path.isabs(where) and _stays(where, name) and target in (None, straight):
            self._link_to(name, where)
        elif target is not None:
            self._link_to(name, target)
        elif not _in_what_is_written(name):
            self._link_to(name, where if os.path.isabs(where) else final)
        else:
            self.record.left_out.append(name)
            if os.path.isdir(final):
                self._make(name)
            return
        if not self.routes.within(final):
            self.record.outward[name] = final

    def _file(self, name: str) -> None:
        to = f"{self.at}/{name}"
        self._left -= (self.source / name).lstat().st_size
        if self._left < 0 and not self._clones(name):
            raise UsageError(
                f"no room for the copy: {size(self._free())} are free where it is made; --scratch DIR makes it elsewhere, "
                "--link NAME links a folder"
            )
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.tree.remove(to)
            if copy_file(self.source, name, self.tree, to, self.record):
                break
        else:
            self.record.unstable.append(name)

    def _make(self, name: str) -> None:
        self.tree.make_folder(f"{self.at}/{name}")
        self.record.folders.add(name)

    def _link_to(self, name: str, where: str) -> None:
        self.tree.make_link(f"{self.at}/{name}", where)
        self.record.links[name] = where

    def _free(self) -> int:
        return shutil.disk_usage(self.routes.inside(self.source)).free

    def _room(self, demand: int) -> None:
        free = self._free()
        if demand > free and not self._clones(max(self._later, key=lambda item: item[1])[0]):
            raise UsageError(
                f"--copy-data: {size(demand)} of data, and {size(free)} are free where the copy is made; "
                "--scratch DIR makes it elsewhere"
            )

    def _clones(self, name: str) -> bool:
        """Whether copies share their blocks with the originals, and need no room of their own."""
        files = (p for p, e in extents.walk(self.source / name) if e.is_file(follow_symlinks=False))
        one = self.source / name / next(files, "")
        with suppress(OSError), open_unlinked(one) as file, self.tree.new_file(".probe") as copy:
            return _clone(file, copy)
        return False


def _stays(where: str, name: str) -> bool:
    """Whether a relative link goes up first, no further than to the project, and then only down."""
    parts = [part for part in where.split("/") if part not in ("", ".")]
    ups = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return ".." not in parts[ups:] and ups <= name.count("/")


def copy_file(root: Path, name: str, tree: Confined, to: str, record: CopyRecord) -> bool:
    """Copies one file with its mode and times; False where it changed meanwhile, so that the copy may be of no moment.

    No link is followed on either side. What cannot be read is only noted. Raises OSError where the copy cannot be written.
    """
    try:
        with open_unlinked(root / name) as file:
            before = os.fstat(file.fileno())
            data = file.read(before.st_size) if is_hashed(name, before) else None
            with tree.new_file(to) as copy:
                if data is not None:
                    copy.write(data)
                elif not _clone(file, copy):
                    _copy_bytes(file, copy, before.st_size)
                copy.flush()
                os.utime(copy.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
                os.fchmod(copy.fileno(), stat.S_IMODE(before.st_mode))
            is_stable = stamp(os.fstat(file.fileno())) == stamp(before)
    except OSError as error:
        if error.errno in _OURS_TO_TELL:
            raise
        record.unreadable.append(name)
        with suppress(OSError):
            tree.remove(to)
        return True
    info = tree.state(to)
    if info is None:
        raise OSError(errno.ENOENT, "the copy was taken away")
    record.files[name] = state(info)
    record.originals[name] = stamp(before) if data is None else digest(data, before)
    if data is not None and os.fsencode(root) in data:
        text = data.decode("utf-8", "surrogateescape")
        record.own_path_names |= {name} if mention(str(root)).search(text) else set()
    return is_stable


def _copy_bytes(file: BinaryIO, copy: BinaryIO, count: int) -> None:
    """So many bytes: a file that grows all the time has an end as well."""
    while count > 0 and (data := file.read(min(count, 1 << 20))):
        copy.write(data)
        count -= len(data)


_FICLONE = 0x40049409


def _clone(file: BinaryIO, copy: BinaryIO) -> bool:
    """Copies by sharing blocks until one side writes, where the file system can (btrfs, xfs)."""
    try:
        import fcntl

        fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno())
    except (ImportError, OSError):
        return False
    return True
