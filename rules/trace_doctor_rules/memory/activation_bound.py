"""TD406 activation-bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trace_doctor import Claim, Context, NotCaptured, Rule, Saving, Table, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, GRAPH_BLOCKS, GRAPH_STACKS, Reason
from trace_doctor.evidence.memory.device_memory import DeviceMemory
from trace_doctor.evidence.memory.stale_graphs import StaleGraphs, stale_graphs
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import PeakPassed
from trace_doctor.evidence.trace.call_sites import Site, location
from trace_doctor.snapshot import Action
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._repeated_layers import (
    Repeats,
    checkpointing,
    live_when_recomputed,
    most_of,
    once_read,
    repeats,
    trains,
    with_the_batch,
)
from trace_doctor_rules.memory._shared import (
    NEARLY_FULL,
    breakdown,
    how_full,
    in_one_unit,
    peak_saving,
    size,
    where_tightest,
)

Mask = npt.NDArray[np.bool_]
LAYERS = 12
_VERIFY = "activations at the peak of a new snapshot are smaller"


def _layers(
    *,
    activations: tuple[int, ...] = (60, 40, 20),
    weights: int = 10,
    train: bool = True,
    oom: int = 0,
    stacks: str | None = "all",
    every_other: int = 0,
) -> SnapshotBuilder:
    """A model of twelve equal layers; each leaves blocks of these MiB for backward, or nothing in inference."""
    b = SnapshotBuilder(stacks=stacks, annotate=train)  # type: ignore[arg-type]
    b.held(LAYERS * weights * MIB)
    for _ in range(3):
        kept = []
        for n in range(LAYERS):
            for line, count in enumerate(activations):
                with b.forward("/home/me/model.py", 30 + line):
                    kept.append(b.alloc(count * MIB))
            if every_other and n % 2:
                with b.forward("/home/me/model.py", 50):
                    kept.append(b.alloc(every_other * MIB))
            if not train:
                b.free(*kept)
                kept = []
        if oom:
            with b.script_line(18):
                b.oom(oom * MIB, device_free=oom // 2 * MIB)
            break
        if train:
            with b.backward():
                gradients = b.alloc(MIB)
                b.free(*reversed(kept))
            with b.optimizer_step():
                b.temporary(MIB)
            with b.zero_grad():
                b.free(gradients)
    return b


def _two_layers() -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(3, parameters=(10 * MIB, 10 * MIB), activations=(200 * MIB, 300 * MIB))
    return b


def _key_value_cache() -> SnapshotBuilder:
    """Generation fills a cache that no backward will use."""
    b = SnapshotBuilder(annotate=False)
    b.held(300 * MIB)
    for _ in range(8):
        for line in (50, 51):
            with b.forward("/home/me/attention.py", line):
                b.alloc(100 * MIB)
    b.oom(GIB, device_free=100 * MIB)
    return b


def _evaluation(
    kept: tuple[int, ...], *, late: bool = False, weights: int = 10, forwards: int = 3
) -> SnapshotBuilder:
    """Forwards without a backward; of each layer blocks of these MiB live until the result is dropped, or the next is there."""
    b = SnapshotBuilder(annotate=False)
    b.held(LAYERS * weights * MIB)
    result: list[Any] = []
    for _ in range(forwards):
        old, result = result, []
        for _ in range(LAYERS):
            for line, count in enumerate(kept):
                with b.forward("/home/me/model.py", 30 + line):
                    result.append(b.alloc(count * MIB))
        with b.script_line(21):
            b.free(*(old if late else result))
    return b


def _gathers() -> SnapshotBuilder:
    """Each of twelve layers under FSDP gathers its parameters in forward and keeps them for backward."""
    fsdp = "/venv/site-packages/torch/distributed/fsdp/"
    gather = [
        (fsdp + "_flat_param.py", 1405, "_alloc_padded_unsharded_flat_param"),
        (fsdp + "_runtime_utils.py", 290, "_unshard"),
    ]
    model = [
        ("/venv/site-packages/torch/nn/modules/module.py", 1790, "_call_impl"),
        ("/home/me/train.py", 12, "main"),
    ]
    b = SnapshotBuilder()
    b.held(LAYERS * 10 * MIB)
    for _ in range(2):
        kept = []
        for _ in range(LAYERS):
            for line in range(3):
                kept.append(
                    b.alloc(40 * MIB, frames=[*gather, ("/home/me/model.py", 30 + line, "forward"), *model])
                )
        with b.forward():
            kept.append(b.alloc(MIB))
        with b.backward():
            b.temporary(MIB)
            b.free(*reversed(kept))
        with b.optimizer_step():
            b.temporary(MIB)
    return b


def _compiled(*, gradients: bool) -> SnapshotBuilder:
    """A compiled forward, the last thing recorded: every block has a line of its own in the generated code."""
    function = [("/venv/site-packages/torch/autograd/function.py", 575, "apply")] if gradients else []
    b = SnapshotBuilder(annotate=False)
    b.held(LAYERS * 10 * MIB)
    for line in range(LAYERS * 3):
        with b.forward("/home/me/model.py", 9):
            generated = ("/tmp/torchinductor_me/kb/ckbf.py", 1600 + line, "call")
            aot = ("/venv/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py", 672, "inner_fn")
            module = ("/venv/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
            script = ("/home/me/train.py", 12, "main")
            b.alloc(40 * MIB, frames=[generated, aot, *function, module, script])
    return b


class ActivationBound(Rule):
    """Most memory is saved for the backward pass.

    What it does
    Checks what is allocated where memory is tightest: at a failed allocation, else at the peak. Where activations are at least
    half of it, the rule finds the repeated layers that saved them, by the stacks that occur once in every layer.

    Why is this bad
    This is normal in training, and a problem only where memory runs out. The batch, the sequence or the model then cannot
    grow, although backward could recompute the activations of all layers but one.

    Evidence
    A snapshot's history: blocks allocated in the forward that live into backward. Activations grow with the batch, parameters
    and optimizer state do not. The device size comes from a failed allocation, a trace of the run, or the settings. If it is
    unknown, this is an info finding. A forward without gradients saves nothing and is not counted. A forward with gradients
    whose blocks are all freed together, without a backward, saved them for nothing: a warning if several forwards do. What the previous forward left is TD411's
    and not counted. Where the record ends with a forward, repeated layers or compiled code called by autograd decide. One that ends
    at its peak, not in a failed allocation, does not pass.

    How the saving is estimated
    That of checkpointing: the reduction of peak allocated bytes when every layer saves only its last block, the input of the
    next layer. The rest is freed from the end of the layer until its backward. An upper bound: recomputation has temporaries
    of its own. Smaller batches have a figure of their own, with half of all that grows with the batch. Where no backward uses
    them, each is freed once the next is computed.

    Fix
    `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` for each repeated block (HF `gradient_checkpointing`), or
    smaller batches and gradient accumulation. Without a backward: `with torch.inference_mode():` around the forward.

    Fix safety
    Unsafe: checkpointing runs the forward twice, and draws random numbers again in the same order. Accumulation is shown
    only: batch norm sees smaller batches.

    When to ignore
    When the batch is as large as you want it and the job fits.

    References
    https://docs.pytorch.org/docs/stable/checkpoint.html
    https://docs.pytorch.org/blog/activation-checkpointing-techniques/
    """

    code = "TD406"
    name = "activation-bound"
    title = "Activations dominate GPU memory"
    of_training = True
    needs = (MemoryBlocks, DeviceMemory)
    to_pass = (PeakPassed,)
    about = ("activations",)

    min_share: float = threshold(
        0.50,
        "activations, as a share of the bytes allocated where memory is tightest",
        unit="share",
        source="below, something else is the larger part",
    )
    min_unused: float = threshold(
        0.10,
        "the same, of activations that no backward uses",
        unit="share",
        source="they are of no use; a sure saving of this size is critical",
    )
    nearly_full: float = threshold(
        NEARLY_FULL,
        "peak, as a share of the device, from which this is a warning",
        unit="share",
        source="the peak leaves out the driver context, NCCL and fragmentation",
    )

    min_stacks: int = threshold(
        3, "allocation stacks per layer", source="a cache of keys and values has two, and no layers"
    )
    min_explained: float = threshold(
        0.75,
        "bytes that a layer count explains, as a share of those of the best count",
        unit="share",
        source="of several counts that fit, the largest is right",
    )

    VALID = [
        Valid("more weights than activations", lambda: _layers(weights=200)),
        Valid("graphs that no backward uses, a small part", lambda: _evaluation((6, 4, 2, 2, 1), weights=300)),
        Valid("inference keeps nothing", lambda: _layers(train=False)),
        Valid("a cache of keys and values", _key_value_cache),
        Valid("FSDP keeps the parameters that it gathered", _gathers),
        Valid("inference returns keys, values, attentions and hidden states", lambda: _evaluation((60, 60, 40, 20))),
        Valid("compiled inference whose results are kept", lambda: _compiled(gradients=False), skipped="ends at its peak"),
        Valid("no frames", lambda: _layers(stacks=None), skipped="no Python frames"),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "an allocation failed",
            lambda: _layers(oom=500),
            message="at the failed allocation (92%). 12 layers save 1.41 GiB for backward.",
            severity="warning",
            confidence="high",
            codemod="checkpoint-blocks",
            file="/home/me/model.py",
            line=30,
            saving_bytes=1120 * MIB,
            fix_bytes=(1120 * MIB, 720 * MIB),
            shown="forward() (/home/me/model.py:31) | mm | 1 | 41943040 | 12",
        ),
        Invalid("the device is nearly full", _layers, options={"device_bytes": 1700 * MIB}, severity="warning"),
        Invalid("room enough", _layers, options={"device_bytes": 80 * GIB}, severity="info", message="at the peak (92%)"),
        Invalid("nothing says how large the device is", _layers, severity="info", message="was not recorded"),
        Invalid(
            "evaluation with gradients",
            lambda: _evaluation((60, 40, 20, 20, 10)),
            message="No backward uses them",
            severity="warning",
            file="/home/me/train.py",
            saving_bytes=1700 * MIB,
        ),
        Invalid("one evaluation with gradients", lambda: _evaluation((60, 40, 20, 20, 10), forwards=1), message="No backward uses them", severity="info"),
        Invalid("graphs that no backward uses, beside larger weights", lambda: _evaluation((60, 40, 20, 20, 10), weights=300), message="(33%). 12 layers", severity="warning"),
        Invalid("each result held until the next is there", lambda: _evaluation((60, 40, 20, 20, 10), late=True), message="1.76 GiB of 1.88 GiB at the peak (94%), excluding the previous forward. 12 layers save 1.76 GiB"),
        Invalid("a compiled forward, cut before its backward", lambda: _compiled(gradients=True)),
        Invalid("every other layer makes one more", lambda: _layers(every_other=10), message=". 12 layers save"),
        Invalid("no equal layers", _two_layers, message="(88%). The device size", fixes=("checkpoint(", "accumulation")),
        Invalid("Python frames only", lambda: _layers(stacks="python"), confidence="medium"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence, memory = ctx[MemoryBlocks], ctx[DeviceMemory]
        if evidence.frames_kind in ("none", "cpp"):
            raise NotCaptured("no Python frames recorded", CAPTURE_ADVICE)
        for device in memory.tightest(evidence.devices, self.nearly_full):
            moment, stale = memory.moment(device), stale_graphs(device)
            activations = device.classes.where(ACTIVATIONS) & device.history.alive(moment)
            activations[stale.blocks[stale.until < moment]] = False  # TD411 speaks of these
            layers = repeats(
                device, moment, stale, min_stacks=self.min_stacks, min_explained=min(self.min_explained, 1.0)
            )
            live = int(device.history.live_without(stale.blocks, stale.until)[moment])
            activation_bytes = int(device.history.size[activations].sum())
            least = self.min_unused if _let_go(device, activations) else self.min_share
            if activation_bytes >= least * live and trains(device, activations, layers):
                yield self._claim(
                    memory, device, stale, activations, layers, sure=evidence.frames_kind == "all"
                )

    def _claim(
        self,
        memory: DeviceMemory,
        device: DeviceBlocks,
        stale: StaleGraphs,
        activations: Mask,
        found: Repeats | None,
        *,
        sure: bool,
    ) -> Claim:
        history, moment = device.history, memory.moment(device)
        unused = _let_go(device, activations)
        saving = None if found is None else _saving(device, found, stale, unused=unused)
        site = None if found is None else self._site(device, int(found.stacks[0]), unused=unused)
        layers = f" {found.count} layers save {size(found.bytes)} for backward." if found is not None else ""
        layers += " No backward uses them: the graph is freed unused." if unused else ""
        activation_bytes = int(history.size[activations].sum())
        live = int(history.live_without(stale.blocks, stale.until)[moment])
        where = where_tightest(memory, device)
        without = ", excluding the previous forward" if live < history.live[moment] else ""
        evidence = [breakdown(device, moment, where)]
        if found is not None:
            evidence.append(_table(device, found))
        return Claim(
            message=f"Activations hold {in_one_unit(activation_bytes, live)} {where} ({activation_bytes / live:.0%}){without}."
            f"{layers}{how_full(memory, device)}",
            confidence="high" if sure else "medium",
            severity="warning"
            if memory.pressed(device, self.nearly_full) or (unused and _again_and_again(device))
            else "info",
            saving=saving,
            location=location(site, device=device.device),
            evidence=evidence,
            fixes=[techniques.release_output(_VERIFY, target(site), inference=True)]
            if unused
            else [
                *(replace(fix, saving=saving) for fix in checkpointing(device, found, _VERIFY)),
                replace(techniques.gradient_accumulation(_VERIFY), saving=_half_the_batch(device, stale)),
            ],
            key="activations",
        )

    def _site(self, device: DeviceBlocks, stack: int, *, unused: bool) -> Site | None:
        """Where a layer makes most of it; of a graph that nobody uses where the model was called."""
        stacks = device.stacks
        return stacks.module_caller(stack) if unused else stacks.user_site(stack)


def _let_go(device: DeviceBlocks, activations: Mask) -> bool:
    """Most of them went with a graph that no backward used."""
    return most_of(device, activations, device.classes.reason == Reason.LET_GO)


def _again_and_again(device: DeviceBlocks) -> bool:
    """Several graphs went unused: one alone may be that of a record which ends before its backward."""
    history = device.history
    allocations = np.cumsum(history.action == Action.ALLOC)
    went = allocations[history.freed[device.classes.reason == Reason.LET_GO]]
    return int((np.unique(went, return_counts=True)[1] >= GRAPH_STACKS * GRAPH_BLOCKS).sum()) > 1


def _half_the_batch(device: DeviceBlocks, stale: StaleGraphs) -> Saving:
    """Accumulation with batches of half the size: half of all that grows with the batch, at most."""
    history = device.history
    live = history.live_without(stale.blocks, stale.until)
    of_batch = with_the_batch(device)
    of_batch[stale.blocks] = False
    without = int((live - history.bytes_over_time(of_batch) // 2).max())
    return peak_saving(int(live.max()), without, "with half of the activations, inputs and temporaries")


def _saving(device: DeviceBlocks, repeats: Repeats, stale: StaleGraphs, *, unused: bool) -> Saving | None:
    history = device.history
    before = int(history.live_without(stale.blocks, stale.until).max())
    if unused:
        graphs = device.classes.where(ACTIVATIONS) & (
            (device.classes.reason == Reason.LET_GO) | (history.freed == history.n)
        )
        blocks, until = once_read(history, graphs)
        also = ~np.isin(stale.blocks, blocks)
        blocks, until = (
            np.concatenate([blocks, stale.blocks[also]]),
            np.concatenate([until, stale.until[also]]),
        )
        return peak_saving(
            before,
            min(history.peak_without(blocks, until), before),
            "with each tensor freed once the next one is computed, because without gradients none is saved",
        )
    without = min(int(live_when_recomputed(device, repeats, stale).max()), before)
    if without == before:
        return None
    change = f"with only the last tensor of each of {repeats.count} layers saved until its backward"
    return peak_saving(before, without, change)


def _table(device: DeviceBlocks, repeats: Repeats) -> Table:
    history, stacks = device.history, device.stacks
    rows = [
        (
            device.place(s),
            stacks.op(s) or "",
            n,
            int(history.size[history.stack == s].max()),
            n * repeats.count,
        )
        for s, n in zip(repeats.stacks.tolist(), repeats.per_layer.tolist(), strict=True)
    ]
    return table(
        f"Saved for backward by each of {repeats.count} layers",
        {
            "allocated at": "location",
            "operator": "code",
            "blocks/layer": "count",
            "largest": "bytes",
            "total blocks": "count",
        },
        rows,
        12,
    )
