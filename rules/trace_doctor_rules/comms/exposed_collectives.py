"""TD601 exposed-collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Rule, Saving, Table, threshold
from trace_doctor.evidence.distributed.blame.evidence import JobBlame
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.distributed.ranks import listed, named
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import NOTHING, covered, intervals, subtract, total
from trace_doctor.evidence.trace.recorded_operators import RecordedLaunches
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.comms import _exposed_collectives_cases as cases
from trace_doctor_rules.comms._exposed_collectives_evidence import TENSOR, CollectiveExposure, ExposedKind

_WORTH_SAYING = 0.05
"""share of the time in collectives from which on a part of it is told apart"""


class ExposedCollectives(Rule):
    """The GPU communicates with other ranks and computes nothing meanwhile.

    What it does
    Finds steps with exposed collectives, which overlap with no compute, and simulates the steps without them. Waiting for a
    straggler is not communication: with traces of several ranks it is left to TD602, and the message gives its share.

    Why is this bad
    Gradients can be reduced while the rest of backward runs, and parameters gathered while the previous layer computes.
    Communication that is not overlapped with compute adds to every step, on every GPU.

    Evidence
    Collectives of NCCL, RCCL (or gloo) in the steady steps, or the kernels that exchange experts and activations instead
    (DeepEP, symmetric memory, all-reduces of vLLM, SGLang and TensorRT-LLM), with the time in which no compute ran
    alongside. With traces of several ranks that overlap in time only the transfer counts: the duration on the rank that
    arrives last. If ranks of a process group were not read, the last may be one of them: what takes longer than the fastest of
    that size on the ranks that were read is then waiting or transfer. Collectives are of tensor-parallel layers or
    data-parallel replicas if their process group says so, and of the former if it says nothing and they alternate with matrix products in forward.

    How the saving is estimated
    The captured steps are simulated without the collectives. With several ranks it is at most their exposed transfer, and at
    most what the rank with the least time in collectives can gain: the others would only wait for it. An upper bound: some
    communication always stays exposed. Where the host is the limit, the replay saves nothing. These are info findings:
    one rank alone of which the replay explains too little, where collectives take 10% of the step; exposure mostly in one
    of several steps; and exposure without which the step would hardly be shorter.

    Fix
    Data parallel: buckets that are reduced earlier, half the bytes, accumulated gradients reduced once (`no_sync`).
    Sharded (FSDP or DeepSpeed in the capture): prefetch the next block's parameters, wrap blocks that are large enough to
    overlap the next all-gather. Tensor parallel: fewer ranks per layer, sequence parallelism, async tensor parallelism; their result is
    needed at once. Otherwise: start the collective earlier and wait for it where its result is needed.

    Fix safety
    Unsafe: buckets and order change sums, so that they are not bitwise identical.

    When to ignore
    When the capture holds only the first steps, in which communicators are initialized: one collective that takes half of all
    time and three times as long as any other is left out.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD601"
    name = "exposed-collectives"
    title = "Communication is not overlapped with compute"
    about = ("exposed_comm",)
    needs = (CollectiveExposure,)
    wants = (RankedCollectives, JobBlame)
    to_pass = (RecordedLaunches,)

    min_share: float = threshold(
        0.05,
        "exposed communication, as a share of the steady steps",
        unit="share",
        source="TraceLens reports from 5% on",
        note_from=NOTE_FROM,
    )
    min_share_unexplained: float = threshold(
        0.10,
        "the same for an info finding: one rank alone of which the replay explains too little, or nothing to gain",
        unit="share",
        source="the exposed time is measured, the gain is not",
    )
    min_saving: float = threshold(
        0.03,
        "simulated saving, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("hidden behind compute", lambda: cases.rank(600, hidden=True)),
        Valid("too short to matter", lambda: cases.rank(40)),
        Valid("a small part", lambda: cases.rank(600), thresholds={"min_share": 0.9}),
        Valid("little to be had", lambda: cases.rank(600), thresholds={"min_saving": 0.9}),
        Valid("a communicator is set up", lambda: cases.rank(20, first_us=5000)),
        Valid("short, the replay explains too little, and other ranks are not at hand", lambda: cases.rank(200, stall_us=400)),
        Valid("one long collective in one step", lambda: cases.rank(5, first_us=2000, steps=1, small=3)),
        Valid("a file cut down to collectives", cases.cut_down, skipped="concurrent work not recorded"),
        Valid("the other rank has no more to win", cases.hidden_on_the_other),
        Valid("no collectives", lambda: cases.rank(1, name="gemm"), skipped="no collective"),
        Valid("waiting for the other rank, not transferring", cases.waiting_for_the_other),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "600 us after each step",
            lambda: cases.rank(600),
            saving_us=600,
            message="Communication (all-reduce) is exposed for 0.600 ms per step (23%). One rank's trace",
            shown="all-reduce | 5 | 3000.0 | 3000.0",
            fixes=("bucket_cap_mb", "bf16_compress_hook", "no_sync()"),
            confidence="medium",
        ),
        Invalid("behind a backlog of such", cases.with_backlog, saving_us=600, message="exposed for 0.600 ms"),
        Invalid("a communicator is set up first", lambda: cases.rank(600, first_us=9000), saving_us=600, tolerance=0.3),
        Invalid("one step with two equal ones", lambda: cases.rank(600, steps=1, small=1, small_us=600), confidence="low"),
        Invalid(
            "most of it in one step", cases.once, severity="info", message="Most of it is in one step.",
        ),
        Invalid("in many buckets", lambda: cases.rank(200, small=5, small_us=200), fixes=("bf16_compress_hook", "bucket_cap_mb", "no_sync()")),
        Invalid("of FSDP", lambda: cases.rank(600, name=cases.ALL_GATHER, mark="FSDP::pre_forward"), message="(all-gather)", fixes=("forward_prefetch",)),
        Invalid("of tensor parallelism inside FSDP", lambda: cases.rank(600, mark="FSDP::pre_forward"), fixes=("dist.all_reduce",)),
        Invalid("of DeepSpeed", lambda: cases.rank(600, name=cases.ALL_GATHER, mark="DeepSpeedEngine.forward"), fixes=("overlap_comm",)),
        Invalid("of the user's own", lambda: cases.rank(600, mark="forward"), fixes=("async_op",)),
        Invalid("of a host that is behind", cases.host_is_behind, message="hardly shorten the simulated step: the next kernels are launched so late", severity="info", thresholds={"min_saving": NOTE_FROM}),
        Invalid("in part waiting for the other rank", lambda: cases.waiting_for_the_other(400), saving_us=400, claims=2, message="exposed for 0.900 ms per step (47%). Of it 0.500 ms is waiting for other ranks and 0.400 ms transfer."),
        Invalid(
            "the other rank has less to win",
            lambda: cases.hidden_on_the_other(300),
            saving_us=200,
            claims=2,
            message="Rank 1 limits the gain to 0.200 ms.",
        ),
        Invalid(
            "of ranks most of which were not read",
            lambda: tuple(cases.rank(600 - 50 * r, rank=r, world_size=8, first_us=-500) for r in range(2)),
            message="Of it 0.0500 ms is waiting for other ranks, 0.0500 ms transfer and 0.400 ms waiting or transfer: 2 of 8",
            confidence="medium",
            claims=2,
        ),
        Invalid("of tensor-parallel layers", cases.split_layers, message="(all-reduce of tensor-parallel layers)", fixes=("_micro_pipeline_tp",)),
        Invalid("of such layers in inference", lambda: cases.split_layers(trains=False), message="of tensor-parallel layers", fixes=("disable_custom_all_reduce",)),
        Invalid("of such layers, as their group says", lambda: cases.split_layers(group="mesh_tp"), fixes=("<smaller> (now 8)",)),
        Invalid("of replicas, as their group says", lambda: cases.split_layers(group="mesh_dp"), fixes=("DistributedDataParallel reduces them",)),
        Invalid("of such layers, and more of gradients", lambda: cases.split_layers(fused=1000), fixes=("DistributedDataParallel reduces them",)),
        Invalid("of gradients, one by one", cases.gradients_by_hand, fixes=("DistributedDataParallel reduces them",)),
        Invalid("of two kinds", cases.of_two_kinds, message="(all-reduce and all-gather) is exposed"),
        Invalid("gathering, and nothing is sharded", lambda: cases.rank(600, name=cases.ALL_GATHER), message="all-gather", fixes=("dist.all_gather_into_tensor",)),
        Invalid("all-to-all by sends and receives", lambda: cases.rank(600, name=cases.SEND, asked="nccl:all_to_all"), message="Communication (all-to-all)", fixes=("dist.all_to_all_single",)),
        Invalid("all-to-all of TorchRec without its pipeline", lambda: cases.rank(600, name=cases.SEND, asked="nccl:all_to_all"), fixes=("while the other computes; TorchRec: TrainPipelineSparseDist",)),
        Invalid("all-to-all of TorchRec in its pipeline", lambda: cases.rank(600, name=cases.SEND, asked="nccl:all_to_all", mark="## wait_sparse_data_dist ##"), fixes=("while the other computes; TorchRec's pipeline, which runs already",)),
        Invalid("a kernel for everything", lambda: cases.rank(600, name=cases.GENERIC, asked="nccl:all_reduce"), message="Communication (all-reduce)", fixes=("bucket_cap_mb", "bf16_compress_hook", "no_sync()")),
        Invalid("stages of a pipeline", lambda: cases.rank(600, name=cases.SEND), message="send and receive", fixes=("micro-batches",)),
        Invalid("experts of other ranks", lambda: cases.rank(600, name=cases.COMBINE), message="expert combine"),
        Invalid(
            "both ranks transfer as long",
            lambda: (cases.rank(600), cases.rank(600, rank=1)),
            saving_us=600,
            message="exposed for 0.600 ms per step (23%).",
            confidence="high",
            claims=2,
        ),
        Invalid(
            "the replay explains too little, and other ranks are not at hand",
            lambda: cases.rank(600, stall_us=400),
            confidence="low",
            severity="info",
        ),
        Invalid(
            "the replay explains too little, but the ranks show what is transfer",
            lambda: (cases.rank(600, stall_us=400), cases.rank(600, rank=1, stall_us=400)),
            saving_us=600,
            confidence="medium",
            claims=2,
        ),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        own, ranks = ctx[CollectiveExposure], _among_ranks(ctx)
        guess = (ranks is None or ranks.untold_ns > ranks.transfer_ns) and own.has_gpu and not own.usable
        exposed = own.exposed_ns
        if ranks is not None:
            exposed = min(exposed, ranks.transfer_ns + ranks.untold_ns, ranks.least_ns)
        least = self.min_share_unexplained if guess else self.min_share
        if exposed < least * own.steady_ns:
            return
        saving, saved_us, share = own.saving, own.saved_us, own.share_of_step
        if exposed / 1e3 < saved_us:
            saved_us, share = exposed / 1e3, share * exposed / 1e3 / saved_us
            saving = _capped(saving, saved_us, share, waiting=ranks is not None)
        gains = share >= self.min_saving
        if not gains and (
            self.min_saving > NOTE_FROM or exposed < self.min_share_unexplained * own.steady_ns
        ):
            return
        parts = _of_this_rank(ctx, own)
        once = _in_one_step(own, parts)
        told = ranks is not None and ranks.untold_ns < _WORTH_SAYING * own.exposed_ns
        confidence: Confidence = "high" if told and own.usable else "medium"
        if not gains or guess or own.steps == 1 or (ranks is None and not own.has_gpu):
            confidence = "low"
        kinds = _by_transfer(ctx, own)
        sentences = [
            f"Communication ({' and '.join(str(kind) for kind, _ in kinds[:2])}) is exposed for "
            f"{milliseconds(own.exposed_ns / 1e3)} per step ({own.exposed_ns / own.steady_ns:.0%}).",
            *_of_it(own, ranks, kinds),
        ]
        if not gains:
            why = (
                ": the next kernels are launched so late that the GPU would then wait for the host"
                if own.has_gpu and own.launched_late
                else ""
            )
            sentences.append(f"Overlapping it would hardly shorten the simulated step{why}.")
        if once:
            sentences.append("Most of it is in one step.")
        yield Claim(
            message=" ".join(sentences),
            confidence=confidence,
            severity="info" if guess or once or not gains else None,
            saving=saving if gains else None,
            evidence=[_table(own)],
            spans=own.spans,
            fixes=_fixes(kinds, own),
            removal=own.removal if gains and ranks is None else None,
            owned=parts,
            key=kinds[0][0].name,
        )


