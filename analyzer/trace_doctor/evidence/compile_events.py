"""What torch.compile did in the capture: compiled regions, graph breaks, recompilations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compile_regions import Regions, read_regions
from trace_doctor.evidence.frames import Frame
from trace_doctor.evidence.graph_breaks import Break, find_breaks, is_graph_call, only_logged, run_eagerly
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.recompiles import Compilation, find_compilations
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.syncs import Syncs
from trace_doctor.loaders.torch_trace import CompileLog, LoggedBreak
from trace_doctor.run import Cat, Run


@dataclass(frozen=True)
class CompileEvents(Evidence):
    """Raises NotCaptured only where there is no trace; a run without torch.compile has empty fields.

    Breaks are those of the steady steps, so that compiling itself does not count as one.
    """

    regions: Regions
    breaks: tuple[Break, ...]
    """by place; one entry for each line that breaks"""
    compilations: tuple[Compilation, ...]
    """every outermost stretch of compiling, warm-up included, by start"""
    calls: int
    """calls of outermost compiled regions in the steady steps"""
    has_ids: bool
    """regions carry `frame/recompile` numbers (torch 2.5 and later)"""
    has_names: bool
    """at least one region's function is known, from stacks or a log"""
    has_log: bool
    """a TORCH_TRACE log of this rank was read"""
    graphs_run: int
    """calls of compiled graphs, with regions around them or (torch before 2.2, vLLM) without"""
    main_frames: tuple[Frame, ...] = field(default=())
    """functions of the outermost regions"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, nesting = facts.run, facts[Nesting]
        log = _log_of(facts, run)
        frames = {} if log is None else _logged_frames(log)
        reasons = {} if log is None else {r.compile_id: r.reasons for r in log.recompiles}
        regions = read_regions(run, frames)
        roots = [i for i in regions.roots if _is_steady(facts, regions.all[i].start)]
        with_ids = [i for i in roots if regions.all[i].frame_id is not None]
        syncs = facts.get(Syncs)
        blocking = syncs.rows if syncs is not None else np.empty(0, dtype=np.int64)
        logged: Sequence[LoggedBreak] = log.breaks if log is not None else ()
        breaks = find_breaks(run, nesting, regions, with_ids, blocking, logged)
        breaks += run_eagerly(run, nesting, regions, roots, logged)
        named = [r.frame for r in (regions.all[i] for i in roots) if r.frame is not None]
        return cls(
            regions=regions,
            breaks=breaks + only_logged(regions, breaks, logged),
            compilations=find_compilations(run, nesting, regions, frames, reasons),
            calls=len(roots),
            has_ids=any(r.frame_id is not None for r in regions.all),
            has_names=any(r.frame is not None for r in regions.all),
            has_log=log is not None,
            graphs_run=len(run.named(is_graph_call, Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.OTHER)),
            main_frames=tuple(dict.fromkeys(named)),
        )


def _is_steady(facts: Facts, moment: int) -> bool:
    try:
        steps = facts[Steps]
    except NotCaptured:
        return True
    spans = [(s.start, s.end) for s in steps.steady] or [steps.window]
    return any(start <= moment < end for start, end in spans)


def _log_of(facts: Facts, run: Run) -> CompileLog | None:
    """The log of this rank, if exactly one fits: of two runs' logs nobody can say which is meant."""
    logs: list[CompileLog] = [log for log in facts.capture.torch_logs if log.rank in (None, run.rank)]
    return logs[0] if len(logs) == 1 else None


def _logged_frames(log: CompileLog) -> dict[str, Frame]:
    return {
        c.compile_id: Frame(c.frame.file, c.frame.line, c.frame.function)
        for c in log.compiles
        if c.frame is not None
    }
