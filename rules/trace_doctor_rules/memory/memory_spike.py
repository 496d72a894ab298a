"""TD403 memory-spike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trace_doctor import Cell, Claim, Context, NotCaptured, Rule, Table, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS, Reason
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import PeakPassed, PeakRecorded
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._memory_spike_evidence import made_again_after, made_within
from trace_doctor_rules.memory._remedies import ATTENTION, kind_of, remedies
from trace_doctor_rules.memory._shared import MiB, breakdown, in_one_unit, peak_saving, size

Mask = npt.NDArray[np.bool_]
_LOSS, _SDPA = techniques.chunked_loss().title, techniques.use_sdpa().title
_AS_WELL = {_LOSS: "with one chunk of the logits at a time", _SDPA: "without any score matrix"}
"""edit -> what else it takes off the peak"""


def _forwards(layers: int, scores: int, *, clock: bool = True) -> SnapshotBuilder:
    """Inference: every layer makes `scores` MiB of score matrices, of which the next operator needs only the last."""
    b = SnapshotBuilder(clock=clock)
    b.held(300 * MIB)
    for _ in range(layers):
        for line in range(4):
            with b.forward(line=10 + line):
                b.temporary(2 * MIB, MIB)
        with b.forward("/home/me/attention.py", 41, op="softmax"):
            b.temporary(scores * MIB, scores * MIB)
    return b


def _stages_of_one_matrix(beside: int = 8) -> SnapshotBuilder:
    """Each layer's scores are scaled, masked, normalised ... into a matrix of the same size, and three of them are there at
    any time: without those at the peak, others stand nearly as high. Or, with nothing `beside`, a model of equal layers."""
    b = SnapshotBuilder()
    b.held(4000 * MIB)
    for _ in range(20):
        for _ in range(beside):
            with b.forward(line=10):
                b.temporary(2 * MIB, MIB)
        stages: list[Any] = []
        for line in range(41, 46):
            with b.forward("/home/me/attention.py", line):
                stages.append(b.alloc(256 * MIB))
            if len(stages) == 3:
                b.free(stages.pop(0))
        b.free(*stages)
    return b


def _kept() -> SnapshotBuilder:
    """Large activations that backward needs."""
    b = SnapshotBuilder()
    b.train(4, activations=[600 * MIB] * 3)
    return b


def _weight_copies() -> SnapshotBuilder:
    """Autocast keeps copies of the weights for the whole forward: large, in one phase, but not short-lived."""
    b = SnapshotBuilder()
    b.held(800 * MIB)
    for _ in range(2):
        copies = []
        for layer in range(40):
            with b.forward(line=20 + layer, op="_to_copy"):
                copies.append(b.alloc(10 * MIB))
            with b.forward(line=20 + layer):
                b.temporary(2 * MIB, MIB)
        with b.script_line(70):
            b.free(*copies)
    return b


def _in_backward(node: str = "CatBackward0", size: int = 300, forward: int = 20) -> SnapshotBuilder:
    b = SnapshotBuilder()
    for _ in range(3):
        with b.forward(line=31):
            activations = [b.alloc(forward * MIB) for _ in range(20)]
        with b.backward(node):
            b.temporary(size * MIB, size * MIB)
        with b.backward():
            b.free(*activations)
        with b.optimizer_step():
            pass
    return b


def _attention_in_functions() -> SnapshotBuilder:
    """Attention by matmul and a softmax of exp and a division, called by the script: autograd saves exp and the quotient, and
    the backward of the division makes three more matrices of scores."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(3):
        with b.script_line(41, "attention"):
            scores = b.alloc(300 * MIB)
        with b.script_line(43, "softmax"):
            exp = b.alloc(300 * MIB)
            b.free(scores)
            weights = b.alloc(300 * MIB)
        with b.forward("/home/me/loss.py", 50, op="mse_loss"):
            b.temporary(MIB)
        with b.backward("BmmBackward0"):
            gradient = b.alloc(300 * MIB)
            b.free(weights)
        with b.backward("DivBackward0"):
            b.temporary(300 * MIB, 300 * MIB, 300 * MIB)
            b.free(gradient, exp)
        with b.optimizer_step():
            b.temporary(2 * MIB)
    return b


