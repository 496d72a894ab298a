"""One file, in this process."""

from __future__ import annotations

import logging

from trace_doctor.capture import Capture
from trace_doctor.errors import DamagedCapture, NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.flight_recorder import FlightDump
from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.graph_annotations import with_graph_nodes
from trace_doctor.loaders.recorded_environment import with_environment
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.run import Run
from trace_doctor.snapshot import Snapshot

log = logging.getLogger("trace_doctor")

Content = Run | Snapshot | CompileLog | FlightDump
_DERIVED: tuple[type[Evidence], ...] = (Nesting, Launches)


def load(file: CaptureFile, max_memory: int | None = None, *, core_free: bool = True) -> Content:
    """Reads one file in at most so many bytes (None: as the loaders decide), with the help of another core where one is
    free, and what lies beside it. Raises NotACapture or DamagedCapture with one line."""
    content = _load(file, max_memory, core_free)
    if isinstance(content, Run):
        return with_graph_nodes(with_environment(content, file.path), file.path)
    return with_environment(content, file.path) if isinstance(content, Snapshot) else content


def load_derived(file: CaptureFile, max_memory: int | None = None, *, core_free: bool = True) -> Content:
    """The same with what every analysis makes of it."""
    content = load(file, max_memory, core_free=core_free)
    derive(content)
    return content


def derive(content: Content) -> None:
    """Adds the call tree and the launches, which every analysis asks for, to the columns of a trace."""
    if not isinstance(content, Run):
        return
    facts = Facts(Capture(content.rank, content))
    for kind in _DERIVED:
        try:
            facts[kind]
        except NotCaptured:
            continue
        except Exception:  # the rules that need it will say so, each for itself
            log.debug("%s of %s cannot be derived", kind.__name__, content.path, exc_info=True)
    content.name_ids()  # makes the rows by name


def _load(file: CaptureFile, max_memory: int | None, core_free: bool) -> Content:
    try:
        if file.kind == "trace":
            from trace_doctor.loaders.kineto.trace import load_trace

            return load_trace(
                file.path, file.display, rank=file.rank, rank_how=file.rank_how, max_memory=max_memory,
                core_free=core_free,
            )  # fmt: skip
        if file.kind == "snapshot":
            from trace_doctor.loaders.snapshot.unpickle import load_snapshot

            return load_snapshot(
                file.path, file.display, rank=file.rank, rank_how=file.rank_how, max_memory=max_memory
            )
        if file.kind == "flight_recorder":
            from trace_doctor.loaders.flight_recorder import load_flight_dump

            return load_flight_dump(
                file.path, file.display, rank=file.rank, rank_how=file.rank_how, max_memory=max_memory
            )
        from trace_doctor.loaders.torch_trace import load_torch_trace

        return load_torch_trace(file.path, file.display)
    except OSError as error:
        raise DamagedCapture(f"{file.display}: cannot be read ({error.strerror or error})") from error
