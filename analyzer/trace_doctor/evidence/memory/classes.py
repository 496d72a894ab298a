"""What each block of memory is: parameter, gradient, optimizer state, activation ...

Allocators know nothing of tensors. A block is classed by where it was allocated and by which parts of the training
step it outlives; blocks older than the record by their own frames, or by who frees them: `EVIDENT` is the list. What is
left is inferred from the classes of other blocks: `INFERRED`. Every class comes with its reason.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.evidence.memory.phases import Phases
from trace_doctor.evidence.memory.stages import WORKSPACE_BYTES, MemoryStacks, Stage
from trace_doctor.evidence.memory.timeline import BEFORE, DeviceHistory
from trace_doctor.model import MEMORY_CATEGORIES
from trace_doctor.snapshot import NO_STACK, Action

(
    PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, TEMPORARIES, WORKSPACES, HELD, UNKNOWN, UNSHARDED,
    WEIGHT_COPIES,
) = range(11)  # fmt: skip
assert MEMORY_CATEGORIES[HELD] == "held_before_recording"
MOST_WORKSPACES = 2
"""Blocks of a workspace's size without frames are workspaces only when they are so few: one per handle and stream."""
MOST_STATE_COPIES = 3
"""Optimizer state of a parameter is at most this many blocks of its size (AMSGrad)."""


GRAPH_STACKS, GRAPH_BLOCKS = 5, 4
"""A graph that is let go frees blocks of so many stacks, so many of each, between two allocations. Keys, values, attention
weights and hidden states of all layers, as inference may return them, are four."""
SAME_GRAPH = 0.9
"""Blocks older than the record that go at once are the graph of the forward before where so much of a recorded one's bytes
finds a block of its size among them."""


class Reason(enum.IntEnum):
    """How a class is known."""

    NONE = 0
    LIFETIME = 1
    FRAMES = 2
    FREED_IN_STEP = 3
    FREED_IN_ZERO_GRAD = 4
    FREED_IN_BACKWARD = 5
    SIZES = 6
    IN_PLACE = 7
    REPLACED = 8
    LET_GO = 9
    CAST = 10


REASONS = {
    Reason.LIFETIME: "by stage and lifetime",
    Reason.FRAMES: "by the frames of its allocation",
    Reason.FREED_IN_STEP: "older than the record, freed in optimizer.step()",
    Reason.FREED_IN_ZERO_GRAD: "older than the record, freed in zero_grad()",
    Reason.FREED_IN_BACKWARD: "older than the record, freed in backward",
    Reason.SIZES: "by their sizes",
    Reason.IN_PLACE: "older than the record, equal copies while no gradient outlives backward (accumulated in place)",
    Reason.REPLACED: "takes the place of a block of its size in optimizer.step()",
    Reason.LET_GO: "freed at once with the graph of their forward, which no backward used",
    Reason.CAST: "made by autocast, half the size of a weight",
}


class Classes(Struct, frozen=True):
    """One class and one reason per block of a history."""

    category: U8
    """index in MEMORY_CATEGORIES"""
    reason: U8

    def where(self, category: int) -> Bool:
        """Mask of the blocks of one category."""
        mask: Bool = self.category == category
        return mask