class _Ranks(Struct, frozen=True):
    """What the collectives of a job say about those of one rank, ns of a steady step beside no compute."""

    rank: int
    transfer_ns: float
    wait_ns: float
    untold_ns: float
    """waiting for a rank that was not read, or transfer"""
    read: tuple[int, int]
    """how many ranks were read, of how many"""
    least_ns: float
    """in collectives on the rank that has least of it: what it does besides sets the pace of all"""
    least_rank: int
    late: tuple[int, ...] = ()
    """ranks that delay a job of several process groups"""
    late_ns: float = 0.0
    """the part of `wait_ns` for them"""
    most_ns: float = 0.0
    """the longest wait of a rank"""


def _among_ranks(ctx: Context) -> _Ranks | None:
    """None where other ranks were not recorded."""
    ranked = ctx.get(RankedCollectives)
    if ranked is None or ctx.rank not in ranked.ranks:
        return None
    own = ranked.ranks.index(ctx.rank)
    least = min(ranked.in_collectives_ns)
    blame, steady = ctx.get(JobBlame), ctx[CollectiveExposure]
    late = tuple(rank for root in blame.verdict.roots for rank in root.ranks) if blame is not None else ()
    positions = [ranked.ranks.index(rank) for rank in late if rank in ranked.ranks]
    for_them = covered(intervals(steady.intervals), ranked.waits_for(positions, ctx.rank)) if positions else 0
    return _Ranks(
        ctx.rank,
        ranked.transfer_ns[own],
        ranked.wait_ns[own],
        ranked.untold_ns[own],
        ranked.read,
        least,
        ranked.ranks[ranked.in_collectives_ns.index(least)],
        late,
        min(float(np.sum(for_them)) / steady.steps, ranked.wait_ns[own]),
        max(ranked.wait_ns),
    )