def _one_function_of_a_library() -> SnapshotBuilder:
    """Attention and the layer behind it call the same function of a library, which allocates."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    einsum = ("/venv/lib/python3.12/site-packages/einops/_backends.py", 291, "einsum")
    for _ in range(3):
        for line, mib in ((41, 300), (60, 200)):
            of_line = b.alloc(
                mib * MIB, frames=[einsum, (b.script, line, "forward"), (b.script, 99, "<module>")]
            )
            with b.forward():
                b.temporary(MIB)
            b.free(of_line)
        with b.backward():
            b.temporary(MIB)
        with b.optimizer_step():
            b.temporary(2 * MIB)
    return b


def _graphs_beside_a_spike() -> SnapshotBuilder:
    """Forwards with gradients and without a backward: each keeps its graph until its result goes, and ends with large logits."""
    b = SnapshotBuilder(annotate=False)
    b.held(100 * MIB)
    for _ in range(3):
        graph = []
        for layer in range(60):
            with b.forward(line=20 + layer % 6):
                graph.append(b.alloc(10 * MIB))
        with b.forward(line=40):
            b.temporary(150 * MIB)
        with b.script_line(70):
            b.free(*graph)
    return b


def _loss() -> SnapshotBuilder:
    """Logits in bf16, their log-softmax's gradient and the loss's."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(3):
        with b.forward(line=31):
            logits = b.alloc(300 * MIB)
        with b.backward("LogSoftmaxBackward0"):
            b.temporary(600 * MIB)
        with b.backward():
            b.free(logits)
        with b.optimizer_step():
            pass
    return b


def _foreach(parameters: int = 60) -> SnapshotBuilder:
    """step() makes a temporary for each parameter and frees them all when the last is there."""
    b = SnapshotBuilder()
    b.held(600 * MIB)
    for _ in range(2):
        with b.forward(line=31):
            b.temporary(*[MIB] * 40)
        with b.backward():
            b.temporary(*[MIB] * 40)
        with b.optimizer_step():
            temporaries = [b.alloc(10 * MIB) for _ in range(parameters)]
            b.free(*temporaries)
    return b


def _an_output_held_until_the_next() -> SnapshotBuilder:
    """Inference without a mark at its steps: `logits = model(x)` keeps the old ones until the new ones are there."""
    b = SnapshotBuilder(annotate=False)
    old = [b.held(MIB)]
    for _ in range(30):
        with b.forward(line=20):
            for _ in range(12):
                b.temporary(8 * MIB)
        with b.forward(line=30):
            new = b.alloc(600 * MIB)
        b.free(*old)
        old = [new]
    return b


def _few_operators_a_pass() -> SnapshotBuilder:
    """The same with one layer: its output lives for a few allocations, and for longer than a whole pass."""
    b = SnapshotBuilder(annotate=False)
    b.held(1900 * MIB)
    old = [b.held(MIB)]
    for _ in range(3):
        with b.script_line(10):
            x = b.alloc(190 * MIB)
        with b.forward(line=20):
            new = b.alloc(950 * MIB)
        with b.script_line(10):
            b.free(*old)
        old = [x, new]
    b.free(*old)
    return b