class Blocks(Struct, frozen=True):
    """What each block of a history shows by itself. Masks and columns are aligned with the history's blocks."""

    history: DeviceHistory
    stacks: MemoryStacks
    phases: Phases
    older: Bool
    """than the record"""
    freed: I64
    """entry of the free; n for what stands at the end, or at an out-of-memory error, whose unwinding frees everything"""
    kept: Bool
    """never freed"""
    stage: U8
    """that the block was allocated in; UNKNOWN for an older one without frames"""

    @classmethod
    def of(cls, history: DeviceHistory, stacks: MemoryStacks, phases: Phases) -> Blocks:
        """Stages of recorded blocks are those of their entries; Python outside of modules is of the phase it lies in."""
        older = history.born == BEFORE
        freed = history.freed.copy()
        for at in np.flatnonzero(history.action == Action.OOM):
            freed[(history.born < at) & (history.freed > at)] = history.n
        stage = stacks.stages(history.stack)
        stage[~older] = phases.entry_stage[history.born[~older]]
        script = ~older & (stage == Stage.SCRIPT)
        stage[script] = phases.stage[phases.of(history.born[script])]
        return cls(history, stacks, phases, older, freed, freed == history.n, stage)

    def recorded(self, *stages: Stage) -> Bool:
        """Blocks that the record saw being allocated in one of these stages."""
        return ~self.older & np.isin(self.stage, stages)

    def marked(self, column: Bool) -> Bool:
        """Blocks whose stack has a flag of `MemoryStacks`."""
        return self.stacks.marked(column, self.history.stack)

    def lives_into(self, stage: Stage) -> Bool:
        """Blocks that are there when the next phase of a stage begins."""
        return np.asarray(self.freed >= self.phases.next_of(self.history.born + 1, stage))

    @property
    def outlives_phase(self) -> Bool:
        """Mask of the blocks that are alive when the next phase begins."""
        return np.asarray(self.freed >= self.phases.next_start(self.history.born))

    @property
    def freed_in(self) -> U8:
        """Stage of the entry that frees each block, UNKNOWN for what stands at the end."""
        return np.append(self.phases.entry_stage, np.uint8(Stage.UNKNOWN))[self.history.freed]


# -- what a block shows by itself ------------------------------------------------------------------------------


def library_workspace(b: Blocks) -> Bool:
    """Allocated under a frame of cuBLAS or cuDNN that asks for scratch space."""
    return b.marked(b.stacks.workspace)


def gathered(b: Blocks) -> Bool:
    """Parameters that FSDP or ZeRO-3 gathers from all ranks: they may live from a forward to its backward, and are no
    activations. They do not grow with the batch."""
    return b.marked(b.stacks.unshards)


def workspace_sized(b: Blocks) -> Bool:
    """As large as a workspace of cuBLAS, never freed and without C++ frames, which would show one. 32 MiB is also a common
    weight (4096 x 4096 in bf16), so only where there are few of that size."""
    hidden = ~b.marked(b.stacks.native) & b.kept
    matches = np.zeros(len(b.older), dtype=np.bool_)
    for size in WORKSPACE_BYTES:
        alike = (b.history.size == size) & ~library_workspace(b)
        if alike.sum() <= MOST_WORKSPACES and hidden[alike].all():
            matches |= alike & (b.stage != Stage.OPTIMIZER)
    return matches


def state_by_hand(b: Blocks) -> Bool:
    """Made when an optimizer or an estimator of the script's own was built, and there in a forward or backward: no parameter,
    whatever size it has."""
    lasting = b.older | b.lives_into(Stage.FORWARD) | b.lives_into(Stage.BACKWARD) | b.kept
    return b.marked(b.stacks.state_by_hand) & lasting


def older_from_setup(b: Blocks) -> Bool:
    """Older than the record, with frames that build, move or load a module."""
    return b.older & b.marked(b.stacks.setup)


def older_from(b: Blocks, *, stage: Stage) -> Bool:
    """Older than the record, with frames of a stage."""
    return np.asarray(b.older & (b.stage == stage))


def older_freed_in(b: Blocks, *, stage: Stage) -> Bool:
    """Older than the record, and freed by a stage."""
    return np.asarray(b.older & (b.freed_in == stage))


def built(b: Blocks) -> Bool:
    """Made when a module was built, moved or loaded, and there in the next forward."""
    return ~b.older & b.marked(b.stacks.setup) & (b.lives_into(Stage.FORWARD) | b.kept)


def kept_from_the_start(b: Blocks) -> Bool:
    """Made by the script before any forward, and never freed: a weight or a batch, its size may tell."""
    forward = b.phases.next_of(np.zeros(1, np.int64), Stage.FORWARD)
    return b.recorded(Stage.SCRIPT) & b.kept & (b.history.born < forward) & ~b.marked(b.stacks.transfer)


