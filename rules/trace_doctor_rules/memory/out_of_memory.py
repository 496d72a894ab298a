"""TD410 out-of-memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from trace_doctor import Cell, Claim, Context, Fix, Rule, Saving, Table, Target, Unit, enough_first, threshold
from trace_doctor.evidence.memory.blocks import MemoryBlocks, category_name
from trace_doctor.evidence.memory.out_of_memory import Failure, OtherDevice, OutOfMemory
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.stale_graphs import stale_graphs
from trace_doctor.evidence.memory.whole_steps import PeakPassed
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import LOWER_PEAK, table, target
from trace_doctor_rules.memory._remedies import GENERAL, LOSS, blocks_of_kind, kind_of, remedies
from trace_doctor_rules.memory._repeated_layers import (
    Repeats,
    checkpointed,
    checkpointing,
    live_when_recomputed,
    with_the_batch,
)
from trace_doctor_rules.memory._shared import (
    MiB,
    breakdown,
    expandable_segments,
    holders,
    in_one_unit,
    mib,
    size,
    times,
)
from trace_doctor_rules.memory._still_to_come import (
    StillToCome,
    repeated_layers,
    short_in_one_piece,
    still_to_come,
)


def _fails(
    *,
    free: int | None = 100 * MIB,
    retries: bool = True,
    op: str = "log_softmax",
    held: int = 2 * GIB,
    state: bool = False,
    again: bool = False,
    stacks: Literal["all"] | None = "all",
) -> SnapshotBuilder:
    """Activations fill the device; then the loss asks for 1 GiB."""
    b = SnapshotBuilder(stacks=stacks)
    b.held(held)
    if state:
        b.train(2, parameters=[200 * MIB] * 4)
    kept = []
    for layer in range(40):
        with b.forward(line=10 + layer):
            kept.append(b.alloc(12 * MIB))
    with b.forward(line=60):
        b.temporary(700 * MIB)
    with b.forward("/home/me/loss.py", 22, op=op):
        if retries:
            b.release_cached()
        for _ in range(1 + again):
            b.oom(GIB, device_free=free or 0)
            if free is None:
                del b.entries[-1]["device_free"]
    return b


def _in_pieces(*, rise: int | None = None, trained: bool = False) -> SnapshotBuilder:
    """Free memory lies in pieces when the loss asks for 300 MiB. `trained`: a step of another batch went through before;
    `rise`: one of the same did, with so much more in its backward."""
    b = SnapshotBuilder()
    b.held(2 * GIB)
    if trained:
        b.train(1, parameters=[MIB], activations=[MIB])
    for fails in [True] if rise is None else [False, True]:
        kept, holes = [], []
        for layer in range(40):
            with b.forward(line=10 + layer):
                kept.append(b.alloc(12 * MIB))
            with b.forward("/home/me/mask.py", line=10 + layer):
                holes.append(b.alloc(6 * MIB))
            with b.forward("/home/me/norm.py", line=10 + layer):
                kept.append(b.alloc(1536 * 1024))
        b.free(*holes)
        with b.forward("/home/me/loss.py", 22, op="log_softmax"):
            if fails:
                b.release_cached()
                b.oom(300 * MIB, device_free=150 * MIB)
            else:
                kept.append(b.alloc(300 * MIB))
        if not fails and rise is not None:
            with b.backward():
                b.temporary(rise)
                b.free(*kept)
            with b.optimizer_step():
                b.temporary(MIB)
    return b


def _first_step(optimizer: str = "AdamW", *, copies: int = 1) -> SnapshotBuilder:
    """The first forward fails; of an equal number of blocks per size older than the record `copies`."""
    b = SnapshotBuilder()
    for count in [200, 300] * copies:
        b.held(count * MIB)
    with b.zero_grad(optimizer):
        pass
    for _ in range(12):
        for line in range(3):
            with b.forward(line=30 + line):
                b.alloc(40 * MIB)
    with b.forward("/home/me/loss.py", 22, op="log_softmax"):
        b.oom(600 * MIB, device_free=100 * MIB)
    return b


def _beside(share: float) -> SnapshotBuilder:
    """Another GPU of the process, of which it has reserved this share of what it could have had on the one that failed."""
    b, other = _fails(), SnapshotBuilder(device=1)
    other.held(round(share * (2 * GIB + 480 * MIB + 100 * MIB)))
    b.beside(other)
    return b


def _behind_the_loss(logits: int) -> SnapshotBuilder:
    """Logits and their log-softmax are there when backward asks for the gradient of a layer."""
    b = SnapshotBuilder()
    b.held(GIB)
    for layer in range(30):
        with b.forward(line=10 + layer):
            b.alloc(50 * MIB)
    with b.forward(line=60):
        b.alloc(logits)
    with b.forward("/home/me/loss.py", 22, op="log_softmax"):
        b.alloc(logits)
    with b.backward("MmBackward0"):
        b.oom(200 * MIB, device_free=20 * MIB)
    return b


def _trains() -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(3)
    return b


class OutOfMemoryRule(Rule):
    """An allocation failed: the GPU had no memory left.

    What it does
    Reports for every device with an out-of-memory entry what was requested and where, what was free, what was cached and in
    how large blocks, and what was allocated.

    Why is this bad
    The job ends, or repeats its step with a smaller batch.

    Evidence
    An `oom` entry in a snapshot's history (a file name alone is no evidence), and the replayed blocks and segments at that
    moment. Segments freed just before it are malloc's own retries. Other GPUs of the process are named where it reserves a
    small part of the failing GPU's memory on them. A snapshot does not show other processes, so that files of one rank of
    several are left out. What the step needs later is how far memory rose after the same allocation of the step before.
    Without one, a forward in training needs at least a gradient as large as the request. Where no step() was before and the
    record names the optimizer's class, its state counts as well: at most so many copies of the parameters. A history that ends at its peak without
    such an entry is skipped: whether the next allocation failed is not in it.

    How the saving is estimated
    The request has to fit, what follows it in the step, and the optimizer state that the first step() makes. Each fix says what it gives at most, and "not enough alone" where
    that is less than what is missing. Fixes that are enough come first.

    Fix
    Where other GPUs of the process are nearly empty: layers placed there. Where the free memory would be enough in one piece:
    `expandable_segments:True`. By the request itself: a chunked loss, scaled_dot_product_attention. By the largest category:
    checkpointing or smaller micro-batches for activations, an 8-bit optimizer or sharding for optimizer state.

    Fix safety
    The allocator setting is unsafe: what else sets or reads the variable does not show in a script. Checkpointing
    and scaled_dot_product_attention are unsafe: results are not bitwise identical. Smaller batches with
    accumulation and another optimizer are made only if you select them: the choice is yours.

    When to ignore
    When the script catches the error on purpose, to find the largest batch.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    code = "TD410"
    name = "out-of-memory"
    title = "GPU ran out of memory"
    needs = (OutOfMemory, MemoryBlocks)
    to_pass = (PeakPassed,)
    explained_by = ("TD402", "TD403", "TD404", "TD405", "TD406", "TD407", "TD411")

    main_holder: float = threshold(
        0.30,
        "share of allocated memory from which a category gets its own fix",
        unit="share",
        source="TD407's threshold",
    )
    nearly_empty: float = threshold(
        0.10,
        "of the memory that the process could have had on the failing GPU, what it reserves at most on one that is nearly empty",
        unit="share",
        source="the driver context, cuBLAS and a stray tensor take less; a part of a model takes more",
    )

    VALID = [
        Valid("no failure", _trains),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid(
            "too large",
            _fails,
            message="memory: 1,024 MiB requested in forward() (/home/me/loss.py:22), 100 MiB free, nothing cached. It is 924 MiB short",
            severity="critical",
            confidence="high",
            file="/home/me/loss.py",
            line=22,
        ),
        Invalid("in pieces", _in_pieces, message="Without fragmentation this request would fit. Largest", codemod="allocator-setting", missing=150 * MIB),
        Invalid(
            "in pieces, and backward needs more than the pieces",
            lambda: _in_pieces(trained=True),
            message="would fit, but what follows would be 177 MiB short. Backward is still to come and likely needs 300 MiB more for its gradient. Largest",
            fixes=("the tokens at a time", "tokens", "expandable_segments", "expandable_segments"),
            missing=450 * MIB,
        ),
        Invalid(
            "the step before went on",
            lambda: _in_pieces(rise=200 * MIB),
            message="would fit, but what follows would be 78 MiB short. In the step before, memory rose by 200 MiB more after this allocation. Largest",
            missing=350 * MIB,
            fix_bytes=(500 * MIB, 272 * MIB, 272 * MIB, 200 * MIB),
        ),
        Invalid("before the first step", _first_step, message="The state of AdamW, up to 1,000 MiB, does not exist yet.", missing=2100 * MIB),
        Invalid("before the first step, an optimizer with or without momentum", lambda: _first_step("SGD"), message="The state of SGD may still be to come", missing=1100 * MIB),
        Invalid("perhaps in a later step", lambda: _first_step(copies=3), message="The state of AdamW may still be to come", missing=1100 * MIB),
        Invalid("twice", lambda: _fails(again=True), message="memory twice, the last time: 1,024", fixes=("part of the tokens", "hidden states",)),
        Invalid("the process may take no more", lambda: _fails(free=2 * GIB), message="The process has reached its own limit"),
        Invalid("what was free is not in the file", lambda: _fails(free=None), message="Free memory was not recorded"),
        Invalid("without stacks", lambda: _fails(stacks=None), message="requested, 100 MiB free"),
        Invalid("weights hold most", lambda: _fails(op="mm"), fixes=("accumulation", "checkpoint(")),
        Invalid(
            "activations hold most",
            lambda: _fails(held=GIB),
            fixes=("tokens at a time", "hidden states", "accumulation", "checkpoint("),
            thresholds={"main_holder": 480 / 1504},
        ),
        Invalid("another GPU is nearly empty", lambda: _beside(0.09), message="This process reserves at most 238 MiB on GPU 1.", fixes=("cuda:1", "tokens at a time", "hidden states")),
        Invalid("another GPU is in use", lambda: _beside(0.11), message="Largest category", fixes=("tokens at a time", "hidden states",)),
        Invalid("optimizer state holds most", lambda: _fails(held=GIB, state=True), fixes=("hidden states", "8-bit", "tokens at a time")),
        Invalid(
            "backward fails beside logits that are the largest block",
            lambda: _behind_the_loss(600 * MIB),
            fixes=("Fuse the output layer", "Compute the loss in chunks", "checkpoint(", "Accumulate"),
        ),
        Invalid("beside logits that are small", lambda: _behind_the_loss(20 * MIB), fixes=("checkpoint(", "Accumulate")),
        Invalid("without a retry", lambda: _fails(retries=False), message="1,024 MiB requested"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        for failure in ctx[OutOfMemory].failures:
            yield self._claim(failure)

    def _claim(self, f: Failure) -> Claim:
        device, layers = f.device, repeated_layers(f)
        site = device.stacks.site(f.stack)
        where = f" in {device.place(f.stack)}" if f.stack >= 0 else ""
        alive = device.history.alive(f.moment)
        held = device.holders(alive)
        top = max((v, k) for k, v in device.at(f.moment).items())
        spare = f.nearly_empty(self.nearly_empty)
        later = still_to_come(f, layers)
        fixes: Sequence[Fix] = self._fixes(f, layers, spare, later.in_step, target(site))
        missing = None if f.missing is None else f.missing + later.bytes
        if missing is not None:
            fixes = enough_first(fixes, missing)
        return Claim(
            message=f"GPU {device.device} ran out of memory{_again(f)}: {mib(f.requested)} requested{where}{_state(f, later)} "
            f"{later.words}"
            + (
                _spare(spare)
                or f"Largest category: {category_name(top[1])}, {in_one_unit(top[0], f.live)} allocated."
            ),
            title=self._title(f, layers, top),
            confidence="high",
            severity="critical",
            location=location(site, device=device.device),
            evidence=[
                _numbers(f, later),
                breakdown(device, f.moment, "at the failed allocation"),
                holders(held, "Largest allocations"),
                *_others(f),
            ],
            fixes=fixes,
            missing_bytes=missing,
            key=f"{site.function if site else ''}",
        )

    def _title(self, f: Failure, layers: Repeats | None, top: tuple[int, str]) -> str:
        """With what filled the memory, where the record tells."""
        held, category = top
        if category not in _FILLS or held < self.main_holder * f.live:
            return self.title
        what = category_name(category)
        if (
            category == "activations"
            and layers is not None
            and self.main_holder * f.live <= layers.bytes <= held
        ):
            held = layers.bytes
            what += f" of {layers.count} layers{'' if checkpointed(f.device, int(layers.stacks[0])) else ' without checkpointing'}"
        more = f"{size(f.requested)} more were requested"
        if kind_of(f.device.stacks, f.stack) == LOSS:
            more = f"the loss requested {size(f.requested)} more"
        return f"{self.title}: {in_one_unit(held, f.live)} are {what}; {more}"

    def _fixes(
        self,
        f: Failure,
        layers: Repeats | None,
        spare: Sequence[OtherDevice],
        later: int,
        place: Target | None,
    ) -> list[Fix]:
        """Those that change least first; each with what it takes off what is needed here, at most."""
        device = f.device
        at = device.at(f.moment)
        fixes: list[Fix] = []
        if spare:
            elsewhere = f.live * len(spare) // (len(spare) + 1)
            fixes.append(_gives(techniques.other_devices(_FITS), elsewhere, "with the layers spread evenly"))
        if f.fits_if_packed and f.cached is not None:
            packed = "with all that is cached in one piece"
            fixes += [_gives(fix, f.cached, packed) for fix in expandable_segments(device.history.settings)]
        fixes += _of_the_loss(f) + _of_this_request(f, later, place)
        if at["activations"] >= self.main_holder * f.live:
            fixes += _fewer_activations(f, layers, later)
        if at["optimizer_state"] >= self.main_holder * f.live:
            fixes.append(_gives(_STATE, at["optimizer_state"] * 3 // 4, "with 8 instead of 32 bits"))
        return fixes or _fewer_activations(f, layers, later)


_FILLS = ("activations", "gradients", "optimizer_state", "parameters")
_FITS = "the step runs through, and the activations in a new snapshot are smaller"
_STATE = techniques.less_optimizer_state("optimizer state in a new snapshot is smaller")


def _gives(fix: Fix, saved: int, change: str) -> Fix:
    return replace(fix, saving=Saving(bytes=saved, basis="bound", how=change)) if saved else fix


def _of_this_request(f: Failure, later: int, place: Target | None) -> list[Fix]:
    """By what asked. A loss in chunks still keeps the log-softmax of all for backward; one fused with the output layer keeps
    no logits either."""
    alike = blocks_of_kind(f.device, f.moment, kind_of(f.device.stacks, f.stack))
    made = int(f.device.history.size[alike].sum()) + f.requested
    made += min(later, f.requested) if f.stage == Stage.FORWARD else 0
    how = "without this request, what the same code has made, and its gradient"
    found = [fix for fix in remedies(f.device.stacks, [f.stack], place) if fix.title != GENERAL]
    if not later or kind_of(f.device.stacks, f.stack) != LOSS:
        return [_gives(fix, made, how) for fix in found]
    chunked, fused, *rest = found
    return [
        _gives(
            chunked,
            made - f.requested,
            "without the copies and the gradient, of which one chunk exists at a time",
        ),
        _gives(fused, made + _logits(f, f.requested), f"{how}, nor the logits"),
        *rest,
    ]


def _of_the_loss(f: Failure) -> list[Fix]:
    """Where something else asked and the loss holds the largest block of those that grow with the batch, this request among
    them: its logits in 32 bits are as large. Up to its backward a log-softmax of all is kept."""
    size, stacks = f.device.history.size, f.device.stacks
    blocks = blocks_of_kind(f.device, f.moment, LOSS)
    if kind_of(stacks, f.stack) == LOSS or not len(blocks):
        return []
    largest = blocks[size[blocks].argmax()]
    others = with_the_batch(f.device) & f.device.history.alive(f.moment)
    if size[largest] < max(int(size[others].max(initial=0)), f.requested):
        return []
    place = target(stacks.site(int(f.device.history.stack[largest])))
    held = int(size[blocks].sum())
    kept = int(size[largest]) if f.stage == Stage.FORWARD else 0
    return [
        _gives(
            techniques.fused_loss(LOWER_PEAK, place),
            held + _logits(f, int(size[largest])),
            "without the loss's blocks and the logits",
        ),
        _gives(
            techniques.chunked_loss(LOWER_PEAK, place),
            held - kept,
            "with one chunk of the loss's blocks at a time",
        ),
    ]


def _logits(f: Failure, size: int) -> int:
    """What the layer behind the loss has made, of the size of the loss's blocks or, in 16 bits, half of it."""
    history, stacks = f.device.history, f.device.stacks
    alike = history.alive(f.moment) & (history.stack >= 0)
    alike &= (history.size == size) | (2 * history.size == size)
    return int(
        sum(history.size[b] for b in np.flatnonzero(alike) if kind_of(stacks, int(history.stack[b])) != LOSS)
    )


def _fewer_activations(f: Failure, layers: Repeats | None, later: int) -> list[Fix]:
    device, moment = f.device, f.moment
    saved, change = device.at(moment)["activations"], "without any activation"
    if layers is not None:
        recomputed = live_when_recomputed(device, layers, stale_graphs(device))
        saved = f.live - int(recomputed[moment])
        change = f"with only the last tensor of each of {layers.count} layers saved"
    of_batch = int(device.history.size[with_the_batch(device) & device.history.alive(moment)].sum())
    half = "with half of all that grows with the batch"
    if f.stage in (Stage.FORWARD, Stage.BACKWARD):
        of_batch += f.requested + later
        half += ", this request and what follows in the step included"
    return [
        *(_gives(fix, saved, change) for fix in checkpointing(device, layers, _FITS)),
        _gives(techniques.gradient_accumulation(_FITS), of_batch // 2, half),
    ]


def _again(f: Failure) -> str:
    return f" {times(f.count)}, the last time" if f.count > 1 else ""


def _state(f: Failure, later: StillToCome) -> str:
    if f.device_free is None or f.cached is None or f.largest_gap is None:
        return ". Free memory was not recorded."
    cached = (
        f"{mib(f.cached)} cached (largest block {mib(f.largest_gap)})"
        if f.cached >= MiB
        else "nothing cached"
    )
    text = f", {mib(f.device_free)} free, {cached}."
    if f.fits_if_packed:
        packed = f"{text} Without fragmentation this request would fit"
        short = short_in_one_piece(f, later)
        return f"{packed}, but what follows would be {mib(short)} short." if short else f"{packed}."
    if f.limited:
        return f"{text} The process has reached its own limit (set_per_process_memory_fraction)."
    return f"{text} It is {mib(f.requested - f.device_free - f.cached)} short even without fragmentation."


def _numbers(f: Failure, later: StillToCome) -> Table:
    rows: list[list[Cell]] = [
        ["requested", f.requested],
        ["free on the device", f.device_free],
        ["missing for this request", f.missing],
        ["needed later in the step", later.in_step or None],
        ["optimizer state to come, at most", later.state or None],
        ["reserved by this process", f.reserved],
        ["allocated (requested bytes)", f.live],
        ["cached, not allocated", f.cached],
        ["largest cached block", f.largest_gap],
        ["freed by the preceding retries", f.retried],
        ["usable device memory (free + reserved)", f.device_bytes],
    ]
    return table("State at the failed allocation", {"metric": "text", "bytes": "bytes"}, rows)


def _spare(spare: Sequence[OtherDevice]) -> str:
    """The other devices, where this process used little of them: moving a part of the model there is the real remedy."""
    if not spare:
        return ""
    names = [f"GPU {d.device}" for d in spare]
    whole = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    most = max(d.reserved for d in spare)
    each = " each" if len(names) > 1 else ""
    return f"This process reserves at most {mib(most)}{each} on {whole}."


def _others(f: Failure) -> list[Table]:
    """The other devices of this process: a full one beside empty ones is imbalance."""
    rows = [
        (
            d.device,
            d.allocated,
            d.reserved,
            "over the record" if d.over_record else "when the snapshot was written",
        )
        for d in f.others
    ]
    columns: dict[str, Unit] = {
        "device": "count",
        "allocated": "bytes",
        "reserved": "bytes",
        "at most": "text",
    }
    return [table("Other GPUs of this process", columns, rows)] if rows else []
