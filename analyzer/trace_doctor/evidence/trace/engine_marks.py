"""The steps that an inference engine marks, without the time in which its server waits for requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import covered, pairs, union
from trace_doctor.evidence.names.engine_step_names import (
    SERVING_KINDS,
    EngineStepName,
    engine_step,
    is_engine_step,
)
from trace_doctor.evidence.names.event_names import is_backward, is_optimizer_step
from trace_doctor.evidence.trace.generation_marks import generation_steps
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.pieces import Span
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

UNRECORDED_WAIT_NS = 20_000_000
"""Nothing recorded on the engine's thread for so long, without Python stacks: shorter may be its scheduler, which took 5 to
13 ms a step in vllm#6854."""
RECORDED_WAIT_NS = 1_000_000
"""The same where stacks show that the thread waited."""
_SPINS = 3
"""An engine that polls asks for requests once in each of its iterations."""
_WAIT = re.compile(
    r"(?:.*[/\\])?(?:queue\.py\(\d+\): get|selectors\.py\(\d+\): select|threading\.py\(\d+\): (?:wait|acquire)"
    r"|zmq[/\\].*\(\d+\): (?:_?recv\w*|_?poll)|asyncio[/\\].*\(\d+\): _?run_once|shm_broadcast\.py\(\d+\): \w+)"
    r"|<built-in (?:method|function) (?:poll|select|acquire|sleep|recv\w*)\b.*>"
)
_ASK = re.compile(r".*\(\d+\): recv_requests")


_DUMMY = re.compile(
    r"(?:.*[/\\])?(?:vllm|sglang)[/\\].*\(\d+\): (?:_dummy_run|execute_dummy_batch|capture_model|_?capture_graph\w*|capture_one_batch_size)"
)
"""functions of engines that run the model for no request: vLLM, of ranks without requests too, and SGLang"""


def _is_dummy(name: str) -> bool:
    return _DUMMY.fullmatch(name) is not None


def step_of_mark(name: str) -> EngineStepName | None:
    """What a mark of `engine_marks` says."""
    if _is_dummy(name):
        return EngineStepName("capture" if "captur" in name.rpartition(": ")[2] else "idle")
    return engine_step(name)


def is_wait(name: str) -> bool:
    """A Python frame that waits for another thread or process."""
    return _WAIT.fullmatch(name) is not None


def _asks(name: str) -> bool:
    return _ASK.fullmatch(name) is not None


def engine_marks(facts: Facts) -> I64:
    """The outermost annotations of engine steps on the main thread, by start, with dummy steps and graph captures, which stacks
    show as well. None where the program trains: an engine makes its samples then."""
    run, marks = facts.run, _all_marks(facts)
    marks = facts[Nesting].outermost(marks) if len(marks) else marks
    return np.asarray(marks[np.argsort(run.ts[marks], kind="stable")])


def _all_marks(facts: Facts) -> I64:
    """The same with those inside of others."""
    run = facts.run
    marks = run.named(is_engine_step, Cat.USER_ANNOTATION, Cat.CPU_OP)
    if not len(marks) or _trains(run):
        return marks[:0]
    marks = np.union1d(marks, run.named(_is_dummy, Cat.PYTHON))
    return np.asarray(marks[run.thread[marks] == facts[Threads].main])


def engine_marks_cross(facts: Facts) -> bool:
    """Whether a mark begins inside another one and ends well behind it, as no thread does: of such steps it is not known what
    belongs to which. Rounding lets sound ones overlap a little."""
    run, marks = facts.run, _all_marks(facts)
    marks = marks[np.lexsort((-run.end[marks], run.ts[marks]))]
    start, end = run.ts[marks], run.end[marks]
    before = np.maximum.accumulate(end)[:-1] if len(marks) else end
    inside = np.minimum(before, end[1:]) - start[1:]
    return bool(((inside > 0) & (end[1:] > before) & (inside * 10 > run.dur[marks][1:])).any())


def without_requests(facts: Facts, piece: Span) -> str:
    """What an engine did, where all of its marks in a piece of the trace serve no request; "" otherwise, and without marks."""
    marks = engine_marks(facts)
    marks = marks[(facts.run.end[marks] > piece[0]) & (facts.run.ts[marks] < piece[1])]
    kinds = {step.kind for m in marks if (step := step_of_mark(facts.run.text(m))) is not None}
    if not kinds or not kinds.isdisjoint(SERVING_KINDS):
        return ""
    did = {"capture": "captured CUDA graphs", "idle": "ran dummy steps"}
    return f"an inference engine {' and '.join(did[k] for k in sorted(kinds))}, and served no request"


