"""TD411 stale-graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from trace_doctor import Claim, Context, NotCaptured, Rule, threshold
from trace_doctor.arrays import I64
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import ACTIVATIONS
from trace_doctor.evidence.memory.stale_graphs import StaleGraphs, stale_graphs
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import OwnFrames, WholeSteps
from trace_doctor.evidence.trace.call_sites import Site, location
from trace_doctor.snapshot import Action
from trace_doctor.testing import MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import target
from trace_doctor_rules.memory._repeated_layers import once_read
from trace_doctor_rules.memory._shared import MiB, breakdown, holders, peak_saving, size

_VERIFY = "in a new snapshot each forward begins with as many allocated bytes as the previous one"


def _inference(
    *, keeps_graph: bool, rounds: int = 6, output: int = 1, grows: int = 0, lines: int = 4, pieces: int = 1
) -> SnapshotBuilder:
    """`output = model(x)` in a loop: the old value goes when the new one is there."""
    b = SnapshotBuilder(annotate=False)
    b.held(200 * MIB)
    old: list[Any] = []
    for i in range(rounds):
        with b.script_line(11):
            x = b.alloc(MIB)
        new = []
        for line in range(4):
            with b.forward("/home/me/model.py", 30 + line % lines):
                block = b.alloc((60 + grows * i) * MIB)
                if keeps_graph:
                    new.append(block)
                else:
                    b.free(block)
        with b.forward("/home/me/model.py", 40):
            new += [b.alloc(output * MIB) for _ in range(pieces)]
        b.free(*old, x)
        old = new
    return b


def _deep(*, rounds: int, dropped: bool = False) -> SnapshotBuilder:
    """A model of many equal layers and large weights, called with the same input again and again, with gradients; the
    record begins when it has been called before."""
    b = SnapshotBuilder(annotate=False)
    b.held(4000 * MIB)
    old = [b.held(20 * MIB) for _ in range(12 * 6)]
    for _ in range(rounds):
        new = []
        if dropped:
            b.free(*old)
        for _ in range(12):
            for line in range(6):
                with b.forward("/home/me/model.py", 30 + line):
                    new.append(b.alloc(20 * MIB))
        if not dropped:
            b.free(*old)
        old = new
    return b


def _still_there() -> SnapshotBuilder:
    """A graph that stands when the record ends, as at an out-of-memory error before the backward; another, of a model that
    was called later, has gone."""
    b = SnapshotBuilder(annotate=False)
    b.held(400 * MIB)
    for script in ("model.py", "score.py"):
        blocks = []
        for _ in range(12):
            for line in range(6):
                with b.forward(f"/home/me/{script}", 30 + line):
                    blocks.append(b.alloc(20 * MIB))
    b.free(*blocks)
    return b


def _training(*, logits: int, kept: bool, pieces: int = 1) -> SnapshotBuilder:
    """Training whose logits stay until the next ones are there, or go with the backward."""
    b = SnapshotBuilder()
    b.held(200 * MIB)
    old: list[Any] = []
    for _ in range(5):
        graph = _layers(b)
        output = []
        for n in range(pieces):
            with b.forward("/home/me/model.py", 40 + n):
                output.append(b.alloc(logits * MIB))
        b.free(*old)
        with b.backward():
            gradient = b.alloc(10 * MIB)
            b.free(*reversed(graph))
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient, *([] if kept else output))
        old = output if kept else []
    return b


def _one_ahead() -> SnapshotBuilder:
    """A pipeline: each forward runs before the backward of the one before."""
    b = SnapshotBuilder()
    b.held(200 * MIB)
    graph = _layers(b)
    for _ in range(5):
        ahead = _layers(b)
        with b.backward():
            gradient = b.alloc(10 * MIB)
            b.free(*reversed(graph))
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
        graph = ahead
    return b


def _layers(b: SnapshotBuilder) -> list[Any]:
    blocks = []
    for line in range(4):
        with b.forward("/home/me/model.py", 30 + line):
            blocks.append(b.alloc(60 * MIB))
    return blocks


def _no_frames() -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=None)
    b.temporary(MIB, MIB)
    return b


class StaleGraph(Rule):
    """What the previous forward left stays allocated until the next one ends.

    What it does
    Finds blocks of a forward that are alive when the next forward of the same code makes its last allocation, and that are
    freed before the one after that ends.

    Why is this bad
    `output = model(x)` in a loop keeps the old output until the new one is assigned. Without `torch.no_grad()` the output
    keeps its whole graph: the activations of two forwards are allocated together, and the batch could be twice as large. In
    training, backward frees the graph, but the logits stay.

    Evidence
    A snapshot's history with at least two forwards of the same code. They are told apart by the allocations between them, or
    by what is freed together: the graph of one, once that of the next is complete. The first may be older than the record
    and is then recognized by its sizes. In a record with backwards, one lies between the two forwards, and does not free the
    block. Parameters, gradients, optimizer state and a cache that grows with each call are not counted. That an output is not
    needed follows from when it is freed, and a loop that feeds it into the next forward looks the same: so it is an info
    finding. Blocks of three or more lines, or most of what the forward allocated, are a graph. A history without two whole
    forwards, or without a frame of the script, is skipped if it shows none.

    How the saving is estimated
    The reduction of peak allocated bytes when these blocks are freed before the next forward. For a graph in inference:
    when each is freed once the next one is computed, in every forward, also in the last one and in the one before the record,
    because without gradients none is saved. An upper bound.

    Fix
    `with torch.inference_mode():` around inference. In training: `del output, loss` at the end of the step, or a function
    around the step, whose variables are freed on return.

    Fix safety
    Shown only: code after the loop may read the last value.

    When to ignore
    When the next forward reads the previous output, such as a recurrent state.

    References
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
    """

    code = "TD411"
    name = "stale-graph"
    title = "Stale outputs retain the previous forward's memory"
    needs = (MemoryBlocks,)
    to_pass = (WholeSteps, OwnFrames)
    about = ("activations", "temporaries")

    min_share: float = threshold(
        0.10, "retained blocks of one forward, as a share of the peak", unit="share", source="the rule's list"
    )
    min_bytes: int = threshold(
        16 * MiB, "retained blocks of one forward", unit="bytes", source="as TD404's and TD405's"
    )
    min_forwards: int = threshold(
        1, "forwards that retain memory", source="two real records hold two forwards only"
    )

    min_graph: int = threshold(
        3,
        "lines (or blocks, most of what a forward allocated) that are a graph and not an output",
        source="a model returns logits and a loss",
    )

    VALID = [
        Valid("inference without gradients", lambda: _inference(keeps_graph=False)),
        Valid("each graph is dropped before the next forward", lambda: _deep(rounds=3, dropped=True), skipped="no backward pass"),
        Valid("one forward", lambda: _inference(keeps_graph=True, rounds=1), skipped="no backward pass"),
        Valid("a graph that stands when the record ends", _still_there, skipped="no backward pass"),
        Valid("a cache that grows with each call", lambda: _inference(keeps_graph=True, grows=2)),
        Valid("the backward frees everything", lambda: _training(logits=200, kept=False)),
        Valid("small logits", lambda: _training(logits=8, kept=True), thresholds={"min_share": 0.0}),
        Valid("a small part", lambda: _training(logits=200, kept=True), thresholds={"min_share": 0.5}),
        Valid("fewer times than asked for", lambda: _training(logits=200, kept=True), thresholds={"min_forwards": 5}),
        Valid("the next forward runs before the last backward", _one_ahead),
        Valid("no frames", _no_frames, skipped="frames"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "inference with gradients",
            lambda: _inference(keeps_graph=True),
            message="in main() (/home/me/train.py:10) holds up to 241 MiB per forward until the next one ends. It keeps its graph",
            confidence="medium",
            saving_bytes=362 * MIB,
            file="/home/me/train.py",
            line=10,
        ),
        Invalid(
            "inputs made once, the first graph older than the record",
            lambda: _deep(rounds=2),
            message="keeps its graph",
            saving_bytes=2840 * MIB,
            file="/home/me/train.py",
            line=10,
        ),
        Invalid("the second forward is all that was recorded", lambda: _deep(rounds=1), saving_bytes=2840 * MIB, message="keeps its graph"),
        Invalid("layers of one line", lambda: _inference(keeps_graph=True, lines=1, pieces=2), message="keeps its graph"),
        Invalid("three outputs of training", lambda: _training(logits=70, kept=True, pieces=3), message="Backward no longer needs it."),
        Invalid(
            "an output without its graph",
            lambda: _inference(keeps_graph=False, output=200),
            message="No backward needs it.",
            severity="info",
            fixes=("del output, loss",),
            thresholds={"min_bytes": 200 * MIB, "min_forwards": 5},
        ),
        Invalid("logits of training", lambda: _training(logits=200, kept=True), severity="info", message="200 MiB", saving_bytes=200 * MIB),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence = ctx[MemoryBlocks]
        if evidence.frames_kind in ("none", "cpp"):
            raise NotCaptured("no Python frames recorded", CAPTURE_ADVICE)
        for device in evidence.devices:
            graphs = stale_graphs(device)
            least = max(self.min_bytes, self.min_share * device.history.peak_bytes)
            if graphs.most(device) >= least and len(graphs.forwards) >= self.min_forwards:
                yield _claim(device, graphs, self.min_graph)


def _claim(device: DeviceBlocks, stale_graphs: StaleGraphs, min_graph: int) -> Claim:
    history = device.history
    site = _caller(device, stale_graphs)
    mask = np.zeros(len(history.size), dtype=np.bool_)
    mask[stale_graphs.blocks] = True
    graph = stale_graphs.inference and any(
        _is_graph(device, stale_graphs, f, min_graph) for f in stale_graphs.forwards.tolist()
    )
    without = _without(device, stale_graphs, graph=graph)
    fall = history.peak_bytes - without
    how = (
        "It keeps its graph although no backward runs."
        if graph
        else "No backward needs it."
        if stale_graphs.inference
        else "Backward no longer needs it."
    )
    at = f" in {site}" if site is not None else ""
    return Claim(
        message=f"An output{at} holds up to {size(stale_graphs.most(device))} per forward until the next one ends. {how}",
        confidence="medium",
        severity=None if fall and graph else "info",
        saving=peak_saving(
            history.peak_bytes,
            without,
            "with each of these tensors freed once the next one is computed, in every forward"
            if graph
            else "with these tensors freed before the next forward",
        )
        if fall
        else None,
        location=location(site, device=device.device),
        evidence=[
            holders(
                device.holders(mask),
                f"Retained by {len(stale_graphs.forwards)} forward{'s' if len(stale_graphs.forwards) > 1 else ''}",
            ),
            breakdown(device, history.peak),
        ],
        fixes=[techniques.release_output(_VERIFY, target(site), inference=graph)],
        key="graph" if graph else "output",
    )


def _without(device: DeviceBlocks, stale_graphs: StaleGraphs, *, graph: bool) -> int:
    """The peak after the fix. Without gradients no forward keeps a graph, neither this one nor the next: of each line's blocks
    what the following operator reads is there until its result is. What is older than the record has no line and would never
    have been made, nor would the forward have that stands at the end."""
    history = device.history
    if not graph:
        blocks, freed = stale_graphs.blocks, stale_graphs.until
        return min(history.peak_without(blocks, freed=freed), history.peak_bytes)
    of_graph = np.isin(history.stack, np.unique(history.stack[stale_graphs.blocks])) & (history.stack >= 0)
    if (history.born[stale_graphs.blocks] == BEFORE).any():
        of_graph |= history.freed == history.n
    of_graph &= device.classes.where(ACTIVATIONS)
    of_graph[stale_graphs.blocks] = True
    blocks, following = once_read(history, of_graph)
    with_it, until = _that_go_with_it(device, stale_graphs)
    more = ~of_graph[with_it]
    return history.peak_without(
        np.concatenate([blocks, with_it[more]]), freed=np.concatenate([following, until[more]])
    )


def _that_go_with_it(device: DeviceBlocks, stale_graphs: StaleGraphs) -> tuple[I64, I64]:
    """Blocks that a graph alone holds, its input say: they go when it does. And where the next forward begins."""
    history = device.history
    allocations = np.flatnonzero(history.action == Action.ALLOC)
    blocks, until = [stale_graphs.blocks[:0]], [stale_graphs.until[:0]]
    for forward in stale_graphs.forwards.tolist():
        own = stale_graphs.forward == forward
        freed, begins = history.freed[stale_graphs.blocks[own]], int(stale_graphs.until[own].min())
        there = (history.born != BEFORE) & (history.born < begins)
        first, behind = np.searchsorted(allocations, (freed.min(), freed.max()))
        went = np.searchsorted(allocations, history.freed)
        with_it = np.flatnonzero(there & (went >= first) & (went <= behind) & (history.freed < history.n))
        blocks.append(with_it)
        until.append(np.full(len(with_it), begins))
    return np.concatenate(blocks), np.concatenate(until)


def _is_graph(device: DeviceBlocks, stale_graphs: StaleGraphs, forward: int, least: int) -> bool:
    """Whether what one forward left behind is the graph of it. One older than the record is known by just that."""
    history = device.history
    blocks = stale_graphs.blocks[stale_graphs.forward == forward]
    stacks, born = history.stack[blocks], history.born[blocks]
    if (stacks < 0).any() or len(np.unique(stacks)) >= least:
        return True
    sizes = history.size[(history.born >= born.min()) & (history.born <= born.max())]
    return len(blocks) >= least and 2 * int(history.size[blocks].sum()) > int(sizes.sum())


def _caller(device: DeviceBlocks, stale_graphs: StaleGraphs) -> Site | None:
    """The line of the script that called the model, that of most bytes; of a graph older than the record, the line that
    made the next one."""
    history, by_site = device.history, Counter[Site]()
    known = stale_graphs.blocks[history.stack[stale_graphs.blocks] >= 0]
    blocks = known if len(known) else np.flatnonzero(device.classes.where(ACTIVATIONS) & (history.stack >= 0))
    sizes = np.bincount(history.stack[blocks], weights=history.size[blocks])
    for stack in np.unique(history.stack[blocks]).tolist():
        site = device.stacks.module_caller(stack)
        if site is not None:
            by_site[site] += int(sizes[stack])
    return max(by_site, key=lambda site: (by_site[site], str(site)), default=None)