def _by_transfer(ctx: Context, own: CollectiveExposure) -> list[tuple[ExposedKind, float]]:
    """The kinds that are exposed, each with its ns of a steady step, the longest first: without waiting for other ranks, where they
    were recorded, as that makes a kind look longer where a late rank takes part."""
    ranked = ctx.get(RankedCollectives)
    waits = NOTHING
    if ranked is not None and ctx.rank in ranked.ranks:
        waits = ranked.waits_for(range(len(ranked.ranks)), ctx.rank)
    moving = [
        (kind, total(subtract(intervals(kind.intervals), waits)) / own.steps)
        for kind in own.kinds
        if kind.exposed_ns
    ]
    return sorted(moving, key=lambda each: -each[1])


def _of_it(
    own: CollectiveExposure, ranks: _Ranks | None, kinds: Sequence[tuple[ExposedKind, float]]
) -> Iterator[str]:
    """Sentences: what the exposed time is, and which rank limits what can be gained."""
    if ranks is None:
        yield "One rank's trace does not tell how much of it is waiting for other ranks."
        return
    transfer = min(own.exposed_ns, ranks.transfer_ns)
    said = _WORTH_SAYING * own.exposed_ns
    parts = [f"{milliseconds(ns / 1e3)} is waiting for {who}" for ns, who in _waits(ranks) if ns >= said]
    if ranks.untold_ns >= said:
        read, size = ranks.read
        yield (
            f"Of it {milliseconds(ranks.wait_ns / 1e3)} is waiting for other ranks, {milliseconds(transfer / 1e3)} transfer and "
            f"{milliseconds(ranks.untold_ns / 1e3)} waiting or transfer: {read} of {size} ranks were read."
        )
    elif len(shown := [f"{milliseconds(ns / 1e3)} {kind}" for kind, ns in kinds if ns >= said]) > 1:
        yield f"Of it {listed([*parts, *shown])}."
    elif parts:
        yield f"Of it {listed([*parts, f'{milliseconds(transfer / 1e3)} transfer'])}."
    if ranks.rank in ranks.late and ranks.most_ns >= said:
        yield f"Other ranks also wait up to {milliseconds(ranks.most_ns / 1e3)} for {'it' if len(ranks.late) == 1 else 'these ranks'} (TD602)."
    if ranks.least_ns < (1 - _WORTH_SAYING) * (transfer + ranks.untold_ns):
        yield f"Rank {ranks.least_rank} limits the gain to {milliseconds(ranks.least_ns / 1e3)}."