def let_go_with_a_graph(b: Blocks) -> Bool:
    """A forward's blocks that no backward sees and that die together with many others: what one layer needs dies before
    the next allocates, what a graph keeps dies with the graph."""
    unused = b.recorded(Stage.FORWARD) & ~b.lives_into(Stage.BACKWARD) & ~b.kept
    blocks = np.flatnonzero(unused & (b.history.stack != NO_STACK))
    allocations = np.flatnonzero(b.history.action == Action.ALLOC)
    moment = np.searchsorted(allocations, b.freed[blocks])
    of_stack = moment * (int(b.history.stack.max(initial=0)) + 1) + b.history.stack[blocks]
    _, first, which, count = np.unique(of_stack, return_index=True, return_inverse=True, return_counts=True)
    stacks = np.bincount(moment[first[count >= GRAPH_BLOCKS]], minlength=len(allocations) + 1)
    graph = np.zeros(len(b.older), dtype=np.bool_)
    graph[blocks[(count[which] >= GRAPH_BLOCKS) & (stacks[moment] >= GRAPH_STACKS)]] = True
    return graph


def transferred(b: Blocks) -> Bool:
    """Copied to the device, or generated on it, outside of modules, and there for a later forward or backward."""
    used = b.lives_into(Stage.BACKWARD) | b.lives_into(Stage.FORWARD) | b.kept
    batch = b.marked(b.stacks.transfer) | b.marked(b.stacks.generated)
    return b.recorded(Stage.FORWARD, Stage.SCRIPT) & batch & used


def made_for_forward(b: Blocks) -> Bool:
    """Made by the script, and there in the next forward."""
    return b.recorded(Stage.SCRIPT) & b.lives_into(Stage.FORWARD)


def saved_for_backward(b: Blocks) -> Bool:
    """Made by a forward, and there in the next backward, or never freed."""
    return b.recorded(Stage.FORWARD) & (b.lives_into(Stage.BACKWARD) | b.kept)


def outlives_step(b: Blocks) -> Bool:
    """Made by an optimizer, and there after its step."""
    return b.recorded(Stage.OPTIMIZER, Stage.ZERO_GRAD) & b.outlives_phase


def outlives_backward(b: Blocks) -> Bool:
    """Made by a backward, and there after it."""
    return b.recorded(Stage.BACKWARD) & b.outlives_phase


def short_lived(b: Blocks) -> Bool:
    """Made by any stage, and nothing of the above."""
    return np.asarray(~b.older & (b.stage != Stage.UNKNOWN))


Predicate = Callable[[Blocks], Bool]
EVIDENT: tuple[tuple[Predicate, int, Reason], ...] = (
    (library_workspace, WORKSPACES, Reason.FRAMES),
    (gathered, UNSHARDED, Reason.FRAMES),
    (workspace_sized, WORKSPACES, Reason.SIZES),
    (state_by_hand, UNKNOWN, Reason.NONE),
    (older_from_setup, PARAMETERS, Reason.FRAMES),
    (partial(older_from, stage=Stage.FORWARD), ACTIVATIONS, Reason.FRAMES),
    (partial(older_from, stage=Stage.OPTIMIZER), OPTIMIZER_STATE, Reason.FRAMES),
    (partial(older_from, stage=Stage.BACKWARD), GRADIENTS, Reason.FRAMES),
    (partial(older_freed_in, stage=Stage.OPTIMIZER), OPTIMIZER_STATE, Reason.FREED_IN_STEP),
    (partial(older_freed_in, stage=Stage.ZERO_GRAD), GRADIENTS, Reason.FREED_IN_ZERO_GRAD),
    (partial(older_freed_in, stage=Stage.BACKWARD), ACTIVATIONS, Reason.FREED_IN_BACKWARD),
    (built, PARAMETERS, Reason.FRAMES),
    (kept_from_the_start, UNKNOWN, Reason.NONE),
    (let_go_with_a_graph, ACTIVATIONS, Reason.LET_GO),
    (transferred, INPUTS, Reason.FRAMES),
    (made_for_forward, INPUTS, Reason.LIFETIME),
    (saved_for_backward, ACTIVATIONS, Reason.LIFETIME),
    (outlives_step, OPTIMIZER_STATE, Reason.LIFETIME),
    (outlives_backward, GRADIENTS, Reason.LIFETIME),
    (short_lived, TEMPORARIES, Reason.LIFETIME),
)
"""The first that holds gives a block its class; UNKNOWN where none does."""

