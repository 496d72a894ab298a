"""The collectives of several ranks, matched and accounted for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from read_captures import read_captures

import trace_doctor
from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.intervals import intersect, intervals, total
from trace_doctor.evidence.names.event_names import is_collective_kernel
from trace_doctor.evidence.rank_summary import RankOfJob, RankSummary, ranks_of_jobs
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import RunBuilder

MEGATRON = "astra-sim_astra-sim/*megatron_kineto_*.json"
DLRM = "facebookresearch_param/dlrm_kineto_worker*"


def _joined(folder: Path, pattern: str) -> list[RankOfJob]:
    captures, _ = read_captures(sorted((folder / "traces").glob(pattern)))
    return _ranks([Facts(capture) for capture in captures])


def _ranks(everything: list[Facts]) -> list[RankOfJob]:
    return ranks_of_jobs([RankSummary.of(facts, (Collectives, Steps)) for facts in everything])


@pytest.mark.parametrize("pattern", [MEGATRON, DLRM])
def test_waiting_and_transfer_are_the_exposed_communication(captures_dir: Path, pattern: str) -> None:
    everything = _joined(captures_dir, pattern)
    ranked = everything[0][RankedCollectives]
    assert ranked.ranks == tuple(range(8))
    assert ranked is everything[7][RankedCollectives], "made once for all ranks"
    for facts, wait, transfer in zip(everything, ranked.wait_ns, ranked.transfer_ns, strict=True):
        alone = intersect(facts[Collectives].alone, intervals(facts[Steps].spans("steady")))
        assert wait + transfer == pytest.approx(total(alone), rel=1e-6)


def test_every_collective_of_a_job_is_matched(captures_dir: Path) -> None:
    ranked = _joined(captures_dir, MEGATRON)[0][RankedCollectives]
    assert sum(m.start.shape[1] for m in ranked.matches) == 84
    for match in ranked.matches:
        assert (match.start.max(axis=0) < match.end.min(axis=0)).all()
        assert (match.wait.min(axis=0) == 0).all(), "the last rank waits for nobody"


def test_two_slow_ranks_of_eight_are_named(captures_dir: Path) -> None:
    files = sorted((captures_dir / "traces").glob(MEGATRON))
    found = [f for f in trace_doctor.analyze(*files).findings if f.code in ("TD601", "TD602", "TD606")]
    assert [f.code for f in found if f.severity != "info"] == ["TD602"]
    assert "Ranks 0 and 6" in found[0].message
    assert "operator dispatch" in found[0].message


def test_ranks_recorded_at_other_times_are_no_job(captures_dir: Path) -> None:
    everything = _joined(captures_dir, "*/trace_filter_sampled_rank-*")
    with pytest.raises(NotCaptured, match=r"overlap|one rank"):
        everything[0][RankedCollectives]


def _rank(rank: int, names: str, *, sequence: bool = False, later: float = 0.0) -> RunBuilder:
    """All-reduces of 100 us, one a step; `names` are their numbers in the job."""
    b = RunBuilder(rank=rank, world_size=2)
    for number in names:
        b.now = 1000.0 + int(number) * 1000 + later
        with b.step():
            more = {"Seq": int(number)} if sequence else {}
            b.launch(100, "ncclDevKernel_AllReduce", **more)  # type: ignore[arg-type]
            b.sync()
    return b


@pytest.mark.parametrize(
    ("names", "sequence", "matched"),
    [
        (("12345", "12345"), False, 5),
        (("12345", "345"), False, 3),  # one rank began to record later: counted from the end
        (("12345", "1234"), True, 4),  # one ended earlier: their numbers tell
        (("12345", "1234"), False, 4),  # or their time: counted from where it ended
        (("12345", "23456"), False, 4),
    ],
)
def test_collectives_are_matched_over_ranks(
    names: tuple[str, str], sequence: bool, matched: int, make_job: Callable[..., list[RankOfJob]]
) -> None:
    everything = make_job(*(_rank(r, n, sequence=sequence) for r, n in enumerate(names)))
    [match] = everything[0][RankedCollectives].matches
    assert match.start.shape == (2, matched)
    assert (np.ptp(match.start, axis=0) == 0).all()


def test_without_numbers_what_does_not_overlap_is_not_believed(
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    everything = make_job(_rank(0, "12345"), _rank(1, "12345", later=500.0))
    with pytest.raises(NotCaptured, match="do not overlap"):
        everything[0][RankedCollectives]


def test_ranks_that_were_recorded_at_other_times_are_said_to_be(
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    everything = make_job(_rank(0, "12345"), _rank(1, "12345", later=1e6))
    for rank, other in ((0, 1), (1, 0)):
        with pytest.raises(NotCaptured, match=f"rank {rank} was recorded at another time than rank {other}"):
            everything[rank][RankedCollectives]
    with pytest.raises(NotCaptured, match="one rank only"):
        make_job(_rank(0, "12345"))[0][RankedCollectives]


@pytest.mark.parametrize(
    ("ahead", "drift", "sequence", "clock"),
    [
        (3_400.0, 0.0, True, 3_400_000),
        (-40_000.0, 0.0, True, -40_000_000),
        (3_400.0, 20e-6, True, 3_400_000),
        (0.0, 0.0, True, 0),
        (3_400.0, 0.0, False, None),
        (-100_000.0, 1.0, True, None),  # runs at twice the speed: no clock does
    ],
)
def test_clocks_of_hosts_are_told_by_the_ends_of_numbered_collectives(
    ahead: float,
    drift: float,
    sequence: bool,
    clock: int | None,
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    """Rank 1 comes last to each of 100 and takes 9 us of them; its clock is ahead."""
    ranks = tuple(RunBuilder(rank=r, world_size=2) for r in range(2))
    for r, us in enumerate((50.0, 9.0)):
        for number in range(100):
            end = 100_000 + number * 1000.0
            ranks[r].now = end - us + r * (ahead + drift * end)
            with ranks[r].step():
                ranks[r].launch(us, "ncclDevKernel_AllReduce", **({"Seq": number} if sequence else {}))  # type: ignore[arg-type]
                ranks[r].sync()
    job = make_job(*ranks)
    if clock is None:
        with pytest.raises(NotCaptured, match="do not overlap"):
            job[0][RankedCollectives]
        return
    ranked = job[0][RankedCollectives]
    assert ranked.clock_ns[0] == 0
    assert ranked.clock_ns[1] == pytest.approx(clock, abs=5_000)
    [match] = ranked.matches
    assert (match.last == 1).all()
    assert set(match.wait[0].tolist()) == {41_000}


def test_the_clock_of_a_rank_is_told_by_way_of_another(make_job: Callable[..., list[RankOfJob]]) -> None:
    """Ranks 0 and 1, 1 and 2 meet; rank 2 is 5 ms ahead of both."""
    ranks = tuple(RunBuilder(rank=r, world_size=3) for r in range(3))
    for number in range(6):
        for r, b in enumerate(ranks):
            b.now = 10_000 + number * 1000.0 + (5_000 if r == 2 else 0)
            with b.step():
                for at, group in enumerate(((0, 1), (1, 2))):
                    if r in group:
                        b.wait(max(0, 10_300 + number * 1000 + at * 300 + (5_000 if r == 2 else 0) - b.now))
                        named = {"Process Group Name": str(at), "Seq": number}
                        b.launch(50, "ncclDevKernel_AllReduce", **named)  # type: ignore[arg-type]
                        b.sync()
    assert make_job(*ranks)[0][RankedCollectives].clock_ns == (0, 0, 5_000_000)


def test_a_broadcast_does_not_tell_the_clocks(make_job: Callable[..., list[RankOfJob]]) -> None:
    """Its root may be through long before the others."""
    ranks = tuple(RunBuilder(rank=r, world_size=2) for r in range(2))
    for number in range(6):
        for r, b in enumerate(ranks):
            b.now = 1000.0 + number * 1000 + 200 * r
            with b.step():
                b.launch(9, "ncclDevKernel_Broadcast", Seq=number)
                b.sync()
    assert make_job(*ranks)[0][RankedCollectives].clock_ns == (0, None)


def test_clocks_that_differ_by_more_than_a_collective_takes(make_job: Callable[..., list[RankOfJob]]) -> None:
    """Rank 1 comes last to each and takes 9 us; its clock is 20 us ahead."""
    ranks = (RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2))
    for b, ahead, us in zip(ranks, (0.0, 20.0), (50.0, 9.0), strict=True):
        for number in range(5):
            b.now = (number + 1) * 1000 + ahead - us
            with b.step():
                b.launch(us, "ncclDevKernel_AllReduce")
                b.sync()
    [match] = make_job(*ranks)[0][RankedCollectives].matches
    assert (match.start.max(axis=0) > match.end.min(axis=0)).all(), "none overlaps"
    assert (match.last == 1).all()
    assert match.wait[0].tolist() == [41_000] * 5


def test_two_collectives_are_matched_by_clocks_that_differ_little(
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    """Less than they are apart, and more than they take."""
    ranks = (RunBuilder(rank=0, world_size=2), RunBuilder(rank=1, world_size=2))
    for b, ahead in zip(ranks, (0.0, 20.0), strict=True):
        for number in range(2):
            b.now = (number + 1) * 1000 + ahead
            with b.step():
                b.launch(9, "ncclDevKernel_AllReduce")
                b.sync()
    [match] = make_job(*ranks)[0][RankedCollectives].matches
    assert match.start.shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)", "send and receive"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)", "expert dispatch"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)", "expert combine"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "all-reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(long)", "all-reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            "all-reduce",
        ),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", None),
        ("triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_0", None),
        ("void flash::flash_fwd_splitkv_combine_kernel<4>(flash::Flash_fwd_params)", None),
        ("void at::native::reduce_kernel<512, 1>(at::native::ReduceOp)", None),
    ],
)
def test_kernels_that_exchange_data_with_other_ranks(name: str, kind: str | None) -> None:
    assert is_collective_kernel(name) == (kind is not None)
    assert kind is None or kind_of(name) == kind


@pytest.fixture
def make_job() -> Callable[..., list[RankOfJob]]:
    def make(*ranks: RunBuilder) -> list[RankOfJob]:
        return _ranks([Facts(Capture(n, b.run())) for n, b in enumerate(ranks)])

    return make


def test_short_collectives_at_once_upon_another_do_not_undo_the_match() -> None:
    """The first of three takes long, the others are over sooner than the clocks of the GPUs differ: whether those two
    coincide nothing can tell, and little depends on it."""
    everything = []
    for rank, late in enumerate((0.0, 30.0, 500.0)):
        b = RunBuilder(rank=rank, world_size=3)
        for _ in range(6):
            with b.step():
                with b.op("aten::mm"):
                    b.launch(1000 + late)
                for us in (600 - late, 10, 10):
                    b.launch(us, "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)")
                b.sync()
        run = b.run()
        run.ts[run.gpu] += 30_000 * rank
        everything.append(Facts(Capture(rank, run)))
    ranked = _ranks(everything)[0][RankedCollectives]
    assert [m.start.shape[1] for m in ranked.matches] == [18]
    assert ranked.caused_ns[2] > 0.9 * sum(ranked.caused_ns)


def test_a_straggler_that_delays_ranks_through_others(make_job: Callable[..., list[RankOfJob]]) -> None:
    """Ranks 0 and 1, 2 and 3 meet, then 0 and 2, 1 and 3: rank 0 is 500 us late, and rank 3 waits for rank 1, which waited for it."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    for _ in range(4):
        with ExitStack() as steps:
            for r, b in enumerate(ranks):
                steps.enter_context(b.step())
                b.launch(1500 if r == 0 else 1000)
            for name, *groups in (("tp", (0, 1), (2, 3)), ("dp", (0, 2), (1, 3))):
                for group in groups:
                    meet = max(ranks[r].gpu_free for r in group)
                    for r in group:
                        said = {
                            "Process Group Name": name,
                            "Process Group Ranks": str(list(group)),
                            "Group size": 2,
                        }
                        ranks[r].launch(meet - ranks[r].gpu_free + 100, "ncclDevKernel_AllReduce", **said)  # type: ignore[arg-type]
            meet = max(b.gpu_free for b in ranks)
            for b in ranks:
                b.wait(meet - b.gpu_free)
                b.sync()
    ranked = make_job(*ranks)[0][RankedCollectives]
    assert ranked.saved_without([0]) == pytest.approx(500_000, rel=0.01)
    assert ranked.saved_without([1]) == ranked.saved_without([3]) == 0