def _trains(run: Run) -> bool:
    return bool(len(run.named(is_optimizer_step)) or len(run.named(is_backward, Cat.CPU_OP)))


def engine_steps(facts: Facts, piece: Span, *, may_infer: bool) -> tuple[list[Span], list[str]]:
    """(start, end) ns of the steps of an engine on the host, and their labels: those that it marks, else (`may_infer`) those of
    `generate()` and of denoising, as far as stacks show them."""
    spans, labels = _marked_steps(facts, piece)
    if spans or not may_infer or _trains(facts.run):
        return spans, labels
    return generation_steps(facts, piece)


def _marked_steps(facts: Facts, piece: Span) -> tuple[list[Span], list[str]]:
    """(start, end) ns of the steps of an engine on the host, and their labels. Each lasts until the next mark begins, or until the
    server waits for requests: it may wait only before a step with requests that the one before did not have. Of several the
    last one is left out, for what the engine does behind its mark is cut off; unless no other is of its kind. Then it lasts until
    its GPU work is done."""
    run, marks = facts.run, engine_marks(facts)
    marks = marks[(run.ts[marks] >= piece[0]) & (run.ts[marks] < piece[1])]
    if not len(marks):
        return [], []
    said = [step_of_mark(run.text(m)) for m in marks]
    thread = _EngineThread(run, facts[Threads].main)
    starts = run.ts[marks].tolist()
    ends = [*starts[1:], int(run.end[marks[-1]])]
    for n, may_wait in enumerate(_may_wait(said)):
        if may_wait:
            ends[n], starts[n + 1] = thread.without_wait(int(run.end[marks[n]]), starts[n + 1])
    serving = [n for n, step in enumerate(said) if step is not None and step.kind in SERVING_KINDS]
    kinds = [step.kind if step is not None else "" for step in said]
    whole = [n for n in serving if n < len(marks) - 1 or kinds[n] not in kinds[:n]]
    if whole and whole[-1] == len(marks) - 1:
        ends[-1] = max(ends[-1], facts[Launches].done((starts[-1], ends[-1])))
    return [(starts[n], ends[n]) for n in whole], [run.text(int(marks[n])) for n in whole]


def _may_wait(said: Sequence[EngineStepName | None]) -> Iterator[bool]:
    """For each step but the first whether the server may have had no request to work on before it. What is decoded in it and was
    in the batch before was there all along."""
    running: int | None = 0
    for before, after in pairwise(said):
        if before is not None and before.kind in SERVING_KINDS:
            kept = running if before.kind == "prefill" else before.decodes
            running = None if kept is None or before.prefills is None else kept + before.prefills
        served = before is not None and before.kind in SERVING_KINDS
        follows = served and after is not None and after.kind in ("decode", "running")
        new = running is not None and after is not None and (after.requests or 0) > running
        yield not follows or new


class _EngineThread:
    """What the thread of an engine did, as sets (ns) and moments."""

    def __init__(self, run: Run, thread: int) -> None:
        mine = run.thread == thread
        work = np.flatnonzero(mine & run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER))
        python = mine & run.is_cat(Cat.PYTHON)
        waits = np.flatnonzero(python & run.is_named(is_wait))
        self._work = union(pairs(run.ts[work], run.end[work]))
        self._waits = union(pairs(run.ts[waits], run.end[waits]))
        self._frames = run.ts[python]
        self._asks = run.ts[python & run.is_named(_asks)]
        self._device = union(pairs(run.ts[run.gpu], run.end[run.gpu]))

    def without_wait(self, end: int, start: int) -> Span:
        """The longest stretch between the end of one mark and the start of the next in which it waited for requests; `start`
        twice where it did not."""
        inside = self._work[(self._work[:, 1] > end) & (self._work[:, 0] < start)]
        ends, begins = np.append(end, inside[:, 1]), np.append(inside[:, 0], start)
        at = int((begins - ends).argmax())
        hole = int(max(ends[at], end)), int(min(begins[at], start))
        return hole if self._waited(hole) else (start, start)

    def _waited(self, hole: Span) -> bool:
        """Whether a stretch without operators and calls is a wait for requests: by what Python did, else by its length. While the
        GPU works, the engine waits for that."""
        span = np.array([hole], dtype=np.int64)
        idle = hole[1] - hole[0] - int(covered(span, self._device)[0])
        held = int(covered(span, self._waits)[0])
        if not held and not _among(self._frames, hole):
            return idle >= UNRECORDED_WAIT_NS
        polls = _among(self._asks, hole) >= _SPINS
        return idle >= RECORDED_WAIT_NS and (polls or 2 * held >= hole[1] - hole[0])


def _among(moments: I64, span: Span) -> int:
    first, behind = np.searchsorted(moments, span)
    return int(behind - first)
