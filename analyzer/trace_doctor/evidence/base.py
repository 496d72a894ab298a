"""How evidence is made: on demand, once per capture, shared by all rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from msgspec import Struct, field

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.run import Run
from trace_doctor.snapshot import Snapshot

NO_TRACE, NO_SNAPSHOT = "no profiler trace of this rank", "no memory snapshot of this rank"
NO_DUMP = "no flight recorder dump"


class Options(Struct, frozen=True):
    """What the user may tell the analysis about a capture. Defaults are those of the command line."""

    source: Path | None = None
    """folder (or file) of the training script"""
    steps: tuple[int, int] | None = None
    """analyse only these steps: [first, last)"""
    device: int | None = None
    loader_frames: tuple[str, ...] = ()
    """substrings of Python frames that load data though they are no DataLoader"""
    loader_annotations: tuple[str, ...] = ()
    device_bytes: int | None = None
    """memory of the device, where no file says it"""
    torch_version: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Evidence(Struct, frozen=True, dict=True):
    """Base of derived facts: fields that stay as they are, and a `build` that makes them."""

    derived_columns: ClassVar[tuple[str, ...]] = ()
    """Its columns, where they and `run` are all it has and follow from the trace alone: `Run.derived` keeps them."""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        """Derives this evidence. Raises NotCaptured when the capture cannot hold it."""
        raise NotImplementedError


E = TypeVar("E", bound=Evidence)


class Facts:
    """All evidence of one capture, built when first asked for. A refusal is remembered as well."""

    def __init__(self, capture: Capture, options: Options | None = None) -> None:
        self.capture = capture
        self.options = options or Options()
        self._made: dict[type[Evidence], Evidence | NotCaptured] = {}

    @property
    def rank(self) -> int:
        """The rank of the capture."""
        return self.capture.rank

    @property
    def run(self) -> Run:
        """The trace. Raises NotCaptured without one."""
        if self.capture.run is None:
            raise NotCaptured(NO_TRACE, "record a trace with torch.profiler")
        return self.capture.run

    @property
    def snapshot(self) -> Snapshot:
        """The allocator snapshot. Raises NotCaptured without one."""
        if self.capture.snapshot is None:
            raise NotCaptured(
                NO_SNAPSHOT,
                'torch.cuda.memory._record_memory_history(stacks="all"), a few steps, '
                'then torch.cuda.memory._dump_snapshot("snapshot.pickle")',
            )
        return self.capture.snapshot

    def __getitem__(self, kind: type[E]) -> E:
        built = self._made.get(kind)
        if built is None:
            try:
                built = self._remembered(kind) if kind.derived_columns else kind.build(self)
            except NotCaptured as missing:
                built = missing
            self._made[kind] = built
        if isinstance(built, NotCaptured):
            raise NotCaptured(built.reason, built.capture)
        assert isinstance(built, kind)
        return built

    def _remembered(self, kind: type[E]) -> E:
        known = self.run.derived
        names = {f"{kind.__name__}.{column}": column for column in kind.derived_columns}
        if names.keys() <= known.keys():
            restored: Callable[..., E] = kind
            return restored(run=self.run, **{column: known[name] for name, column in names.items()})
        evidence = kind.build(self)
        known.update({name: getattr(evidence, column) for name, column in names.items()})
        return evidence

    def get(self, kind: type[E]) -> E | None:
        """The evidence, or None where it was not captured."""
        try:
            return self[kind]
        except NotCaptured:
            return None
