"""TD707 kv-cache-copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_doctor import NOTE_FROM, Claim, Context, Location, Rule, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.serving.block_copies import BlockCopies, BlockGroup
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.serving._shared import confidence, cost, must_show_a_habit

_MOST_ROWS = 8
_KIB = 1024
_DIRECTION = {"HtoD": "to the device", "DtoH": "to the host"}


def _offloading(
    copies: int = 128,
    *,
    bytes: int = 32 << 10,
    weights: int = 0,
    behind: bool = False,
    direction: str = "HtoD (Pinned -> Device)",
    sized: bool = True,
    steps: int = 12,
) -> RunBuilder:
    """Decode steps in which blocks are copied on a stream of their own. The forward waits for them, or (`behind`) runs alongside.
    `weights`: as many copies of 8 MiB in the same step."""
    b = RunBuilder()
    for _ in range(steps):
        with b.annotation("execute_context_0(0)_generation_8(8)"):
            if behind:
                b.launch(5000, "gemm")
            for _ in range(copies):
                b.copy(2, direction, bytes=bytes, stream=20)
            for _ in range(weights):
                b.copy(160, direction, bytes=8 << 20, stream=20)
            if not behind:
                b.sync(stream=20)
                b.launch(3000, "gemm")
        b.sync("cudaEventSynchronize")
        b.wait(10)
    if not sized:
        for event in b.events:
            event["args"].pop("bytes", None)
    return b


def _while_scheduling() -> RunBuilder:
    """The host schedules for 2 ms after each step; another thread copies blocks meanwhile, and no step waits for them."""
    b = RunBuilder()
    for _ in range(12):
        with b.annotation("execute_context_0(0)_generation_8(8)"):
            b.launch(3000, "gemm")
        b.sync("cudaEventSynchronize")
        with b.thread(200):
            for _ in range(128):
                b.copy(2, "DtoH (Device -> Pinned)", bytes=32 << 10, stream=20)
        b.wait(2000)
    return b


class KvCacheCopies(Rule):
    """Steps wait for many small copies between host and device, likely of blocks of the KV cache.

    What it does
    Counts copies of one size and direction in each step, and adds up the time in which the GPU does no other work and its next
    kernel waits for them, or the host is busy making them.

    Why is this bad
    A KV cache that does not fit the GPU is moved to the host and back, block by block and layer by layer. Each copy is a call of
    some microseconds, and moves kilobytes: the calls take longer than the transfer would.

    Evidence
    At least 32 copies between host and device of one size in a step, each 4 KiB or more and below 1 MiB: blocks of all layers have
    one size. Fewer or smaller copies are inputs and tokens of a step. Where larger copies in the same direction move more bytes, it
    is weights that are copied. Copies within the device do not count: models make them too. Time counts if the next kernel was
    launched already, the host was in a call that blocks, or the engine's thread was making the copies. Copies of another
    thread while the host schedules delay nothing. What a copy holds is not recorded, so confidence is at most medium.

    How the saving is estimated
    An upper bound: that time. Batched copies still take the time of the transfer.

    Fix
    Batch the copies, make blocks larger, or leave more memory to the KV cache, so that less is moved.

    Fix safety
    Only shown: it is an option of the server.

    When to ignore
    When computing the prompts again would take longer than the copies.

    References
    https://github.com/vllm-project/vllm/pull/38460
    """

    code = "TD707"
    name = "kv-cache-copies"
    title = "Steps wait for small KV cache copies"
    about = ("exposed_copy",)
    needs = (Steps, EngineSteps, BlockCopies, Moments)

    min_share: float = threshold(
        0.03,
        "time in which the GPU waits for these copies",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("copies alongside the forward", lambda: _offloading(behind=True)),
        Valid("few copies, inputs of a step", lambda: _offloading(30)),
        Valid("many tiny copies", lambda: _offloading(bytes=64)),
        Valid("large copies, each worth its call", lambda: _offloading(bytes=4 << 20)),
        Valid("weights, small ones among them", lambda: _offloading(weights=4)),
        Valid("within the device", lambda: _offloading(direction="DtoD (Device -> Device)")),
        Valid("by another thread while the host schedules", _while_scheduling),
        Valid("a small part of the step", _offloading, thresholds={"min_share": 0.5}),
        Valid("sizes are not recorded", lambda: _offloading(sized=False), skipped="sizes of copies"),
        Valid("two steps", lambda: _offloading(0, steps=2), skipped="only 1 engine step"),
    ]
    INVALID = [
        Invalid(
            "blocks are loaded before each step",
            _offloading,
            message="copies 128 blocks of 32 KiB to the device in 11 of 11 steps",
            confidence="medium",
            fixes=("Batch KV cache copies", "Keep more KV cache"),
        ),
        Invalid(
            "blocks are stored",
            lambda: _offloading(direction="DtoH (Device -> Pinned)"),
            message="to the host",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine, steps, blocks = ctx[EngineSteps], ctx[Steps], ctx[BlockCopies]
        waits = cost(total(blocks.waits) / 1e3, steps)
        if not blocks.groups or waits.share < self.min_share:
            must_show_a_habit(engine.steps, "engine step")
            return
        by_size = _by_size(blocks.groups)
        (size, direction), most = max(by_size.items(), key=lambda item: sum(g.copies for g in item[1]))
        count = len({group.step for group in blocks.groups})
        per_step = sum(g.copies for g in most) / len(most)
        yield Claim(
            message=(
                f"The server copies {per_step:,.0f} blocks of {size / _KIB:,.0f} KiB {_DIRECTION[direction]} in {count} of "
                f"{len(engine.steps)} steps, likely of its KV cache. The GPU waits {milliseconds(waits.us_per_step)} per step "
                "for such copies."
            ),
            confidence="low" if confidence(count, engine) == "low" else "medium",
            saving=waits.saving(
                "the time in which the GPU does no other work and waits for many small copies of one size"
            ),
            location=Location(device=engine.device),
            evidence=[
                table(
                    "Copies of blocks",
                    {
                        "direction": "text",
                        "block": "bytes",
                        "steps": "count",
                        "copies": "count",
                        "all": "bytes",
                    },
                    [
                        [_DIRECTION[d], b, len(groups), n := sum(g.copies for g in groups), n * b]
                        for (b, d), groups in by_size.items()
                    ],
                    most=_MOST_ROWS,
                )
            ],
            spans=ctx[Moments].longest(
                spans_of(blocks.waits), "waits for block copies", device=engine.device
            ),
            fixes=[techniques.batch_block_copies(_VERIFY), techniques.keep_cache_on_device(_VERIFY)],
            owned=spans_of(blocks.waits),
            key="copies",
        )


_VERIFY = "Record the same load again: TD707 is gone and steps are shorter"


def _by_size(groups: Sequence[BlockGroup]) -> dict[tuple[int, str], list[BlockGroup]]:
    found: dict[tuple[int, str], list[BlockGroup]] = {}
    for group in groups:
        found.setdefault((group.size, group.direction), []).append(group)
    return dict(sorted(found.items(), key=lambda item: -sum(g.copies for g in item[1])))
