"""Captures at a URL (`s3://bucket/run1`), through fsspec. Below a temporary folder each object is a file that has its name, size
and first bytes, so that captures are found as in any folder. The objects of a group are there as a whole while it is read.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, TraceDoctorError, UsageError
from trace_doctor.inputs.groups import CaptureGroup
from trace_doctor.loaders import identify
from trace_doctor.loaders.discover import Discovery, Ignored, discover
from trace_doctor.loaders.sniff import sniff
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.options import ENVIRONMENT_FILE

log = logging.getLogger("trace_doctor")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HEAD = 1 << 18
"""bytes of an object that are read first: most say with them what they are"""
_AT_A_TIME = 64
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "md5",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)
"""what file systems say of a version of an object, the surest first"""
_MARGIN = 1 << 28
"""bytes that stay free where captures are put"""


_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://)(?:[^\s/?#'\"]*@)?([^\s?#'\"]*)([?#][^\s'\"]*)?")


def shown(text: str) -> str:
    """A text whose URLs hold neither a user with a password nor a query, which may be a signature."""
    return _IN_TEXT.sub(lambda m: f"{m[1]}{m[2]}{'?***' if m[3] else ''}", text)


def is_url(path: object) -> bool:
    """Whether a path is one of another file system."""
    return isinstance(path, str) and _URL.match(path) is not None


@dataclass(frozen=True)
class _Object:
    system: Any
    key: str
    url: str
    size: int
    version: str


class Remote:
    """What lies below the URLs among some paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects: dict[Path, _Object] = {}
        self._begins: dict[Path, int] = {}
        """bytes of each file that are there while it is not read; all where it is not named"""
        self._used: Counter[Path] = Counter()
        self._urls: dict[str, str] = {}
        """what was asked for, by its place here"""
        self._refused: list[Ignored] = []

    def _placed(self, path: str | Path) -> str | Path:
        """Lists what is below a path, where that is a URL; its place here. Raises UsageError and NoCaptures."""
        if not is_url(path):
            return path
        url = str(path)
        system, key, listed = _listed(url)
        top = self.folder / str(len(self._urls)) / (_last(key) or "root")
        self._urls[str(top)] = shown(url).rstrip("/")
        files = {}
        for name, info in listed.items():
            if info.get("type", "file") != "file" or name.endswith("/"):
                continue
            below = name.strip("/").removeprefix(key.strip("/")).strip("/")
            listed_as = shown(below or _last(key))
            try:
                place = _place(top, below)
                found = _Object(
                    system, name, shown(system.unstrip_protocol(name)), int(info["size"]), _version(info)
                )
                place.parent.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError, TypeError, KeyError) as why:
                self._refused.append(
                    Ignored(listed_as, shown(f"cannot be read from there ({why})"), unread=True)
                )
                continue
            files[place] = found
        self._objects |= files
        self._begin(list(files), _HEAD)
        self._begin([p for p in files if self._begins.get(p) and not _is_known(p)], identify.FAR)
        return top

    def discovered(self, paths: Sequence[str | Path]) -> Discovery:
        """What is below the paths, told by URL. Raises what `discover` does."""
        found = discover([self._placed(path) for path in paths], strict=False)
        ignored = [
            replace(i, display=self.told(i.display), reason=self.told(i.reason)) for i in found.ignored
        ]
        shown = tuple((folder, self.told(text)) for folder, text in found.recordings)
        return replace(found, ignored=(*ignored, *self._refused), recordings=shown)

    def list_again(self, paths: Sequence[str | Path]) -> None:
        """Finds what shards found, for what of it is read once more. What cannot be reached is not read."""
        try:
            self.discovered(paths)
        except TraceDoctorError as why:
            log.info("what shards read cannot be listed: %s", self.told(str(why)))

    def to_share(self, path: Path) -> Path:
        """A path as any machine has it: of what is at a URL, below its temporary folder."""
        return path.relative_to(self.folder) if self.folder in path.parents else path

    def shared(self, path: Path) -> Path:
        """The place here of a path that `to_share` made; what is not there stays as it is."""
        place = self.folder / path
        listed = place in self._objects or any(place in other.parents for other in self._objects)
        return place if listed and not path.is_absolute() else path

    def told(self, text: str) -> str:
        """A text with URLs in the place of paths of the temporary folder."""
        for place, url in self._urls.items():
            text = text.replace(place, url)
        return text

    def state(self, path: Path) -> tuple[str, int, str] | None:
        """URL, size and version of a file here; of one that there is not, where it would be. None for a file elsewhere."""
        if (found := self._objects.get(path)) is not None:
            return found.url, found.size, found.version
        return (self.told(str(path)), -1, "") if self.folder in path.parents else None

    def fetch(self, group: CaptureGroup) -> None:
        """Puts the whole files of a group in their places. Raises DamagedCapture where one cannot be read or has changed."""
        for file in group.files:
            self._used[file.path] += 1
            if self._used[file.path] > 1 or file.path not in self._begins:
                continue
            found = self._objects[file.path]
            try:
                self._fetch(found, file.path)
            except Exception as error:  # each file system has its own
                self.drop(group)
                cause = shown(str(error)) or type(error).__name__
                raise DamagedCapture(f"{group.name}: {found.url} cannot be read: {cause}") from None

    def drop(self, group: CaptureGroup) -> None:
        """Ends what `fetch` began: files of other groups stay."""
        for file in group.files:
            self._used[file.path] -= 1
            if self._used[file.path] <= 0 and file.path in self._begins:
                del self._used[file.path]
                try:
                    with file.path.open("rb") as whole:
                        begin = whole.read(self._begins[file.path])
                except OSError:
                    begin = b""
                self._write_begin(file.path, begin)

    def compare(self) -> None:
        """Reads once more what has the size and the beginning of another: files that are compared later are copies or are not."""
        alike: dict[tuple[int, bytes], list[Path]] = {}
        for place, length in self._begins.items():
            with place.open("rb") as file:
                key = self._objects[place].size, hashlib.sha256(file.read(length)).digest()
            alike.setdefault(key, []).append(place)
        for place in (p for places in alike.values() if len(places) > 1 for p in places):
            length = self._begins[place]
            try:
                self._fetch(self._objects[place], place)
                with place.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    file.seek(0)
                    self._write_begin(place, file.read(length), digest)
            except Exception as error:  # each file system has its own
                log.info("%s cannot be compared: %s", self._objects[place].url, shown(str(error)))

    def _fetch(self, found: _Object, place: Path) -> None:
        if shutil.disk_usage(self.folder).free < found.size + _MARGIN:
            raise OSError(
                f"no room for its {found.size >> 20} MiB in {self.folder.parent} (TMPDIR names another folder)"
            )
        found.system.get_file(found.key, str(place))
        found.system.invalidate_cache()
        now = found.system.info(found.key)
        if (int(now["size"]), _version(now)) != (
            found.size,
            found.version,
        ) or place.stat().st_size != found.size:
            raise OSError("it has changed since it was found")

    def _begin(self, places: Sequence[Path], length: int) -> None:
        """Reads so many bytes of each, of what belongs to a recording all."""
        for at in range(0, len(places), _AT_A_TIME):
            part = places[at : at + _AT_A_TIME]
            ends = [
                self._objects[p].size if _is_small(p) else min(length, self._objects[p].size) for p in part
            ]
            system = self._objects[part[0]].system
            keys = [self._objects[p].key for p in part]
            begins = system.cat_ranges(keys, [0] * len(keys), ends, on_error="return")
            for place, begin, end in zip(part, begins, ends, strict=True):
                if isinstance(begin, bytes) and len(begin) == end:
                    self._write_begin(place, begin)
                    continue
                place.unlink(missing_ok=True)
                found = self._objects.pop(place)
                cause = begin if isinstance(begin, Exception) else "it has changed since it was found"
                self._refused.append(Ignored(found.url, shown(f"cannot be read: {cause}"), unread=True))

    def _write_begin(self, place: Path, begin: bytes, end: str = "") -> None:
        """The rest is a hole, whose end tells apart what is another object."""
        found = self._objects[place]
        with place.open("wb") as file:
            file.write(begin)
            self._begins.pop(place, None)
            if len(begin) < found.size:
                self._begins[place] = len(begin)
                file.truncate(found.size)
                last = (end or found.url).encode()[-(found.size - len(begin)) :]
                file.seek(found.size - len(last))
                file.write(last)


