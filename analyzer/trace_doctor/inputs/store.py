"""A folder of summaries: what is kept of each capture group, under a key of all that it was made of, and what each shard did.

`STORE/ab/<key>.td1` is one group, `STORE/shard-I-of-N.done` the groups of one shard. Files appear whole: they are written
aside and renamed, so that any number of processes and machines may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from trace_doctor.errors import UsageError
from trace_doctor.files import read_regular, replacing
from trace_doctor.inputs import group_format
from trace_doctor.inputs.group_examination import Request
from trace_doctor.inputs.groups import CaptureGroup
from trace_doctor.inputs.remote import Remote
from trace_doctor.loaders.discover import CaptureFile, Discovery
from trace_doctor.loaders.discover import Ignored as IgnoredFile
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.options import (
    ENVIRONMENT_FILE,
    RECORDING_FILE,
    STEPS_FILE,
    rank_file,
    rank_steps_file,
)
from trace_doctor.version import VERSION

_DONE = re.compile(r"shard-([0-9]{1,6})-of-([0-9]{1,6})\.done")
_LARGEST_LIST = 256 << 20
"""bytes of what a shard did"""
_MOST_SHARDS = 100_000


class Shard(Struct, frozen=True):
    """One of so many parts of the capture groups."""

    number: int
    """from 0"""
    of: int

    @property
    def file(self) -> str:
        """What says in a store that it is whole."""
        return f"shard-{self.number}-of-{self.of}.done"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`I/N`, I from 0. Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        shard = cls(int(match[1]), int(match[2])) if match else None
        if shard is None or shard.number >= shard.of:
            raise UsageError(f"--shard: {text!r} is not I/N, with I from 0 to N - 1")
        return shard

    def holds(self, group: CaptureGroup) -> bool:
        """Whether the group is one of this part: by its name, which is the same on every machine."""
        digest = hashlib.sha256(group.name.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number


class ShardGroup(Struct, frozen=True):
    """A group of a shard, with the key of what is kept of it."""

    name: str
    files: tuple[CaptureFile, ...]
    key: str
    lost: str = ""
    """why nothing is kept of it"""


class ShardDone(Struct, frozen=True, kw_only=True):
    """What a shard did."""

    version: int = 1
    tool: str = VERSION
    shard: Shard
    asked: str
    """digest of the rules and options"""
    discovered: str
    """digest of the names of all groups, those of other shards too"""
    total: int
    """of them"""
    paths: tuple[str, ...]
    groups: tuple[ShardGroup, ...]
    ignored: tuple[IgnoredFile, ...] = ()
    recordings: tuple[tuple[str, str], ...] = ()

    @property
    def discovery(self) -> Discovery:
        """What was below the paths, as far as this shard read it."""
        found = {f.path: f for group in self.groups for f in group.files}
        folders = tuple((Path(folder), shown) for folder, shown in self.recordings)
        return Discovery(tuple(found.values()), self.ignored, folders)


class Store:
    """Raises UsageError where the folder cannot be made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Makes the folder. Raises UsageError where that is not possible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--summaries: {self.folder}: {error.strerror or error}") from None

    def read(self, key: str) -> bytes | None:
        """What is kept under a key; None for nothing, for what is no file of ours, and for what was kept under another key."""
        own = key.encode()
        try:
            data = read_regular(self._place(key), len(own) + group_format.MOST + 1)
        except OSError:
            return None
        return data[len(own) :] if data.startswith(own) else None

    def write(self, key: str, data: bytes) -> None:
        """Keeps it. Raises UsageError where there is no room."""
        self._write(self._place(key), key.encode() + data)

    def forget_done(self, shard: Shard) -> None:
        """Until it is whole again, a shard that begins anew is none."""
        with contextlib.suppress(OSError):
            (self.folder / shard.file).unlink()

    def write_done(self, done: ShardDone) -> None:
        """Says that a shard is whole."""
        try:
            data = msgspec.json.encode(done, enc_hook=os.fspath)
        except UnicodeEncodeError:
            raise UsageError(
                "--summaries: a name of a file is not UTF-8, and shards cannot list it"
            ) from None
        self._write(self.folder / done.shard.file, data)

    def done(self) -> list[ShardDone]:
        """What all shards did, by number. Raises UsageError where that is none, or of several runs."""
        try:
            names = sorted(path.name for path in self.folder.iterdir() if _DONE.fullmatch(path.name))
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror or error}") from None
        if not names:
            raise UsageError(
                f"{self.folder}: no shard is done: `trace-doctor analyze PATH --summaries` makes one"
            )
        shards = sorted((self._done(name) for name in names), key=lambda done: done.shard.number)
        if len({done.shard.of for done in shards}) > 1:
            raise UsageError(
                f"{self.folder}: shards of different numbers: {', '.join(names[:4])}; delete those of older runs"
            )
        return shards

    def _done(self, name: str) -> ShardDone:
        match = _DONE.fullmatch(name)
        assert match is not None
        try:
            data = read_regular(self.folder / name, _LARGEST_LIST)
            done = msgspec.json.decode(data, type=ShardDone, dec_hook=lambda kind, value: kind(value))
        except (OSError, msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
            cause = error.strerror if isinstance(error, OSError) else "no list of a shard"
            raise UsageError(f"{self.folder / name}: {cause}") from None
        if (
            done.version != 1
            or done.shard != Shard(int(match[1]), int(match[2]))
            or done.shard.of > _MOST_SHARDS
        ):
            raise UsageError(f"{self.folder / name}: of another version, or renamed")
        return done

    def _place(self, key: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", key):
            raise UsageError(f"{self.folder}: {key[:80]!r} is no key of a summary")
        return self.folder / key[:2] / f"{key}.td1"

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--summaries: {path}: {error.strerror or error}") from None
        with replacing(path) as file:
            file.write(data)


# -- keys ------------------------------------------------------------------------------------------------------------


def asked_of(request: Request) -> str:
    """A digest of all that changes what is said of a capture: version, rules with their thresholds, options."""
    rules = [
        (r.code, type(r).__module__, type(r).__qualname__, sorted(r.thresholds().items()))
        for r in request.rules
    ]
    parts = (group_format.FORMAT, VERSION, rules, request.sizes, request.options, request.rank)
    return hashlib.sha256(msgspec.json.encode(parts, enc_hook=repr)).hexdigest()


def key_of(group: CaptureGroup, asked: str, remote: Remote | None = None) -> str:
    """A digest of that and of every file that the group is made of, with size and time of change; at a URL its version."""
    states = [_state_at(path, remote) for path in dict.fromkeys(_members(group))]
    names = [(f.display, f.rank, f.rank_how) for f in group.files]
    return hashlib.sha256(repr((asked, names, states)).encode("utf-8", "surrogateescape")).hexdigest()


def discovered(groups: Sequence[CaptureGroup]) -> str:
    """A digest of the names of all groups."""
    names = sorted(g.name for g in groups)
    return hashlib.sha256(repr(names).encode("utf-8", "surrogateescape")).hexdigest()


def _members(group: CaptureGroup) -> list[Path]:
    """Its files, and what lies beside them and is read with them."""
    paths = [f.path for f in group.files]
    for file in group.own:
        paths.append(file.path.parent / ENVIRONMENT_FILE)
        if file.recording is not None and (role := recordings.role_of(file.path.name)) is not None:
            names = (RECORDING_FILE, STEPS_FILE, rank_file(role[0]), rank_steps_file(role[0]))
            paths += [file.recording / name for name in names]
    return paths


def _state_at(path: Path, remote: Remote | None) -> tuple[object, ...]:
    there = remote.state(path) if remote is not None else None
    return there or (os.path.abspath(path), *_state(path))


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
