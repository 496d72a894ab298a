"""What a command reads: taken from stdin, and never written over."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trace_doctor.cli.common import Sink
from trace_doctor.errors import TraceDoctorError, UsageError
from trace_doctor.loaders import identify
from trace_doctor.loaders.discover import sniff


@contextmanager
def captures(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths, with `-` replaced by a file that holds what stdin delivers: captures are not read in one pass. Raises
    NotACapture or DamagedCapture where its beginning shows that it is none, before all of it is taken."""
    if "-" not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="trace-doctor-") as folder:
        piped = Path(folder) / "stdin"
        with piped.open("wb") as file:
            file.write(sys.stdin.buffer.read(identify.FAR))
            file.flush()
            sniff(piped, "stdin")
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield [str(piped) if path == "-" else path for path in paths]


def spare(sinks: Sequence[Sink], given: Sequence[str]) -> None:
    """Raises UsageError where an output would take the place of what is read, or of any capture: nobody means that. A
    capture with its tracks is written again, but not among those that are read."""
    for sink in sinks:
        if sink.path is None or not sink.path.is_file():
            continue
        path, read = sink.path.resolve(), [Path(p).resolve() for p in given if p != "-"]
        beside = sink.format != "perfetto" or any(folder in path.parents for folder in read)
        if path in read or (beside and _is_capture(path)):
            raise UsageError(
                f"--output: {sink.path} is a capture or a result that is read; it is not overwritten"
            )
    paths = [s.path.resolve() for s in sinks if s.path is not None and not s.path.is_char_device()]
    if len(set(paths)) < len(paths):
        raise UsageError("--output: two formats cannot go to one file")


def _is_capture(path: Path) -> bool:
    try:
        return bool(sniff(path, path.name))
    except (TraceDoctorError, OSError):
        return False