# -- what the classes of others tell ---------------------------------------------------------------------------

Assignment = tuple[Bool | I64 | int, int, Reason]
"""blocks (mask, positions or one position), class, reason"""


def by_size(b: Blocks, category: U8) -> Iterator[Assignment]:
    """Unclassed blocks of a gradient's size: the first copy is the parameter, more are state. So are a built module's."""
    unknown = (category == UNKNOWN) & (b.older | (b.kept & (b.stage == Stage.SCRIPT)))
    by_hand = (category == UNKNOWN) & state_by_hand(b)
    gradients = _gradient_sizes(b, category)
    if not gradients:
        yield from _in_place(b, np.flatnonzero(unknown & ~by_hand))
        return
    yield by_hand & np.isin(b.history.size, list(gradients)), OPTIMIZER_STATE, Reason.SIZES
    size = b.history.size
    setup = built(b) & (category == PARAMETERS)
    parameters = Counter(size[(category == PARAMETERS) & ~setup].tolist())
    state = _state_sizes(b, category)
    pool = np.flatnonzero((unknown & ~by_hand) | (setup & np.isin(size, list(gradients))))
    for block in pool[np.lexsort((b.history.addr[pool], b.history.born[pool]))].tolist():
        of = int(size[block])
        if parameters[of] < gradients[of]:
            parameters[of] += 1
            yield block, PARAMETERS, Reason.SIZES
        elif setup[block] or (b.older[block] and state[of] < MOST_STATE_COPIES * gradients[of]):
            state[of] += 1
            yield block, OPTIMIZER_STATE, Reason.SIZES


def _gradient_sizes(b: Blocks, category: U8) -> Counter[int]:
    """Sizes of the gradients of one backward, the one that left most."""
    gradients = np.flatnonzero(category == GRADIENTS)
    phase = np.where(b.older[gradients], BEFORE, b.phases.of(b.history.born[gradients]))
    sets = [gradients[phase == p] for p in dict.fromkeys(phase.tolist())]
    most = max(sets, key=lambda blocks: int(b.history.size[blocks].sum()), default=gradients)
    return Counter(b.history.size[most].tolist())


def _state_sizes(b: Blocks, category: U8) -> Counter[int]:
    """Known optimizer state alive together, at the first moment of most of it."""
    state = category == OPTIMIZER_STATE
    moment = int(b.history.bytes_over_time(state).argmax())
    return Counter(b.history.size[state & b.history.alive(moment)].tolist())


def _in_place(b: Blocks, pool: I64) -> Iterator[Assignment]:
    """No gradient outlives backward: they are older than the record, one more equal copy of each parameter."""
    size = b.history.size
    computed = size[b.recorded(Stage.BACKWARD)]
    pool = pool[np.isin(size[pool], computed) & b.kept[pool]]
    counts = Counter(size[pool].tolist())
    copies = int(np.gcd.reduce(list(counts.values()))) if counts else 0
    if not 2 <= copies <= 2 + MOST_STATE_COPIES:
        return
    for of, count in counts.items():
        blocks = pool[size[pool] == of]
        each = count // copies
        yield blocks[:each], PARAMETERS, Reason.IN_PLACE
        yield blocks[each : 2 * each], GRADIENTS, Reason.IN_PLACE
        yield blocks[2 * each :], OPTIMIZER_STATE, Reason.IN_PLACE


