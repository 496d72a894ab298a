"""What torch.compile did in the capture: compiled regions, graph breaks, recompilations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np
from msgspec.structs import replace

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile.cache_misses import (
    CacheMiss,
    UncompiledCalls,
    by_function,
    find_misses,
)
from trace_doctor.evidence.compile.compile_regions import Regions, read_regions
from trace_doctor.evidence.compile.graph_breaks import (
    Break,
    find_breaks,
    given_up,
    is_graph_call,
    is_wrapper_call,
    only_logged,
    run_eagerly,
)
from trace_doctor.evidence.compile.recompiles import Compilation, find_compilations
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.torch_trace import CompileLog, LoggedBreak
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, same_file, shown_path

_MARKS_REGIONS = [2, 2]
"""the torch that puts a Torch-Compiled Region around compiled code each time it runs"""
_SHOWS_REGIONS = "torch 2.5 or later, or TORCH_TRACE=folder next to the trace"


class CompileEvents(Evidence, frozen=True):
    """A run without torch.compile has empty fields. Breaks are those of the steady steps."""

    regions: Regions
    breaks: tuple[Break, ...]
    """by place; one entry for each line that breaks"""
    compilations: tuple[Compilation, ...]
    """every outermost stretch of compiling, warm-up included, by start"""
    uncompiled: tuple[UncompiledCalls, ...]
    """functions of which calls in steady steps fit no compiled version, and none is made; and those of which a log says it"""
    has_ids: bool
    """regions carry `frame/recompile` numbers (torch 2.5 and later)"""
    graphs_run: int
    """calls of compiled graphs, with regions around them or (torch before 2.2, vLLM) without"""
    wrappers_run: int
    """calls of what torch.compile returned, as far as stacks show them: more than graphs where it gave functions up"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, nesting = facts.run, facts[Nesting]
        traced = read_regions(run, nesting)
        log = _log_of(run, traced, facts.capture.torch_logs)
        frames = {} if log is None else _logged_frames(log)
        reasons = {} if log is None else {r.compile_id: r.reasons for r in log.recompiles}
        logged: Sequence[LoggedBreak] = () if log is None else log.breaks
        regions = traced.named(frames)
        compilations = find_compilations(run, nesting, regions, frames, reasons)
        roots = _steady_roots(facts, regions)
        telling = [i for i in roots if regions.all[i].frame_id is not None or _resumes_below(regions, i)]
        syncs = facts.get(Syncs)
        others = [np.array([c.row for c in compilations], dtype=np.int64)]
        if syncs is not None:
            others.append(syncs.rows)
        breaks = find_breaks(run, nesting, regions, telling, np.concatenate(others), logged)
        breaks += run_eagerly(run, nesting, regions, roots, logged)
        breaks += only_logged(regions, breaks, logged)
        shown_file = _Shown(facts.options.source, regions)
        graphs = run.named(is_graph_call, Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.OTHER)
        misses = _steady_misses(facts, regions, graphs, compilations)
        limits = [] if log is None else _logged_limits(log)
        uncompiled = by_function(misses, regions, compilations, limits)
        if not (breaks or regions.all or len(graphs) or misses):
            breaks = given_up(run, nesting)
        return cls(
            regions=regions,
            breaks=tuple(replace(b, file=shown_file(b.file) if b.file else None) for b in breaks),
            compilations=tuple(
                replace(c, frame=replace(c.frame, file=shown_file(c.frame.file))) if c.frame else c
                for c in compilations
            ),
            uncompiled=tuple(
                replace(u, frame=replace(u.frame, file=shown_file(u.frame.file))) if u.frame else u
                for u in uncompiled
            ),
            has_ids=any(r.frame_id is not None for r in regions.all),
            graphs_run=len(graphs),
            wrappers_run=len(run.named(is_wrapper_call, Cat.PYTHON)),
        )

    @property
    def shown_breaks(self) -> tuple[Break, ...]:
        """The breaks. Raises NotCaptured where none is seen because the trace could not show one."""
        if self.breaks:
            return self.breaks
        if not self.regions.all and self.graphs_run:
            raise NotCaptured(
                "compiled graphs run, but the trace has no Torch-Compiled Region around them", _SHOWS_REGIONS
            )
        if not self.regions.all and self.wrappers_run and not self.uncompiled:
            raise NotCaptured(
                "a compiled function was called, but nothing of it ran as compiled code: torch.compile gave it up whole "
                "(a graph break in a loop does that), and the trace has no line for it",
                "TORCH_LOGS=graph_breaks python train.py, or TORCH_TRACE=folder next to the trace",
            )
        if self.regions.all and not self.has_ids:
            raise NotCaptured(
                "compiled regions carry no numbers (torch before 2.5), so that breaks cannot be told from calls",
                _SHOWS_REGIONS,
            )
        return ()


