"""Laws of the what-if replay, on random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.intervals import clip, pairs, total, union
from trace_doctor.evidence.replay import dependency_graph
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder

Program = list[list[tuple[str, float]]]
PROGRAMS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["loader", "kernel", "side", "item", "sync", "wait", "malloc"]), st.floats(1, 800)
        ),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)
SPANS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3)), max_size=4)
SUBSETS = st.tuples(SPANS, st.integers(0, 7), st.integers(0, 7))


def built(program: Program, shift_us: float = 0.0) -> Run:
    b = RunBuilder()
    b.now += shift_us
    for step in program:
        with b.step():
            with b.op("aten::mm"):
                b.launch(5)
            for what, us in step:
                us = round(us)
                if what == "loader":
                    b.loader(us)
                elif what == "item":
                    b.item()
                elif what == "sync":
                    b.sync("cudaDeviceSynchronize")
                elif what == "wait":
                    b.wait(us)
                elif what == "malloc":
                    b.runtime("cudaMalloc", us)
                else:
                    with b.op("aten::mm", us=10):
                        b.launch(us, stream=7 if what == "kernel" else 20)
    return b.run()


def facts_of(run: Run) -> Facts:
    return Facts(Capture(rank=0, run=run))


def chosen(facts: Facts, subset: tuple[list[tuple[float, float]], int, int]) -> Removal:
    """Some host time, every n-th wait and every n-th kernel of a run."""
    spans, waits, kernels = subset
    begin, end = facts[Steps].window
    length = end - begin
    host = tuple((0, begin + int(a * length), begin + int(min(a + b, 1) * length)) for a, b in spans)
    syncs, gpu = facts[Syncs].rows, facts.run.gpu
    return Removal(
        host_spans=tuple(h for h in host if h[2] > h[1]),
        make_async=tuple(syncs[::waits].tolist()) if waits else (),
        gpu_rows=tuple(gpu[::kernels].tolist()) if kernels else (),
    )


@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_removing_nothing_gives_the_window_back(program: Program) -> None:
    replay = facts_of(built(program))[Replay]
    length = replay.window[1] - replay.window[0]
    assert replay.base_ns == pytest.approx(length, rel=1e-3)
    assert replay.without(Removal()).window_ns == length


@settings(max_examples=100, deadline=None)
@given(PROGRAMS, SUBSETS, SUBSETS)
def test_removing_more_never_saves_less(program: Program, one: Any, two: Any) -> None:
    facts = facts_of(built(program))
    replay = facts[Replay]
    first, second = chosen(facts, one), chosen(facts, two)
    together = replay.without(first | second).window_ns
    alone = [replay.without(removal).window_ns for removal in (first, second)]
    assert together <= min(alone)
    assert max(alone) <= replay.without(Removal()).window_ns


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, SPANS)
def test_host_time_saves_at_most_itself(program: Program, spans: list[tuple[float, float]]) -> None:
    facts = facts_of(built(program))
    host = chosen(facts, (spans, 0, 0)).host_spans
    removed = total(union(pairs([s for _, s, _ in host], [e for _, _, e in host])))
    replay = facts[Replay]
    start, end = replay.window
    assert end - start - replay.without(Removal(host_spans=host)).window_ns <= removed


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, SUBSETS)
def test_no_step_is_shorter_than_the_gpu_work_that_stays(program: Program, subset: Any) -> None:
    facts = facts_of(built(program))
    replay, removal, run = facts[Replay], chosen(facts, subset), facts.run
    stays = np.setdiff1d(run.gpu, removal.gpu_rows)
    names = np.array([run.names[run.name[row]] for row in stays.tolist()], dtype=object)
    engines = [  # copies to the device, to the host, and the rest run beside each other
        stays[[side in name for name in names]] for side in ("HtoD", "DtoH")
    ] + [stays[[not ("HtoD" in name or "DtoH" in name) for name in names]]]
    floor = max(total(union(clip(pairs(run.ts[rows], run.end[rows]), *replay.window))) for rows in engines)
    assert replay.without(removal).window_ns >= floor


@settings(max_examples=40, deadline=None)
@given(PROGRAMS, SUBSETS, st.integers(1, 10**9))
def test_the_clock_does_not_matter(program: Program, subset: Any, shift_us: int) -> None:
    here, there = facts_of(built(program)), facts_of(built(program, float(shift_us)))
    assert [s.dur for s in here[Steps].steps] == [s.dur for s in there[Steps].steps]
    a = here[Replay].without(chosen(here, subset))
    b = there[Replay].without(chosen(there, subset))
    assert (a.window_ns, a.share_of_step) == (b.window_ns, b.share_of_step)


def test_removals_join_without_order_or_repetition() -> None:
    a = Removal(host_spans=((0, 5, 9),), make_async=(3, 1))
    b = Removal(host_spans=((0, 1, 2), (0, 5, 9)), gpu_rows=(7,))
    assert a | b == b | a == (a | b) | a
    c = Removal(gpu_shorter=((4, 10), (7, 3)), host_share=0.5)
    d = Removal(gpu_shorter=((4, 2),), host_share=0.25)
    assert c | d == d | c == Removal(gpu_shorter=((4, 10), (7, 3)), host_share=0.25)
    assert replace(a | b, gpu_rows=()) == Removal(((0, 1, 2), (0, 5, 9)), (1, 3))


CALLS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)), max_size=30)


@given(spans=CALLS, drives=st.lists(st.booleans(), min_size=30, max_size=30))
def test_a_call_follows_the_last_that_ended_before_it_even_where_calls_have_no_length(
    spans: list[tuple[int, int, int]], drives: list[bool]
) -> None:
    spans.sort()
    start = np.array([s for s, _, _ in spans], dtype=np.int64)
    end = start + np.array([d for _, d, _ in spans], dtype=np.int64)
    driving = np.flatnonzero(drives[: len(spans)])
    by_end = driving[np.argsort(end[driving], kind="stable")]
    found = [
        int(by_end[at]) if at >= 0 else -1 for at in dependency_graph._last_before(end[by_end], by_end, start)
    ]
    assert found == [
        max(((end[j], j) for j in driving.tolist() if j < i and end[j] <= start[i]), default=(0, -1))[1]
        for i in range(len(spans))
    ]


@given(spans=CALLS)
def test_work_may_have_waited_for_what_ended_last_on_another_stream(
    spans: list[tuple[int, int, int]],
) -> None:
    start = np.array([s for s, _, _ in spans], dtype=np.int64) * 2000
    end = start + np.array([d for _, d, _ in spans], dtype=np.int64) * 2000
    streams = np.array([s for _, _, s in spans], dtype=np.int64)
    expected = []
    for i in range(len(spans)):
        ended = [(end[j], j) for j in range(len(spans)) if streams[j] != streams[i] and end[j] <= start[i]]
        last, j = max(ended, default=(0, -1))
        expected.append(j if start[i] - last <= dependency_graph.EVENT_NS else -1)
    assert dependency_graph._other_stream(streams, start, end).tolist() == expected