def replaced(b: Blocks, category: U8) -> Iterator[Assignment]:
    """A block that takes the place of a parameter in step() is a parameter, not state: the known block of its size that is
    freed next."""
    h = b.history
    known = np.isin(category, (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)) & (h.freed < h.n)
    phase_born, phase_freed = b.phases.of(h.born), b.phases.of(h.freed)
    freed_blocks: dict[tuple[int, int], list[int]] = defaultdict(list)
    order = np.argsort(h.freed, kind="stable")
    for block in order[known[order]].tolist():
        freed_blocks[int(phase_freed[block]), int(h.size[block])].append(block)
    state = np.flatnonzero((category == OPTIMIZER_STATE) & ~b.older)
    for block in state[np.argsort(h.born[state], kind="stable")].tolist():
        candidates = freed_blocks.get((int(phase_born[block]), int(h.size[block])), [])
        old = next((c for c in candidates if h.born[c] < h.born[block] < h.freed[c]), None)
        if old is not None:
            candidates.remove(old)
            yield block, int(category[old]), Reason.REPLACED


def graph_before(b: Blocks, category: U8) -> Iterator[Assignment]:
    """Of the blocks older than the record: the graph of the forward before it, which goes at once, by the sizes of one that
    the record saw being made and going at once (or standing at its end)."""
    size = b.history.size
    allocations = np.flatnonzero(b.history.action == Action.ALLOC)
    older = np.flatnonzero(b.older & (category == UNKNOWN) & ~b.kept)
    recorded = np.flatnonzero((category == ACTIVATIONS) & ~b.older)
    if not len(older) or not len(recorded):
        return
    gone, went = (np.searchsorted(allocations, b.freed[blocks]) for blocks in (older, recorded))
    went[b.kept[recorded]] = len(allocations) + 1  # not with what went last
    pool = older[gone == np.bincount(gone, weights=size[older]).argmax()]
    available = Counter(size[pool].tolist())
    for moment in np.flatnonzero(np.bincount(went) >= GRAPH_STACKS * GRAPH_BLOCKS)[::-1]:
        sizes = size[recorded[went == moment]]
        graph = Counter(sizes.tolist())
        shared = sum(of * count for of, count in (graph & available).items())
        if shared >= SAME_GRAPH * int(sizes.sum()):
            seen = Counter[int]()
            for block in pool.tolist():
                of = int(size[block])
                if seen[of] < graph[of]:
                    yield block, ACTIVATIONS, Reason.LET_GO
                seen[of] += 1
            return


def held(b: Blocks, category: U8) -> Iterator[Assignment]:
    """What is older than the record and nothing tells about."""
    yield b.older & (category == UNKNOWN), HELD, Reason.NONE


def weight_copies(b: Blocks, category: U8) -> Iterator[Assignment]:
    """What autocast makes half the size of fp32 weights, never more at a time than there are weights of that size: it keeps
    them until its context ends. They are no activations, and no batch makes them grow."""
    size = b.history.size
    weights = Counter(size[np.isin(category, (PARAMETERS, HELD))].tolist())
    cast = b.marked(b.stacks.autocast) & np.isin(category, (ACTIVATIONS, TEMPORARIES))
    for of in np.unique(size[cast]).tolist():
        copies = cast & (size == of)
        if int(b.history.bytes_over_time(copies).max()) <= weights[2 * of] * of:
            yield copies, WEIGHT_COPIES, Reason.CAST


INFERRED = (by_size, replaced, graph_before, held, weight_copies)
"""One after the other, each on the classes that the ones before have left; an assignment counts from the next one on."""


def classify(history: DeviceHistory, stacks: MemoryStacks, phases: Phases) -> Classes:
    """The class of every block of a device, and how it is known."""
    b = Blocks.of(history, stacks, phases)
    masks = [predicate(b) for predicate, _, _ in EVIDENT]
    category = np.select(masks, [np.uint8(c) for _, c, _ in EVIDENT], np.uint8(UNKNOWN))
    reason = np.select(masks, [np.uint8(r) for _, _, r in EVIDENT], np.uint8(Reason.NONE))
    for infer in INFERRED:
        for blocks, of, why in infer(b, category):
            category[blocks], reason[blocks] = of, why
    return Classes(category, reason)