@contextmanager
def remote(paths: Sequence[str | Path]) -> Iterator[Remote | None]:
    """None without a URL among the paths: nothing is asked of a network then."""
    if not any(map(is_url, paths)):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="trace-doctor-") as folder:
        there = Remote(Path(folder))
        try:
            yield there
        except TraceDoctorError as error:
            raise type(error)(there.told(str(error))) from None


def _listed(url: str) -> tuple[Any, str, dict[str, dict[str, Any]]]:
    """The file system, the key, and all objects below with what is known of each."""
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(
            f"{shown(url)}: a URL needs fsspec ({error}): pip install 'trace-doctor[remote]'"
        ) from None
    try:
        system, key = fsspec.core.url_to_fs(url)
        if listed := system.find(key, detail=True):
            return system, key, listed
    except FileNotFoundError:
        pass
    except Exception as error:  # each file system has its own
        raise UsageError(shown(f"{url}: {str(error) or type(error).__name__}")) from None
    raise NoCaptures(f"{shown(url)}: nothing is there")


def _version(info: dict[str, Any]) -> str:
    """Raises ValueError where the file system does not tell one version of an object from another."""
    name = next((n for n in _VERSIONS if info.get(n)), None)
    if name is None:
        raise ValueError("its versions cannot be told apart")
    value = info[name]
    stamp = getattr(value, "timestamp", None)  # the same moment is a number in a list, and a date alone
    return f"{name} {stamp() if stamp is not None else value}"


def _place(top: Path, below: str) -> Path:
    """Raises ValueError for a name that would be elsewhere."""
    if not below:
        return top
    if any(part in ("", ".", "..") for part in below.split("/")) or "\0" in below or "\\" in below:
        raise ValueError("no name of a file")
    return top / below


def _last(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _is_small(place: Path) -> bool:
    return place.name == ENVIRONMENT_FILE or recordings.is_companion(place.name)


def _is_known(place: Path) -> bool:
    try:
        return bool(sniff(place, place.name))
    except (NotACapture, DamagedCapture):
        return False
