"""Graph breaks out of nested compiled regions: where each is, and the host time between the pieces.

Every region inside another stands for a break of the outer function at that moment. With the names of the functions
(stacks, or TORCH_TRACE logs) each is led back to the innermost break that caused it: a function that calls a broken
one is cut as well, but at a line that needs no change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from trace_doctor.arrays import I64
from trace_doctor.evidence.compile.break_gaps import DYNAMO, Between
from trace_doctor.evidence.compile.compile_regions import CALLS, RESUME, Region, Regions, resumed_at
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.loaders.torch_trace import LogFrame, LoggedBreak
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, is_user_frame, python_frame, same_file

_NO_ROWS = np.empty(0, dtype=np.int64)


def is_graph_call(name: str) -> bool:
    """The call of a graph that was compiled before."""
    return name.startswith(CALLS) and not name.startswith("CompiledFunctionBackward")


def is_wrapper_call(name: str) -> bool:
    """The Python frame of a function that torch.compile returned."""
    return "torch/_dynamo/eval_frame.py(" in name and name.endswith(": compile_wrapper")


class Break(Struct, frozen=True, kw_only=True):
    """One graph break: a line where a compiled function is cut, over all calls of the steady steps."""

    function: str | None = None
    """the function that is cut; None when the capture has no names"""
    file: str | None = None
    line: int | None = None
    """the line that breaks; None when it was not captured"""
    defined: int | None = None
    """first line of the function, where known"""
    callee: Frame | None = None
    """the compiled function called on that line, when it is not known to break itself"""
    calls: int = 0
    """calls of the outermost compiled function in which it was seen"""
    pieces: int = 0
    """regions that begin behind it, in all calls"""
    chain: int = 0
    """regions below the outermost one, at most in one line of nesting"""
    regions: tuple[str, ...] = ()
    """`frame/recompile` of the pieces; of the code that ends here where there are none"""
    outermost: str = ""
    """frame id of the outermost region"""
    gaps: tuple[tuple[int, int, int], ...] = ()
    """(thread, start, end) ns of host time between the end of the compiled code before it and the next piece"""
    entering: tuple[tuple[int, int, int], ...] = ()
    """the same of what Python does around the graphs of the pieces behind it, forward and backward"""
    whole_pieces: tuple[tuple[int, int, int], ...] = ()
    """the pieces behind it and their backward, with all that they run"""
    logged: tuple[LoggedBreak, ...] = ()
    """what PyTorch said of this line, in a TORCH_TRACE log"""
    whole: bool = False
    """nothing of the function is compiled: it runs eagerly inside a compiled region"""


class _Key(NamedTuple):
    function: str | None
    file: str | None
    line: int | None
    outermost: str


class _Found(Struct):
    callee: Frame | None = None
    defined: int | None = None
    roots: set[int] = field(default_factory=set)
    pieces: list[int] = field(default_factory=list)
    chain: int = 0


def find_breaks(
    run: Run,
    nesting: Nesting,
    regions: Regions,
    roots: Sequence[int],
    others: I64,
    logged: Sequence[LoggedBreak],
) -> tuple[Break, ...]:
    """The breaks in these outermost regions, by place.

    `others`: rows of calls that wait for the device, and of compilations; that time is theirs, not the break's.
    """
    by_key: dict[_Key, _Found] = {}
    eager = _EagerResumes(run, regions)
    for root in roots:
        owners = _Owners(regions, root, logged, eager)
        chain = max((regions.all[i].depth for i in regions.below(root)), default=0) - regions.all[root].depth
        for piece, key in owners.of.items():
            here = by_key.setdefault(key, _Found())
            here.roots.add(root)
            here.pieces.append(piece)
            here.chain = max(here.chain, chain)
            here.callee = here.callee or owners.callee.get(key)
            here.defined = here.defined or owners.defined.get(key)
    if not by_key:
        return ()
    between = Between(run, nesting, regions, others)
    breaks = [
        Break(
            function=key.function,
            file=key.file,
            line=key.line,
            defined=here.defined,
            callee=here.callee,
            calls=len(here.roots),
            pieces=len(here.pieces),
            chain=here.chain,
            regions=_ids(regions, here.pieces),
            outermost=key.outermost,
            gaps=between.gaps(sorted(here.pieces)),
            entering=between.entering(sorted(here.pieces)),
            whole_pieces=between.whole(sorted(here.pieces)),
            logged=tuple(b for b in logged if key.line and _same_place(b, key)),
        )
        for key, here in by_key.items()
    ]
    return tuple(sorted(breaks, key=lambda b: (b.file or "", b.line or 0, b.function or "", b.outermost)))


class _Owners:
    """For each region below a root: the break that it begins behind."""

    def __init__(
        self, regions: Regions, root: int, logged: Sequence[LoggedBreak], eager: _EagerResumes
    ) -> None:
        self._regions = regions
        self._logged = logged
        self._eager = eager
        self._outermost = regions.all[root].frame_id or ""
        self.of: dict[int, _Key] = {}
        self.callee: dict[_Key, Frame] = {}
        self.defined: dict[_Key, int] = {}
        self._visit(root)

    def _visit(self, parent: int) -> None:
        """Gives every child its break; a function that was called on a broken line comes before the continuation."""
        called: list[int] = []
        for child in self._regions.children[parent]:
            self._visit(child)
            resumed = self._regions.all[child].resumes
            if resumed is None:
                called.append(child)
                continue
            inner = [key for c in called if (key := self._last_break_in(c))]
            key = inner[-1] if inner else self._key(resumed, parent, called)
            self.of[child] = key
            for c in called:
                self.of[c] = self._first_break_in(c) or key
            called = []
        for c in called:
            key = self._first_break_in(c)
            if key is None and (at := self._eager.behind(parent, c)) is not None:
                key = self._key(at, parent, [c])
            self.of[c] = key or self._unplaced(parent, c)

    def _first_break_in(self, region: int) -> _Key | None:
        return next((self.of[i] for i in self._regions.below(region) if i in self.of), None)

    def _last_break_in(self, region: int) -> _Key | None:
        return next((self.of[i] for i in reversed(self._regions.below(region)) if i in self.of), None)

    def _key(self, at: Frame, parent: int, called: list[int]) -> _Key:
        key = _Key(at.function, at.file, at.line, self._outermost)
        if called and (frame := self._regions.all[called[-1]].frame):
            self.callee.setdefault(key, frame)
        if (line := self._definition(at, parent)) is not None:
            self.defined.setdefault(key, line)
        return key

    def _definition(self, at: Frame, parent: int) -> int | None:
        """First line of the broken function: of the enclosing region that runs it from its start."""
        while parent >= 0:
            above = self._regions.all[parent]
            if above.frame and above.resumes is None:
                return above.frame.line if above.frame.function == at.function else None
            parent = above.parent
        return None

    def _unplaced(self, parent: int, child: int) -> _Key:
        """A region without continuation behind it: the log may know the line; the trace knows the function at best."""
        above, below = self._regions.all[parent], self._regions.all[child]
        logged_break = next((b for b in self._logged if b.compile_id == above.compile_id and b.site), None)
        if logged_break and logged_break.site:
            return _Key(
                logged_break.site.function or None,
                logged_break.site.file,
                logged_break.site.line,
                self._outermost,
            )
        frame = above.resumes or above.frame
        if frame is None:
            return _Key(None, None, None, self._outermost)
        key = _Key(frame.function, frame.file, None, self._outermost)
        if below.frame:
            self.callee.setdefault(key, below.frame)
        if above.resumes is None:
            self.defined.setdefault(key, frame.line)
        return key


class _EagerResumes:
    """Continuations that run as plain Python (past the recompile limit, say): only stacks show them."""

    def __init__(self, run: Run, regions: Regions) -> None:
        self._run, self._regions = run, regions
        rows = run.named(lambda n: RESUME.search(n) is not None, Cat.PYTHON)
        self._rows = {int(t): rows[run.thread[rows] == t] for t in np.unique(run.thread[rows])}

    def behind(self, parent: int, called: int) -> Frame | None:
        """Where the parent goes on after this call: the first continuation that starts before its next region does."""
        all_ = self._regions.all
        above, region = all_[parent], all_[called]
        children = self._regions.children[parent]
        following = bisect_left(children, region.end, key=lambda i: all_[i].start)
        ends = [all_[i].start for i in children[following : following + 1]]
        rows = self._rows.get(region.thread, _NO_ROWS)
        at = int(np.searchsorted(rows, np.searchsorted(self._run.ts, region.end)))
        if at == len(rows) or self._run.ts[rows[at]] >= min([above.end, *ends]):
            return None
        return resumed_at(python_frame(self._run.text(int(rows[at]))))


def run_eagerly(
    run: Run, nesting: Nesting, regions: Regions, roots: Iterable[int], logged: Sequence[LoggedBreak]
) -> tuple[Break, ...]:
    """Functions of the user that run as ordinary Python inside a compiled region that calls no graph at all.

    Dynamo gives up on a whole function when it breaks inside a loop or a context manager. Only stacks show it, and
    only a log knows the line.
    """
    by_place: dict[tuple[str, Frame], _Found] = {}
    calls_graph = _calls_graph(run, regions)
    for root in roots:
        for at in (root, *regions.below(root)):
            region = regions.all[at]
            if regions.children[at] or region.frame is None or calls_graph[at]:
                continue
            frame = _eager_function(run, nesting, region)
            if frame is not None:
                here = by_place.setdefault((regions.all[root].frame_id or "", frame), _Found())
                here.roots.add(root)
                here.pieces.append(at)
    breaks = []
    for (outermost, frame), here in sorted(by_place.items(), key=lambda kv: (kv[0][1].file, kv[0][1].line)):
        reasons = tuple(b for b in logged if b.skips_frame and b.site and _is_in(b.site, frame))
        breaks.append(
            Break(
                function=frame.function,
                file=frame.file,
                line=next((b.site.line for b in reasons if b.site), None),
                defined=frame.line,
                calls=len(here.roots),
                pieces=len(here.pieces),
                regions=_ids(regions, here.pieces),
                outermost=outermost,
                logged=reasons,
                whole=True,
            )
        )
    return tuple(breaks)


def given_up(run: Run, nesting: Nesting) -> tuple[Break, ...]:
    """Functions of the user that torch.compile was asked for and that run as ordinary Python, in a trace in which no
    compiled code runs at all. Only stacks show it."""
    called: dict[Frame, int] = {}
    for row in run.named(is_wrapper_call, Cat.PYTHON).tolist():
        inside = nesting.started(int(run.thread[row]), int(run.ts[row]), int(run.end[row]))
        frames = (python_frame(run.text(r)) for r in inside[run.cat[inside] == Cat.PYTHON].tolist())
        if (frame := next((f for f in frames if f and is_user_frame(f.file)), None)) is not None:
            called[frame] = called.get(frame, 0) + 1
    return tuple(
        Break(function=frame.function, file=frame.file, defined=frame.line, calls=calls, whole=True)
        for frame, calls in called.items()
    )


def only_logged(regions: Regions, known: Sequence[Break], logged: Sequence[LoggedBreak]) -> tuple[Break, ...]:
    """Breaks that only the log shows: nothing behind them was worth compiling, or a function was given up whole.

    Counted where the code that they end ran in the trace (or the trace has no ids to tell).
    """
    ran = {r.compile_id for r in regions.all}
    places = {(b.function, b.line) for b in known if b.line is not None}
    by_frame: dict[LogFrame, list[LoggedBreak]] = {}
    for logged_break in logged:
        if logged_break.site is None or (logged_break.site.function, logged_break.site.line) in places:
            continue
        if logged_break.compile_id in ran or logged_break.skips_frame or not ran - {None}:
            by_frame.setdefault(logged_break.site, []).append(logged_break)
    return tuple(
        Break(
            function=site.function or None,
            file=site.file,
            line=site.line,
            regions=tuple(dict.fromkeys(b.compile_id for b in logged_break)),
            outermost=logged_break[0].compile_id.rsplit("/", 1)[0],
            logged=tuple(logged_break),
            whole=any(b.skips_frame for b in logged_break),
        )
        for site, logged_break in sorted(by_frame.items(), key=lambda kv: (kv[0].file, kv[0].line))
    )


def _eager_function(run: Run, nesting: Nesting, region: Region) -> Frame | None:
    """The outermost user function called from a region that holds operators."""
    inside = nesting.started(region.thread, region.start, region.end)
    operators = {run.names[n] for n in np.unique(run.name[inside[run.cat[inside] == Cat.CPU_OP]])}
    if not any(name.startswith("aten::") for name in operators):
        return None
    called = map(python_frame, map(run.names.__getitem__, run.name[inside[run.cat[inside] == Cat.PYTHON]]))
    return next((f for f in called if f and is_user_frame(f.file) and f != region.frame), None)


def _calls_graph(run: Run, regions: Regions) -> list[bool]:
    """For each region: whether compiled code or another piece of it runs inside."""
    calls = np.sort(
        np.concatenate(
            [
                run.named(lambda n: n.startswith((*CALLS, *DYNAMO[1:])), Cat.CPU_OP),
                run.named(lambda n: n.startswith(CALLS), Cat.USER_ANNOTATION),
            ]
        )
    )
    is_call = np.zeros(len(run), dtype=bool)
    is_call[calls] = True
    has_call = np.zeros(len(regions.all), dtype=bool)
    threads, rows, starts, ends = (
        np.array([getattr(r, key) for r in regions.all], dtype=np.int64)
        for key in ("thread", "row", "start", "end")
    )
    for thread in np.unique(threads):
        here = np.flatnonzero(threads == thread)
        on_it = calls[run.thread[calls] == thread]
        first, behind = np.searchsorted(on_it, np.searchsorted(run.ts, [starts[here], ends[here]]))
        has_call[here] = behind - first > is_call[rows[here]]  # a region is no call of itself
    return has_call.tolist()


def _same_place(logged_break: LoggedBreak, key: _Key) -> bool:
    site = logged_break.site
    return (
        site is not None and key.file is not None and site.line == key.line and same_file(site.file, key.file)
    )


def _is_in(site: LogFrame, frame: Frame) -> bool:
    return site.function == frame.function and same_file(site.file, frame.file)


def _ids(regions: Regions, pieces: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for p in sorted(pieces) if (i := regions.all[p].compile_id)))