def _waits(ranks: _Ranks) -> list[tuple[float, str]]:
    """(ns of a steady step, for whom) of the waiting."""
    rest = (ranks.wait_ns - ranks.late_ns, "other ranks")
    return [(ranks.late_ns, f"{named(ranks.late).lower()} (TD602)"), rest] if ranks.late else [rest]


def _of_this_rank(ctx: Context, own: CollectiveExposure) -> Sequence[tuple[int, int]]:
    """The exposed time without waiting for other ranks, where they were recorded: TD602 says who is late."""
    ranked = ctx.get(RankedCollectives)
    if ranked is None or ctx.rank not in ranked.ranks:
        return own.intervals
    waits = ranked.waits_for(range(len(ranked.ranks)), ctx.rank)
    return spans_of(subtract(intervals(own.intervals), waits))


def _in_one_step(own: CollectiveExposure, parts: Sequence[tuple[int, int]]) -> bool:
    """Whether most of what is no waiting stands in one of several steps."""
    by_step = covered(np.array(own.steady, dtype=np.int64).reshape(-1, 2), intervals(parts)).tolist()
    return len(by_step) > 2 and 2 * max(by_step) > sum(by_step)


def _capped(saving: Saving, us: float, share: float, *, waiting: bool) -> Saving:
    """The saving, but no more than so much."""
    most = f"at most {milliseconds(us)}: the rest waits for other ranks, or another rank sets the pace"
    return Saving(
        time_us_per_step=us,
        share_of_step=share,
        basis=saving.basis,
        how=f"{saving.how}; {most if waiting else 'at most the exposed time'}",
    )


