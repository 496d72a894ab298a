"""TD403 memory-spike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trace_doctor import Cell, Claim, Context, NotCaptured, Rule, Table, threshold
from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import PeakPassed, PeakRecorded
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import MIB, Invalid, Valid
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory import _memory_spike_cases as cases
from trace_doctor_rules.memory._memory_spike_removal import (
    AS_WELL,
    SDPA,
    blocks_that_go,
    forward_twins,
    that_go_as_well,
    unused_graphs,
)
from trace_doctor_rules.memory._remedies import remedies
from trace_doctor_rules.memory._shared import MiB, breakdown, in_one_unit, peak_saving, size


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
        Valid("activations that backward needs", cases.kept),
        Valid("weight copies that live through the forward", cases.weight_copies),
        Valid("a record that ends at the peak", cases.ends_at_the_peak, skipped="ends at its peak"),
        Valid("an output that is held until the next one is there", cases.an_output_held_until_the_next),
        Valid("passes of few operators, each output held until the next one", cases.few_operators_a_pass),
        Valid(
            "one layer after the other makes as large a result", lambda: cases.stages_of_one_matrix(beside=0)
        ),
        Valid("graphs that no backward uses are the larger part", cases.graphs_beside_a_spike),
        Valid("small", lambda: cases.forwards(20, 16), thresholds={"min_share": 0.0}),
        Valid("a small part", lambda: cases.forwards(20, 256), thresholds={"min_share": 0.7}),
        Valid("no frames", lambda: cases.with_frames_of(None), skipped="frames"),
        Valid(
            "frames of what is there at the end only", lambda: cases.with_frames_of("state"), skipped="frames"
        ),
    ]
    INVALID = [
        Invalid("C++ frames alone, and no phases", lambda: cases.with_frames_of("cpp"), confidence="medium"),
        Invalid(
            "score matrices",
            lambda: cases.forwards(20, 256),
            saving_bytes=509 * MIB,
            message="mostly from softmax in forward() (/home/me/attention.py:41).",
            shown="softmax | 268435456 | 2 | 40.0 | None",
            codemod="use-sdpa",
            confidence="high",
            file="/home/me/attention.py",
            line=41,
        ),
        Invalid("one matrix in five places", cases.stages_of_one_matrix, saving_bytes=3 * 256 * MIB, message="The first of 5 call sites alone does not lower the peak.", shown="attention.py:41) | 268435456 | 0"),
        Invalid("without a clock", lambda: cases.forwards(20, 256, clock=False), saving_bytes=509 * MIB, shown="268435456 | 2 | None | None"),
        Invalid("layers called by the script", cases.layers_called_by_the_script, saving_bytes=590 * MIB, shown="main() (/home/me/train.py:70) |  | 3"),
        Invalid("in backward", cases.in_backward, saving_bytes=600 * MIB, message="mostly from CatBackward0 (backward)."),
        Invalid(
            "in backward, as large as what a forward makes",
            lambda: cases.in_backward("MmBackward0", size=30, forward=30),
            message="(backward), likely of forward() (/home/me/model.py:31).",
            thresholds={"min_share": 0.05, "min_bytes": 60 * MIB},
            shown="40.0 | forward() (/home/me/model.py:31)",
            file="/home/me/model.py",
        ),
        Invalid(
            "attention in functions of the script",
            cases.attention_in_functions,
            message="(backward), likely of softmax() (/home/me/train.py:43). With those saved for backward, score matrices hold 1.46 GiB",
            saving_bytes=1498 * MIB,
            codemod="use-sdpa",
            file="/home/me/train.py",
            line=43,
        ),
        Invalid("lines that call one function of a library", cases.one_function_of_a_library, saving_bytes=100 * MIB, line=41),
        Invalid("the loss of a language model", cases.loss, saving_bytes=900 * MIB, fixes=("Compute the loss in chunks", "Fuse the output layer")),
        Invalid("a list of temporaries for all parameters of an optimizer", cases.foreach, saving_bytes=560 * MIB, codemod="optimizer-args"),
        Invalid("workspace of fused attention", lambda: cases.in_backward("ScaledDotProductEfficientAttentionBackward0"), codemod="sdpa-backend"),
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
        group = blocks_that_go(device, short, at_peak, places[history.stack], self.max_presence)
        without = history.peak_without(group)
        fall = history.peak_bytes - without
        if fall < self.min_bytes or fall < self.min_share * history.peak_bytes:
            return None
        if history.peak_without(unused_graphs(device)) < without:
            return None  # TD406 speaks of them
        stacks = _largest_first(device, at_peak)
        op = device.stacks.node(stacks[0]) or device.stacks.op(stacks[0])
        twins = forward_twins(device, at_peak)
        site = device.stacks.site(stacks[0])
        forward = device.stacks.site(twins[stacks[0]]) if site is None and stacks[0] in twins else None
        place = site or forward
        fixes = remedies(device.stacks, stacks, target(place), twins)
        more = that_go_as_well(device, at_peak, fixes[0].title if fixes else "", twins)
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
        attention = bool(fixes) and fixes[0].title == SDPA
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
                + (f", and {AS_WELL[fixes[0].title]}" if after < without else ""),
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

    def _short_lived(self, device: DeviceBlocks) -> Bool:
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
        short: Bool = recorded & one_phase & (few | of_a_step | of_optimizer)
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


def _shares(
    device: DeviceBlocks, group: Bool, short: Bool, place: npt.NDArray[np.object_], without: int
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


def _largest_first(device: DeviceBlocks, blocks: Bool) -> list[int]:
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


def _table(device: DeviceBlocks, blocks: Bool, twins: dict[int, int]) -> Table:
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


def made_again_after(stack: I32, at: I64) -> I64:
    """For each block, the most allocations between two blocks of its stack: no limit where the stack made one only."""
    order = np.lexsort((at, stack))
    again = np.flatnonzero(np.diff(stack[order]) == 0)
    longest = np.zeros(int(stack.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(longest, stack[order][again], np.diff(at[order])[again])
    after: I64 = np.where(longest[stack] > 0, longest[stack], np.iinfo(np.int64).max)
    return after


def made_within(stack: I32, at: I64) -> I64:
    """For each block, the allocations from the first to the last block of its stack."""
    first = np.full(int(stack.max(initial=0)) + 1, np.iinfo(np.int64).max)
    last = np.zeros(len(first), dtype=np.int64)
    np.minimum.at(first, stack, at)
    np.maximum.at(last, stack, at)
    within: I64 = (last - first)[stack]
    return within