class _Shown:
    """File names for people: as below `--source`, else as the trace has them; a log's are absolute."""

    def __init__(self, source: Path | None, regions: Regions) -> None:
        self._source = source
        self._traced = sorted({r.frame.file for r in regions.all if r.frame}, key=len)

    def __call__(self, file: str) -> str:
        return shown_path(next((t for t in self._traced if same_file(t, file)), file), self._source)


def _resumes_below(regions: Regions, root: int) -> bool:
    """Names tell a break without ids (torch 2.2 to 2.4)."""
    return any(regions.all[i].resumes for i in regions.below(root))


def _steady_roots(facts: Facts, regions: Regions) -> list[int]:
    """The outermost regions that begin in steady steps."""
    steps = facts.get(Steps)
    if steps is None:
        return list(regions.roots)
    begin = np.array([regions.all[i].start for i in regions.roots], dtype=np.int64)
    return list(compress(regions.roots, steps.is_steady(begin).tolist()))


def _steady_misses(
    facts: Facts, regions: Regions, graphs: I64, compilations: Sequence[Compilation]
) -> list[CacheMiss]:
    """None where torch may be too old to mark all compiled code that runs: that of a forward without gradients."""
    least = [int(n) for n in (facts.run.torch_version.min or "0").split(".")[:2]]
    if not regions.all and least < _MARKS_REGIONS:
        return []
    ran = np.array([r.row for r in regions.all], dtype=np.int64)
    misses = find_misses(facts.run, np.union1d(graphs, ran), compilations)
    steps = facts.get(Steps)
    if steps is None:
        return []
    inside = steps.is_steady(np.array([m.start for m in misses], dtype=np.int64))
    return list(compress(misses, inside.tolist()))


def _log_of(run: Run, regions: Regions, logs: Sequence[CompileLog]) -> CompileLog | None:
    """The log of the process that was traced: of this rank, knowing all code that ran, written by a process of the trace
    where one is, and the only nearest one.

    Of two logs that fit equally nobody can say which is meant. A trace without regions takes a log of its process, or of
    its own folder.
    """
    own_rank = (log for log in logs if log.rank in (None, run.rank) and not log.of_kernels)
    fitting = [log for log in own_rank if _agrees(log, regions)]
    traced = {thread.pid for thread in run.threads}
    own = [log for log in fitting if log.pid is not None and str(log.pid) in traced]
    fitting = own or fitting
    near = {id(log): _shared_folders(run.path, log.path) for log in fitting}
    nearest = [log for log in fitting if near[id(log)] == max(near.values())]
    if len(nearest) != 1:
        return None
    together = bool(own) or PurePosixPath(nearest[0].path).parent == PurePosixPath(run.path).parent
    return nearest[0] if regions.all or together else None


def _agrees(log: CompileLog, regions: Regions) -> bool:
    frames = _logged_frames(log)
    for region in regions.all:
        if region.compile_id is None:
            continue
        frame = frames.get(region.compile_id)
        if frame is None or (region.frame and region.frame.function != frame.function):
            return False
    return True


def _shared_folders(one: str, other: str) -> int:
    a, b = PurePosixPath(one).parent.parts, PurePosixPath(other).parent.parts
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _logged_limits(log: CompileLog) -> list[UncompiledCalls]:
    """One per function: that of the first version where the version that was not made has no name."""
    frames, reasons = _logged_frames(log), {r.compile_id: r.reasons for r in log.recompiles}
    functions: dict[Frame, UncompiledCalls] = {}
    for limit in log.limits:
        frame = frames.get(limit.compile_id) or frames.get(f"{limit.compile_id.rsplit('/', 1)[0]}/0")
        if frame is not None:
            changed = reasons.get(limit.compile_id, ())
            functions[frame] = UncompiledCalls(frame=frame, limit=limit, changed=changed)
    return list(functions.values())


def _logged_frames(log: CompileLog) -> dict[str, Frame]:
    return {
        c.compile_id: Frame(c.frame.file, c.frame.line, c.frame.function)
        for c in log.compiles
        if c.frame is not None
    }