@pytest.mark.parametrize("read", [4, 3])
def test_a_group_that_was_read_is_told_apart_whatever_else_is_missing(
    read: int, make_job: Callable[..., list[RankOfJob]]
) -> None:
    """Of a job of eight, a group of four: where a rank of it is missing, nothing longer than its fastest exchange is told."""
    ranks = tuple(RunBuilder(rank=r, world_size=8) for r in range(4))
    for n in range(6):
        for r, b in enumerate(ranks):
            with b.step():
                b.launch(1000 + (300 if r == 3 and n else 0))
                b.launch(400 - (300 if r == 3 and n else 0), "ncclDevKernel_AllReduce", **{"Group size": 4})  # type: ignore[arg-type]
                b.sync()
    ranked = make_job(*ranks[:read])[0][RankedCollectives]
    assert ranked.read == (read, 4)
    assert ranked.wait_ns[0] == (250_000 if read == 4 else 0)
    assert ranked.transfer_ns[0] + ranked.untold_ns[0] + ranked.wait_ns[0] == 400_000


def test_what_takes_longer_than_the_fastest_exchange_is_not_told(
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    ranks = tuple(RunBuilder(rank=r, world_size=8) for r in range(2))
    for us in (100, 400, 400, 400):
        for b in ranks:
            with b.step():
                b.launch(1000)
                b.launch(us, "ncclDevKernel_AllReduce")
                b.sync()
    ranked = make_job(*ranks)[0][RankedCollectives]
    assert (ranked.transfer_ns[0], ranked.untold_ns[0]) == (100_000, 225_000)


def test_what_a_straggler_costs_where_the_others_compute_meanwhile(
    make_job: Callable[..., list[RankOfJob]],
) -> None:
    """Rank 1 comes 400 us late to an exchange of 40 us, beside which rank 0 computes for 150 us: of 540 us 290 are saved."""
    ranks = tuple(RunBuilder(rank=r, world_size=2, launch_us=1, latency_us=1) for r in range(2))
    for number in range(6):
        for r, b in enumerate(ranks):
            b.now = start = 1000.0 + 540 * number
            with b.step():
                b.launch(500 if r else 100)
                b.now = start + (500 if r else 100)
                b.launch(40 if r else 440, "ncclDevKernel_AllReduce", stream=20)
                b.launch(40 if r else 150)
                b.now = start + 538
    assert make_job(*ranks)[0][RankedCollectives].saved_without([1]) == pytest.approx(290_000, rel=0.02)


class _Job:
    """A random job of some ranks and the time it takes: in each step pieces of compute, each followed by a collective on a stream
    of its own. Before some pieces compute waits for a collective: for the last one, or for one before."""

    STEPS = 4

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.ranks, self.pieces = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        self.late = [0] if rng.random() < 0.7 or self.ranks < 4 else [0, 1]
        shape = (self.STEPS, self.pieces, self.ranks)
        self.compute = rng.integers(50, 400, shape).astype(float)
        self.compute[:, :, self.late] += rng.integers(100, 600, (*shape[:2], len(self.late)))
        self.transfer = rng.integers(20, 300, shape[:2]).astype(float)
        self.packing = rng.integers(0, 2) * rng.integers(0, 60, self.pieces)
        self.lag = rng.integers(0, 3, self.pieces)
        self.waits = rng.random(self.pieces) < 0.4
        self.waits[0] = True
        everyone = list(range(self.ranks))
        self.groups = [
            everyone
            if rng.random() < 0.5
            else sorted(rng.permutation(self.ranks)[: int(rng.integers(2, self.ranks + 1))].tolist())
            for _ in range(self.pieces - 1)
        ] + [everyone]
        self.pauses = np.where(rng.random(shape) < 0.3, rng.integers(20, 200, shape), 0)

    def times(self, *, on_time: bool) -> tuple[list[list[tuple[float, float, int]]], list[list[float]]]:
        """us, by rank: (start, end, piece of a collective or -1) of all work, and the borders of steps. `on_time`: every collective
        begins when the last of the other ranks comes."""
        work: list[list[tuple[float, float, int]]] = [[] for _ in range(self.ranks)]
        borders: list[list[float]] = [[0.0] for _ in range(self.ranks)]
        at, ended = np.zeros(self.ranks), [np.zeros(self.ranks)] * 3
        others = [r for r in range(self.ranks) if r not in self.late]
        for step in range(self.STEPS):
            for piece in range(self.pieces):
                if self.waits[piece]:
                    at = np.maximum(at, ended[-1 - self.lag[piece]])
                at = at + self.pauses[step, piece]
                end = at + self.compute[step, piece]
                start = np.maximum(end, ended[-1]) + self.packing[piece]
                group = self.groups[piece]
                waiting = [r for r in group if r in others] if on_time else group
                ends = ended[-1].copy()
                if waiting:
                    ends[group] = start[waiting].max() + self.transfer[step, piece]
                ended.append(ends)
                for r in range(self.ranks):
                    work[r].append((float(at[r]), float(end[r]), -1))
                    if r in group:
                        work[r].append((float(start[r]), float(ends[r]), piece))
                at = end
            if step == self.STEPS - 1:
                at = np.maximum(at, ended[-1])
            for r in range(self.ranks):
                borders[r].append(float(at[r]))
        return work, borders

    def build(self) -> tuple[RunBuilder, ...]:
        """As captured."""
        work, borders = self.times(on_time=False)
        ranks = []
        for r in range(self.ranks):
            b = RunBuilder(rank=r, world_size=self.ranks, launch_us=0, latency_us=0)
            for step, (begin, end) in enumerate(zip(borders[r], borders[r][1:], strict=False)):
                b.now = 1000.0 + begin
                with b.step():
                    per_step = len(work[r]) // self.STEPS
                    for start, done, piece in sorted(work[r][step * per_step : (step + 1) * per_step]):
                        b.now = 1000.0 + start
                        if piece >= 0:
                            group = {
                                "Process Group Ranks": str(self.groups[piece]),
                                "Group size": len(self.groups[piece]),
                            }
                            b.launch(done - start, "ncclDevKernel_AllReduce", stream=20, **group)  # type: ignore[arg-type]
                        else:
                            b.launch(done - start)
                    b.now = 1000.0 + end
            ranks.append(b)
        return tuple(ranks)

    @property
    def saved(self) -> float:
        """ns of a step by which the others are through earlier where the stragglers are never last."""
        _, before = self.times(on_time=False)
        _, after = self.times(on_time=True)
        others = [r for r in range(self.ranks) if r not in self.late]
        return min(before[r][-1] - after[r][-1] for r in others) * 1e3 / self.STEPS


@pytest.mark.parametrize("seed", range(40))
def test_what_stragglers_cost_is_never_more_than_the_bound(
    seed: int, make_job: Callable[..., list[RankOfJob]]
) -> None:
    job = _Job(seed)
    ranked = make_job(*job.build())[0][RankedCollectives]
    bound = ranked.saved_without(job.late)
    assert bound >= job.saved * (1 - 1e-3) - 100