def _layers_called_by_the_script() -> SnapshotBuilder:
    """No module around them: a layer's result dies in the function of the script that follows it."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(30):
        with b.forward(line=31):
            wide = b.alloc(300 * MIB)
        with b.script_line(70):
            after = b.alloc(300 * MIB)
            b.free(wide)
        with b.forward(line=33):
            narrow = b.alloc(10 * MIB)
            b.free(after)
        with b.script_line(72):
            b.free(narrow)
    return b


def _ends_at_the_peak() -> SnapshotBuilder:
    """The record stops while the block is alive: nothing says that it is short-lived."""
    b = SnapshotBuilder()
    for line in range(30):
        with b.forward(line=line):
            b.temporary(2 * MIB)
    with b.forward(line=50):
        b.alloc(900 * MIB)
    return b


def _with_frames_of(stacks: Literal["cpp"] | None) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks, annotate=False)
    with b.forward():
        b.temporary(900 * MIB)
    return b


class MemorySpike(Rule):
    """Short-lived allocations set the peak, and so the memory that the job needs.

    What it does
    Finds blocks allocated at the peak that are allocated and freed within one phase of the step and live for a few
    allocations only; all that one `optimizer.step()` makes and frees counts as well. It then replays the record without the
    operators that allocate them.

    Why is this bad
    The peak limits the batch size, not what is allocated most of the time. A score matrix, an fp32 copy of the logits or a
    gradient of zeros that lives for a millisecond costs as much memory as a layer's weights.

    Evidence
    A snapshot's history. Activations saved for backward, optimizer state and weight copies that live through a whole forward
    are not counted. A history that is shorter than a step, or that begins near its peak or ends at it, is skipped if it shows no such tensors.
    Where what forwards save for a backward that never runs costs more, TD406 speaks of that.

    How the saving is estimated
    The reduction of peak allocated bytes without the short-lived blocks of these operators. Blocks as large at the next
    highest moment are left out as well. It is not the sum of their sizes, because another moment then becomes the peak. With several
    call sites a table gives the reduction of each alone. Where the fix is a chunked loss, the logits are left out too,
    because only one chunk of them exists at a time. An upper bound: the replacement needs some memory as well.

    Fix
    By operator: a chunked or fused loss, scaled_dot_product_attention, a fused or in-place optimizer, split() instead of
    slices, else smaller parts.

    Fix safety
    Unsafe, because results are not bitwise identical: scaled_dot_product_attention, the optimizer's
    `fused=True`. The script is edited only where it provably computes just that. The rest is shown only.

    When to ignore
    When the peak leaves enough room for the batch you want.

    References
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """

    code = "TD403"
    name = "memory-spike"
    title = "Short-lived tensors set the memory peak"
    needs = (MemoryBlocks,)
    to_pass = (PeakRecorded, PeakPassed)
    about = ("temporaries", "workspaces")

    min_share: float = threshold(
        0.10,
        "reduction of the peak without it, as a share of the peak",
        unit="share",
        source="severity `critical` begins there",
    )
    min_bytes: int = threshold(
        64 * MiB,
        "reduction of the peak without it",
        unit="bytes",
        source="less does not allow another batch size",
    )
    max_lifetime: float = threshold(
        0.05,
        "lifetime, as a share of the allocations per step",
        unit="share",
        source="real snapshots: operators' temporaries live for 1-2%, autocast copies for a whole forward",
    )
    min_lifetime: int = threshold(
        8,
        "lifetime in allocations that always counts as short, for records of a few operators",
        source="silmont2000 mem_snapshot: 1-7",
    )

    max_presence: float = threshold(
        0.5,
        "allocations during which a tensor from many call sites is allocated, up to which it counts as one",
        unit="share",
        source="attention scores 0.2; gradients, which flow from layer to layer, 1",
    )

    VALID = [
        Valid("activations that backward needs", _kept),
        Valid("weight copies that live through the forward", _weight_copies),
        Valid("a record that ends at the peak", _ends_at_the_peak, skipped="ends at its peak"),
        Valid("an output that is held until the next one is there", _an_output_held_until_the_next),
        Valid("passes of few operators, each output held until the next one", _few_operators_a_pass),
        Valid("one layer after the other makes as large a result", lambda: _stages_of_one_matrix(beside=0)),
        Valid("graphs that no backward uses are the larger part", _graphs_beside_a_spike),
        Valid("small", lambda: _forwards(20, 16), thresholds={"min_share": 0.0}),
        Valid("a small part", lambda: _forwards(20, 256), thresholds={"min_share": 0.7}),
        Valid("no frames", lambda: _with_frames_of(None), skipped="frames"),
    ]
    INVALID = [
        Invalid("C++ frames alone, and no phases", lambda: _with_frames_of("cpp"), confidence="medium"),
        Invalid(
            "score matrices",
            lambda: _forwards(20, 256),
            saving_bytes=509 * MIB,
            message="mostly from softmax in forward() (/home/me/attention.py:41).",
            shown="softmax | 268435456 | 2 | 40.0 | None",
            codemod="use-sdpa",
            confidence="high",
            file="/home/me/attention.py",
            line=41,
        ),
        Invalid("one matrix in five places", _stages_of_one_matrix, saving_bytes=3 * 256 * MIB, message="The first of 5 call sites alone does not lower the peak.", shown="attention.py:41) | 268435456 | 0"),
        Invalid("without a clock", lambda: _forwards(20, 256, clock=False), saving_bytes=509 * MIB, shown="268435456 | 2 | None | None"),
        Invalid("layers called by the script", _layers_called_by_the_script, saving_bytes=590 * MIB, shown="main() (/home/me/train.py:70) |  | 3"),
        Invalid("in backward", _in_backward, saving_bytes=600 * MIB, message="mostly from CatBackward0 (backward)."),
        Invalid(
            "in backward, as large as what a forward makes",
            lambda: _in_backward("MmBackward0", size=30, forward=30),
            message="(backward), likely of forward() (/home/me/model.py:31).",
            thresholds={"min_share": 0.05, "min_bytes": 60 * MIB},
            shown="40.0 | forward() (/home/me/model.py:31)",
            file="/home/me/model.py",
        ),
        Invalid(
            "attention in functions of the script",
            _attention_in_functions,
            message="(backward), likely of softmax() (/home/me/train.py:43). With those saved for backward, score matrices hold 1.46 GiB",
            saving_bytes=1498 * MIB,
            codemod="use-sdpa",
            file="/home/me/train.py",
            line=43,
        ),
        Invalid("lines that call one function of a library", _one_function_of_a_library, saving_bytes=100 * MIB, line=41),
        Invalid("the loss of a language model", _loss, saving_bytes=900 * MIB, fixes=("Chunk or fuse the loss",)),
        Invalid("a list of temporaries for all parameters of an optimizer", _foreach, saving_bytes=560 * MIB, codemod="optimizer-args"),
        Invalid("workspace of fused attention", lambda: _in_backward("ScaledDotProductEfficientAttentionBackward0"), codemod="sdpa-backend"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence = ctx[MemoryBlocks]
        if evidence.frames_kind == "none":
            raise NotCaptured("no frames recorded", CAPTURE_ADVICE)
        claims = [self._device(device, sure=evidence.frames_kind == "all") for device in evidence.devices]
        yield from (claim for claim in claims if claim is not None)
        if not any(claims) and any(map(self._begins_high, evidence.devices)):
            raise NotCaptured("the allocation history begins near its highest memory", CAPTURE_ADVICE)

    def _begins_high(self, device: DeviceBlocks) -> bool:
        """Whether tensors older than the record, which it frees, make it begin so near the peak that a lower one would not show."""
        history = device.history
        least = max(self.min_bytes, self.min_share * history.peak_bytes)
        older = int(history.size[(history.born == BEFORE) & (history.freed < history.n)].sum())
        return older >= least and int(history.live[0]) > history.peak_bytes - least

    def _device(self, device: DeviceBlocks, *, sure: bool) -> Claim | None:
        history = device.history
        short = self._short_lived(device)
        at_peak = short & history.alive(history.peak)
        if not at_peak.any():
            return None
        places = np.array([*_call_sites(device), ""], dtype=object)
        group = _group(device, short, at_peak, places[history.stack], self.max_presence)
        without = history.peak_without(group)
        fall = history.peak_bytes - without
        if fall < self.min_bytes or fall < self.min_share * history.peak_bytes:
            return None
        if history.peak_without(_unused_graphs(device)) < without:
            return None  # TD406 speaks of them
        stacks = _largest_first(device, at_peak)
        op = device.stacks.node(stacks[0]) or device.stacks.op(stacks[0])
        twins = _twins(device, at_peak)
        site = device.stacks.site(stacks[0])
        forward = device.stacks.site(twins[stacks[0]]) if site is None and stacks[0] in twins else None
        place = site or forward
        fixes = remedies(device.stacks, stacks, target(place), twins)
        more = _that_go_as_well(device, at_peak, fixes[0].title if fixes else "", twins)
        after = min(without, history.peak_without(group | more))
        peak_bytes = int(history.size[at_peak].sum())
        made_in = device.place(stacks[0])
        where = f" in {made_in}" if site is not None else f" ({made_in})"
        what = f"{op}{where}" if op and op not in made_in else made_in
        of = f", likely of {forward}" if forward is not None else ""
        shares = _shares(device, group, short, places[history.stack], without)
        named = next((alone for place, _, alone in shares if place == places[stacks[0]]), fall)
        alone = f"lowers the peak by {size(named)}" if named else "does not lower the peak"
        first = f" The first of {len(shares)} call sites alone {alone}." if len(shares) > 1 else ""
        saved = more & ~short & history.alive(history.peak)
        attention = bool(fixes) and fixes[0].title == _SDPA
        if attention and saved.any():
            scores = int(history.size[saved | (more & history.alive(history.peak))].sum())
            first = f" With those saved for backward, score matrices hold {size(scores)}."
        if attention:
            first += " Attention's score matrices grow with the square of the sequence length."
        return Claim(
            message=f"Short-lived tensors hold {in_one_unit(peak_bytes, history.peak_bytes)} at the peak, mostly from {what}{of}.{first}",
            confidence="high" if sure else "medium",
            title="Attention's score matrices raise the memory peak" if attention else "",
            saving=peak_saving(
                history.peak_bytes,
                after,
                "without the short-lived tensors of these call sites"
                + (f", and {_AS_WELL[fixes[0].title]}" if after < without else ""),
            ),
            location=location(place, device=device.device),
            evidence=[
                *([_places(shares)] if len(shares) > 1 else []),
                _table(device, at_peak, twins),
                breakdown(device, history.peak),
            ],
            fixes=fixes,
            key=made_in if site is None else site.file,
        )

    def _short_lived(self, device: DeviceBlocks) -> Mask:
        history, phases = device.history, device.phases
        allocations = np.concatenate([[0], np.cumsum(history.action == 1)])  # before each position
        per_step = int(allocations[-1]) / max(len(phases.step_ends), 1)
        lived = allocations[history.freed] - allocations[np.maximum(history.born, 0)]
        recorded = (history.born != BEFORE) & (history.freed < history.n)
        one_phase = phases.stretch_of(history.born) == phases.stretch_of(history.freed)
        few, of_a_step = lived <= self.min_lifetime, lived <= self.max_lifetime * per_step
        if not len(phases.step_ends):
            # How long a step is, nobody knows: what stays until it is made again stays for one, however few operators
            # that takes; but for a loop that fills a part of the record only.
            at = allocations[np.maximum(history.born, 0)]
            again = made_again_after(history.stack, at)
            few &= (lived < again) | (2 * made_within(history.stack, at) < int(allocations[-1]))
            of_a_step &= 2 * lived <= again
        # What step() makes and frees is its own, however many operators one list of foreach takes
        of_optimizer = device.phases.entry_stage[history.born] == Stage.OPTIMIZER
        short: Mask = recorded & one_phase & (few | of_a_step | of_optimizer)
        return short


def _call_sites(device: DeviceBlocks) -> list[str]:
    """For each stack what made its blocks. A library's function that several lines of the script call (einsum of einops) is
    a place of each of them, for what one line does away with the others still make."""
    stacks = range(len(device.stacks.stage))
    made_in, called_from = (
        [device.stacks.op_site(s) for s in stacks],
        [device.stacks.user_site(s) for s in stacks],
    )
    callers: dict[str, set[str]] = {}
    for made, caller in zip(made_in, called_from, strict=True):
        callers.setdefault(made, set()).add(str(caller))
    return [
        f"{made}, called from {caller}" if caller is not None and len(callers[made]) > 1 else made
        for made, caller in zip(made_in, called_from, strict=True)
    ]


def _group(
    device: DeviceBlocks, short: Mask, at_peak: Mask, place: npt.NDArray[np.object_], max_presence: float
) -> Mask:
    """All short-lived blocks of the places that made those at the peak; and of those that make as large ones where the
    highest moment is then: the scores, masked, as softmax makes them and as dropout leaves them are one matrix in many
    places, some of which are always there together. Not where one of them is nearly always there: it is what flows from
    layer to layer, not a spike."""
    history = device.history
    of_peak = short & np.isin(place, sorted(set(place[at_peak])))
    large = history.size == int(history.size[at_peak].max())
    members, more = of_peak.copy(), at_peak
    while more.any():
        members |= short & np.isin(place, sorted(set(place[more])))
        highest = int(history.live_without(members).argmax())
        more = short & ~members & history.alive(highest) & large
    first = int(history.born[members & large].min())
    there = history.bytes_over_time(members & large)[first:-1] > 0
    return of_peak if there[history.action[first:] == 1].mean() > max_presence else members


def _unused_graphs(device: DeviceBlocks) -> Mask:
    """What forwards save for a backward that never runs: without gradients it is not there."""
    unused: Mask = device.classes.where(ACTIVATIONS) & (device.classes.reason == Reason.LET_GO)
    return unused


def _that_go_as_well(device: DeviceBlocks, at_peak: Mask, fix: str, twins: dict[int, int]) -> Mask:
    """Blocks beside the short-lived ones that a fix does away with; none where it is not known to."""
    if fix == _LOSS:
        return _logits(device, at_peak)
    return _scores(device, at_peak, twins) if fix == _SDPA else np.zeros(len(at_peak), dtype=np.bool_)


def _scores(device: DeviceBlocks, at_peak: Mask, twins: dict[int, int]) -> Mask:
    """All score matrices: of the size of the largest at the peak, or (in 16 and 32 bits) of half or double of it, that a line
    of attention makes, or a backward where most forward tensors of this size are such. Also those that autograd saves, of
    every layer."""
    history = device.history
    attention = {
        s for s in np.unique(history.stack).tolist() if s >= 0 and kind_of(device.stacks, s) == ATTENTION
    }
    attention_twins = {s for s, twin in twins.items() if twin in attention}
    largest = int(
        history.size[at_peak & np.isin(history.stack, sorted(attention | attention_twins))].max(initial=0)
    )
    scores: Mask = np.zeros(len(at_peak), dtype=np.bool_)
    backward = device.stacks.stages(history.stack) == Stage.BACKWARD
    for alike in (history.size == largest, 2 * history.size == largest, history.size == 2 * largest):
        scores |= alike & np.isin(history.stack, sorted(attention))
        by_stack = np.bincount(history.stack[alike & ~backward & (history.stack >= 0)])
        if by_stack.any() and int(by_stack.argmax()) in attention:
            scores |= alike & backward
    return scores


def _logits(device: DeviceBlocks, at_peak: Mask) -> Mask:
    """What a loss in parts never holds whole besides: blocks of forward that stand at the peak beside the largest, as large or
    (in 16 bits) half as large, tokens x vocabulary all of them; and those of the same places in other steps."""
    history = device.history
    largest = int(history.size[at_peak].max())
    alike = (history.size == largest) | (2 * history.size == largest)
    forward = device.stacks.stages(history.stack) != Stage.BACKWARD
    there: Mask = alike & forward & history.alive(history.peak) & (history.stack >= 0)
    logits: Mask = alike & forward & np.isin(history.stack, np.unique(history.stack[there]))
    return logits


def _shares(
    device: DeviceBlocks, group: Mask, short: Mask, place: npt.NDArray[np.object_], without: int
) -> list[tuple[str, int, int]]:
    """(place, its bytes at the peak, fall of the peak without its blocks alone) of the places that the whole fall needs,
    the one that holds most first."""
    history = device.history
    at_peak = history.alive(history.peak)
    shares = []
    for name in sorted(set(place[group])):
        own = short & (place == name)
        alone = history.peak_bytes - history.peak_without(own)
        if alone or history.peak_without(group & ~own) > without:
            shares.append((name, int(history.size[own & at_peak].sum()), alone))
    return sorted(shares, key=lambda s: (-s[1], -s[2], s[0]))


def _places(shares: list[tuple[str, int, int]]) -> Table:
    return table(
        "Call sites of short-lived tensors",
        {"allocated at": "location", "at the peak": "bytes", "peak reduction alone": "bytes"},
        shares,
        15,
    )


def _largest_first(device: DeviceBlocks, blocks: Mask) -> list[int]:
    """Stacks of some blocks, those of the function that holds most first."""
    bytes_by_stack = Counter[int]()
    for s, own in zip(
        device.history.stack[blocks].tolist(), device.history.size[blocks].tolist(), strict=True
    ):
        bytes_by_stack[s] += own
    functions = {s: _function(device, s) for s in bytes_by_stack}
    by_function = Counter[str]()
    for s, count in bytes_by_stack.items():
        by_function[functions[s]] += count
    return sorted(
        bytes_by_stack,
        key=lambda s: (-by_function[functions[s]], -bytes_by_stack[s], device.stacks.op_site(s), s),
    )


def _function(device: DeviceBlocks, stack: int) -> str:
    site = device.stacks.site(stack)
    return device.stacks.op_site(stack) if site is None else f"{site.file} {site.function}"


def _twins(device: DeviceBlocks, blocks: Mask) -> dict[int, int]:
    """For stacks of backward: the forward stack that makes most blocks of the same size, whose gradient it may be."""
    history, stacks = device.history, device.stacks
    phases = device.phases
    if not len(phases.first):
        return {}
    recorded = history.born >= phases.first[0]
    forward = recorded & (phases.stage[phases.of(history.born)] == Stage.FORWARD)
    twins: dict[int, int] = {}
    backward = stacks.stages(history.stack) == Stage.BACKWARD
    for block in np.flatnonzero(blocks & backward):
        alike = history.stack[forward & ~backward & (history.size == history.size[block])]
        if len(alike):
            values, counts = np.unique(alike, return_counts=True)
            twins.setdefault(int(history.stack[block]), int(values[counts.argmax()]))
    return twins


def _table(device: DeviceBlocks, blocks: Mask, twins: dict[int, int]) -> Table:
    history, stacks = device.history, device.stacks
    allocations = np.concatenate([[0], np.cumsum(history.action == 1)])
    clock = history.time_us if len(history.time_us) and (history.time_us >= 0).all() else None
    rows: list[list[Cell]] = []
    chosen = np.flatnonzero(blocks)
    for b in chosen[np.lexsort((history.born[chosen], -history.size[chosen]))]:
        born, freed, stack = int(history.born[b]), int(history.freed[b]), int(history.stack[b])
        rows.append(
            [
                device.place(stack),
                stacks.node(stack) or stacks.op(stack) or "",
                int(history.size[b]),
                int(allocations[freed] - allocations[born]),
                None if clock is None else float(clock[freed] - clock[born]),
                device.place(twins[stack]) if stack in twins else None,
            ]
        )
    return table(
        "Short-lived tensors at the peak",
        {
            "allocated at": "location",
            "operator": "code",
            "size": "bytes",
            "lifetime (allocations)": "count",
            "lifetime": "us",
            "same-size forward": "location",
        },
        rows,
        15,
    )