def _table(own: CollectiveExposure) -> Table:
    return table(
        "Collectives by kind",
        {"kind": "text", "count": "count", "total": "us", "exposed (steady)": "us"},
        [[str(kind), kind.count, kind.ns / 1e3, kind.exposed_ns / 1e3] for kind in own.kinds],
    )


FEW = 2
"""collectives of a step: the gradients lie in so few buckets that their exchange begins when backward is nearly over"""
_VERIFY = "record the same steps again: TD601 is gone, or its time is shorter"


_BESIDE = 0.2
"""part of the longest kind from which on another one gets its advice too"""


def _fixes(kinds: Sequence[tuple[ExposedKind, float]], own: CollectiveExposure) -> list[Fix]:
    """Of the kind that takes most, and of those of other process groups that take much."""
    most, least = kinds[0][0], _BESIDE * kinds[0][1]
    others = [kind for kind, ns in kinds[1:] if ns >= least and kind.parallelism != most.parallelism]
    found = [
        fix for kind in (most, *others) for fix in _fixes_of(kind, {each.name for each, _ in kinds[:2]}, own)
    ]
    return list({fix.title: fix for fix in found}.values())


def _fixes_of(kind: ExposedKind, names: set[str], own: CollectiveExposure) -> list[Fix]:
    """By what the capture shows: the wrapper, and that it is the one that asks for such collectives. `names`: of the two kinds
    that take most."""
    if kind.parallelism == TENSOR:
        return [techniques.split_layers(_VERIFY, kind.name, kind.group_size, trains=own.trains)]
    if own.deepspeed:
        return [techniques.overlap_in_deepspeed(_VERIFY)]
    if own.fsdp and {"all-gather", "reduce-scatter", "collectives"} & names:
        return [techniques.prefetch_shards(_VERIFY)]
    if own.ddp and kind.name in ("all-reduce", "collectives"):
        both = [techniques.ddp_buckets(_VERIFY), techniques.ddp_fewer_bytes(_VERIFY)]
        return [*(both if kind.per_step <= FEW else reversed(both)), techniques.no_sync(_VERIFY)]
    return [techniques.overlap_collective(_VERIFY, kind.name, pipelined=own.sparse_pipeline)]
