from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor import analyze
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.streams import strip_of
from trace_doctor.evidence.trace.segments import KINDS, reduced
from trace_doctor.model import Segment
from trace_doctor.run import Cat

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NOTE, OP, CALL, KERNEL = Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.RUNTIME, Cat.KERNEL
tiles = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, len(KINDS) - 1)), min_size=1, max_size=300)


@settings(deadline=None)
@given(tiles, st.sampled_from([20, 60, 600]))
def test_reducing_keeps_the_time_of_every_kind_and_every_long_piece(made: list, most: int) -> None:
    lengths = np.array([n for n, _ in made], dtype=np.int64)
    kind = np.array([k for _, k in made], dtype=np.uint8)
    ends = 7 + np.cumsum(lengths)
    pieces = np.stack([ends - lengths, ends], axis=1)
    window = (7, int(ends[-1]))
    fewer, kinds = reduced(pieces, kind, window, most)
    assert len(fewer) <= max(most, len(KINDS))
    assert fewer[0, 0] == window[0]
    assert fewer[-1, 1] == window[1]
    assert (fewer[1:, 0] == fewer[:-1, 1]).all()
    for k in range(len(KINDS)):
        assert (fewer[kinds == k, 1] - fewer[kinds == k, 0]).sum() == lengths[kind == k].sum()
    long = np.flatnonzero(lengths >= (window[1] - window[0]) * len(KINDS) * 2 // most)
    for at in long.tolist():
        holds = (fewer[:, 0] <= pieces[at, 0]) & (fewer[:, 1] >= pieces[at, 1]) & (kinds == kind[at])
        assert holds.any(), "a long piece is gone"


def test_what_a_report_shows_of_a_small_run(facts: Callable[..., Facts]) -> None:
    events = [(NOTE, "ProfilerStep#0", 0, 100, {})]
    for n, (name, at, us, stream) in enumerate(
        [("gemm", 10, 30, 7), ("ncclDevKernel_AllReduce", 30, 30, 20), ("gemm", 70, 10, 7)], start=1
    ):
        events.append((CALL, "cudaLaunchKernel", at - 4, 2, {"correlation": n}))
        events.append((KERNEL, name, at, us, {"correlation": n, "stream": stream}))
    overview = facts(events)[Overview]
    (lane,) = overview.lanes()
    assert (lane.device, lane.label, lane.dur_us, lane.shown, lane.of) == (0, "GPU 0", 100.0, 8, 8)
    assert [(s.start_us, s.kind) for s in lane.segments] == [
        (0.0, "python"),
        (6.0, "launch"),
        (10.0, "compute"),
        (40.0, "comm"),
        (60.0, "python"),
        (66.0, "launch"),
        (70.0, "compute"),
        (80.0, "python"),
    ]
    assert [(strip.stream, strip.busy_us, strip.segments) for strip in lane.streams] == [
        (7, 40.0, [Segment(10.0, 30.0, "compute"), Segment(70.0, 10.0, "compute")]),
        (20, 30.0, [Segment(30.0, 30.0, "comm")]),
    ]
    assert [(k.name, k.kind, k.count, k.total_us, k.share) for k in overview.kernels()] == [
        ("gemm", "compute", 2, 40.0, 1.0),
        ("ncclDevKernel_AllReduce", "comm", 1, 30.0, 0.75),
    ]
    assert [(c.name, c.total_us, c.exposed_us) for c in overview.collectives()] == [
        ("ncclDevKernel_AllReduce", 30.0, 20.0)
    ]


def test_a_capture_of_the_cpu_has_a_lane_and_no_gpu_shares(facts: Callable[..., Facts]) -> None:
    overview = facts([(OP, "aten::mm", 0, 50, {}), (NOTE, "gloo:all_reduce", 60, 40, {})])[Overview]
    assert overview.kernels() == []
    assert [s.kind for lane in overview.lanes() for s in lane.segments] == ["compute", "python", "comm"]
    assert [(c.name, c.exposed_us) for c in overview.collectives()] == [("gloo:all_reduce", 40.0)]


def test_collectives_on_threads_of_their_own_are_all_that_the_ledger_calls_exposed() -> None:
    result = analyze(SAMPLES / "straggler" / "cpu" / "fault")
    for rank in (0, 1):
        ledger = sum(r.exposed_comm_ns for r in result.time_ledger if r.rank == rank)
        rows = {c.name: c.exposed_us * 1e3 for c in result.collectives if c.rank == rank}
        assert set(rows) == {"gloo:all_reduce", "c10d::allreduce_"}
        assert sum(rows.values()) == pytest.approx(ledger, rel=0.001)


def test_of_many_streams_the_busiest_are_shown_and_a_single_one_is_the_lane(
    facts: Callable[..., Facts],
) -> None:
    def streams(lengths: dict[int, int]) -> tuple[list[int], int]:
        events = [(NOTE, "ProfilerStep#0", 0, 1000, {})]
        events += [(KERNEL, "gemm", 10 * s, us, {"stream": s}) for s, us in lengths.items()]
        (lane,) = facts(events)[Overview].lanes()
        return [strip.stream for strip in lane.streams], lane.of_streams

    assert streams({7: 30}) == ([], 1)
    assert streams({n: 5 + n for n in range(9)}) == ([3, 4, 5, 6, 7, 8], 9)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 99), st.integers(0, 2)), min_size=1, max_size=200),
    st.sampled_from([8, 40]),
)
def test_a_strip_has_the_time_of_its_stream_however_coarse(work: list, most: int) -> None:
    spans = np.array([(at, at + length) for at, length, _ in work], dtype=np.int64)
    kind = np.array([k for *_, k in work], dtype=np.uint8)
    strip = strip_of(7, spans, kind, (0, 1000), most)
    busy = len({moment for at, end in spans.tolist() for moment in range(at, end)})
    assert strip.busy_us * 1000 == busy
    assert round(sum(s.dur_us for s in strip.segments) * 1000) == busy
    assert all(a.start_us + a.dur_us <= b.start_us + 1e-9 for a, b in pairwise(strip.segments))
