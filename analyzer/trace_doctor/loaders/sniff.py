"""What a file is: from its name and its first bytes."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.errors import DamagedCapture, NotACapture, UsageError
from trace_doctor.files import OutsideError, open_regular
from trace_doctor.loaders import identify, packed, provenance
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.recording import folder as recordings
from trace_doctor.recording import whole_files

# Names worth a look inside when walking a folder; a file given by name is always looked into.
CANDIDATE = re.compile(
    r"\.(?:json|pickle|pkl|pftrace|zst)(?:\.gz|\.zst|\.tmp)*$|\.(?:json|pickle|pkl|pt\.trace)[^a-z0-9]"
    r"|dedicated_log_torch_trace|tfevents",
    re.I,
)
# Looked into as well, but of no interest when they are something else: logs, files without a suffix. Of any other file
# the first bytes decide whether it is.
_POSSIBLE = re.compile(r"^[^.]+$|\.(?:log|jsonl|trace|raw|gz|tmp)$", re.I)
_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm/))(?:/|$)")
"""what the kernel makes up: no capture is there, however it got a link in a folder of captures"""


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that holds no capture that can be read."""

    error: NotACapture | DamagedCapture
    unread: bool
    sealed: bool = False
    """nobody knows what it holds: it is listed, and no capture was met"""


def sniff(path: Path, display: str) -> identify.Kind:
    """What a file is, from its first bytes. Raises NotACapture or DamagedCapture with one line."""
    kind = look(path, display)
    if isinstance(kind, Refused):
        raise kind.error
    return kind


def unfinished(path: Path, display: str) -> Refused | None:
    """What a recorder was killed over is told by its name alone: a trace that is cut reads well as far as it goes."""
    name = whole_files.was_to_be(path.name)
    if name is None:
        return None
    line = f"{display}: {name} was not finished, its process was killed meanwhile; this can be deleted"
    return Refused(DamagedCapture(line), unread=recordings.role_of(name) is not None)


def within(path: Path, display: str) -> Refused | None:
    """A file of another kind that holds a capture, whose name and first bytes do not say so."""
    if may_be_capture(path) or not (held := capture_inside(path)):
        return None
    return Refused(NotACapture(f"{display}: {held}"), unread=True)


def look(path: Path, display: str) -> identify.Kind | Refused:
    """What a file is by its first bytes, or why it is none that is read."""
    try:
        status = os.stat(path)
        if path.is_symlink() and leads_to_kernel(path):
            why = f"{display}: a link to {os.path.realpath(path)}, where no capture is"
            return Refused(NotACapture(why), unread=True)
        if stat.S_ISDIR(status.st_mode):
            os.scandir(path).close()  # raises: a folder is asked for only where it cannot be read
        if not stat.S_ISREG(status.st_mode):
            return Refused(NotACapture(f"{display}: not a regular file"), unread=True)
        # What the kernel makes up has no size.
        stream = ByteStream(path) if status.st_size else None
        start = stream.head(identify.HEAD) if stream else b""
        kind = "torch_trace" if provenance.is_sources(path) and start else identify.kind(start)
        if kind is None and stream and identify.is_chrome_trace(start):
            # marks of PyTorch may come after thousands of others
            kind = identify.kind(stream.head(identify.FAR))
        if kind is None and stream and packed.is_packed(start):
            start = stream.head(packed.LOOKED_AT)
    except OutsideError:  # nor is its name the business of who asked
        raise UsageError(
            "a path that was checked has become a way out of the folders that may be read"
        ) from None
    except OSError as error:
        problem = (
            "a link to nothing" if _leads_nowhere(path) else f"cannot be read ({error.strerror or error})"
        )
        there = os.path.lexists(path) or error.errno == errno.ENAMETOOLONG
        unread = identify.claims_capture(path.name, b"") or there > os.path.isfile(path)
        return Refused(DamagedCapture(f"{display}: {problem}"), unread)
    if kind is not None:
        return kind
    claims = identify.claims_capture(path.name, start, lambda: stream is not None and _is_other(stream))
    if why := identify.nothing_in(start):
        problem = stream.problem if stream else ""
        return Refused(DamagedCapture(f"{display}: {problem or why}"), claims)
    if identify.holds_capture(start):
        return Refused(NotACapture(f"{display}: an archive that holds a capture; unpack it first"), True)
    if not claims and (held := capture_inside(path)):
        return Refused(NotACapture(f"{display}: {held}"), True)
    return Refused(NotACapture(identify.refusal(display, start)), claims, identify.is_sealed(start))


def begins_as_capture(path: Path) -> bool:
    """Whether a file whose name says nothing begins as a capture does."""
    try:
        if not path.stat().st_size:
            return False  # what the kernel makes up on reading has no size, and reading it can take for ever
        with open_regular(path) as file:
            start = file.read(600)
        if not identify.may_begin(start):
            return False
        head = ByteStream(path).head(identify.HEAD)
        if packed.is_packed(head):
            return identify.holds_capture(ByteStream(path).head(packed.LOOKED_AT))
        return identify.begins_as_capture(head)
    except OSError:
        return False


def is_sealed(path: Path) -> bool:
    """Whether a file is packed in a way that is not read: what is in it is not known."""
    try:
        if not path.stat().st_size:
            return False
        with open_regular(path) as file:
            return identify.is_sealed(file.read(8))
    except OSError:
        return False


def capture_inside(path: Path) -> str:
    """The capture that a file of another kind holds: half a sentence; "" for none."""
    try:
        if not path.stat().st_size:
            return ""
        start = ByteStream(path).head(identify.WITHIN)  # of what a packed file is, no piece in it
    except OSError:
        return ""
    if identify.trace_within(start):
        how = "name it to have it read" if identify.kind(start[: identify.HEAD]) else "extract it first"
        return f"a trace inside a file of another kind; {how}"
    if identify.packed_within(start):
        return "a capture, compressed or encoded, inside a file of another kind; extract it first"
    return ""


def may_be_capture(path: Path) -> bool:
    """Whether a file says by its name or its first bytes that it may be a capture."""
    return (
        CANDIDATE.search(path.name) is not None
        or _POSSIBLE.search(path.name) is not None
        or whole_files.was_to_be(path.name) is not None
        or identify.claims_capture(path.name, b"")
        or begins_as_capture(path)
    )


def _is_other(stream: ByteStream) -> bool:
    """Whether the file holds sound data: plain data in a pickle, or JSON. Of JSON that is long, the beginning tells."""
    try:
        data = stream.head(identify.FAR)
    except OSError:
        return False
    whole = len(data) < identify.FAR
    if stream.problem or stream.trailing or not data:
        return False
    if not identify.is_pickle(data):
        return identify.is_json(data, whole=whole)
    from trace_doctor.loaders.snapshot.unpickle import is_another_pickle

    return whole and is_another_pickle(data)


def leads_to_kernel(path: str | Path) -> bool:
    """Whether a path leads into `/proc`, `/sys` or `/dev`, where reading may wait or act."""
    return _KERNEL.match(os.path.realpath(path)) is not None


def _leads_nowhere(path: Path) -> bool:
    return os.path.islink(path) and not os.path.exists(path)
