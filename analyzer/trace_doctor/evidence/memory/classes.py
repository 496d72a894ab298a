"""What each block of memory is: parameter, gradient, optimizer state, activation ...

Allocators know nothing of tensors. A block is classed by where it was allocated and by which parts of the training
step it outlives; blocks older than the record by their own frames, by who frees them, or by their sizes. Every class
comes with the reason it was given.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.evidence.memory.phases import Phases
from trace_doctor.evidence.memory.stages import WORKSPACE_BYTES, MemoryStacks, Stage
from trace_doctor.evidence.memory.timeline import BEFORE, DeviceHistory
from trace_doctor.model import MEMORY_CATEGORIES
from trace_doctor.snapshot import NO_STACK, Action

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, TEMPORARIES, WORKSPACES, HELD, UNKNOWN = range(9)
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
}


class Classes(Struct, frozen=True):
    """One class and one reason per block of a history."""

    category: U8
    """index in MEMORY_CATEGORIES"""
    reason: U8

    def where(self, category: int) -> Bool:
        mask: Bool = self.category == category
        return mask


def classify(history: DeviceHistory, stacks: MemoryStacks, phases: Phases) -> Classes:
    return _Classifier(history, stacks, phases).run()


class _Classifier:
    def __init__(self, history: DeviceHistory, stacks: MemoryStacks, phases: Phases) -> None:
        self.h, self.stacks, self.phases = history, stacks, phases
        self.category = np.full(len(history.size), UNKNOWN, dtype=np.uint8)
        self.reason = np.zeros(len(history.size), dtype=np.uint8)
        self.older = history.born == BEFORE
        self.freed = _as_of_oom(history)
        self.kept = self.freed == history.n
        self.setup = stacks.marked(stacks.setup, history.stack)
        self.stage = stacks.stages(history.stack)
        recorded = ~self.older
        self.stage[recorded] = phases.entry_stage[history.born[recorded]]
        script = recorded & (self.stage == Stage.SCRIPT)
        self.stage[script] = phases.stage[phases.of(history.born[script])]

    def run(self) -> Classes:
        self._recorded()
        self._older()
        self._workspaces()
        self._by_size()
        self._replaced()
        self._set(self._graph_before(), ACTIVATIONS, Reason.LET_GO)
        self._set(self.older & (self.category == UNKNOWN), HELD, Reason.NONE)
        return Classes(self.category, self.reason)

    def _set(self, blocks: Bool | I64, category: int, reason: Reason) -> None:
        self.category[blocks] = category
        self.reason[blocks] = reason

    def _workspaces(self) -> None:
        by_frame = self.stacks.marked(self.stacks.workspace, self.h.stack)
        self._set(by_frame, WORKSPACES, Reason.FRAMES)
        blind = ~self.stacks.marked(self.stacks.native, self.h.stack) & self.kept
        for size in WORKSPACE_BYTES:  # 32 MiB is also a common weight: 4096 x 4096 in bf16
            alike = np.flatnonzero((self.h.size == size) & ~by_frame)
            if len(alike) <= MOST_WORKSPACES and blind[alike].all():
                self._set(alike[self.stage[alike] != Stage.OPTIMIZER], WORKSPACES, Reason.SIZES)

    def _recorded(self) -> None:
        """Blocks that the record saw being born: by their stage and by which phases they outlive."""
        born, phases = self.h.born, self.phases
        outlives = self.freed >= phases.next_start(born)
        into_backward = self.freed >= phases.next_of(born + 1, Stage.BACKWARD)
        into_forward = self.freed >= phases.next_of(born + 1, Stage.FORWARD)
        forward = ~self.older & (self.stage == Stage.FORWARD)
        script = ~self.older & (self.stage == Stage.SCRIPT)
        backward = ~self.older & (self.stage == Stage.BACKWARD)
        optimizer = ~self.older & np.isin(self.stage, (Stage.OPTIMIZER, Stage.ZERO_GRAD))
        transfer = self.stacks.marked(self.stacks.transfer, self.h.stack)

        self._set(forward | script | backward | optimizer, TEMPORARIES, Reason.LIFETIME)
        self._set(backward & outlives, GRADIENTS, Reason.LIFETIME)
        self._set(optimizer & outlives, OPTIMIZER_STATE, Reason.LIFETIME)
        self._set(forward & (into_backward | self.kept), ACTIVATIONS, Reason.LIFETIME)
        self._set(script & into_forward, INPUTS, Reason.LIFETIME)
        self._set(
            (forward | script) & transfer & (into_backward | into_forward | self.kept), INPUTS, Reason.FRAMES
        )
        self._set(self._let_go(forward & ~into_backward & ~self.kept), ACTIVATIONS, Reason.LET_GO)
        lasting = script & self.kept & (born < phases.next_of(np.zeros(1, np.int64), Stage.FORWARD))
        self._set(lasting & ~transfer, UNKNOWN, Reason.NONE)
        self._set(self._built(), PARAMETERS, Reason.FRAMES)

    def _let_go(self, temporary: Bool) -> I64:
        """Of a forward's blocks those that die together with many of its others: what one layer needs dies before the
        next allocates, what a graph keeps dies with the graph."""
        blocks = np.flatnonzero(temporary & (self.h.stack != NO_STACK))
        allocations = np.flatnonzero(self.h.action == Action.ALLOC)
        moment = np.searchsorted(allocations, self.freed[blocks])
        of_stack = moment * (int(self.h.stack.max(initial=0)) + 1) + self.h.stack[blocks]
        _, first, which, count = np.unique(
            of_stack, return_index=True, return_inverse=True, return_counts=True
        )
        stacks = np.bincount(moment[first[count >= GRAPH_BLOCKS]], minlength=len(allocations) + 1)
        graph: I64 = blocks[(count[which] >= GRAPH_BLOCKS) & (stacks[moment] >= GRAPH_STACKS)]
        return graph

    def _graph_before(self) -> I64:
        """Of the blocks older than the record: the graph of the forward before it, which goes at once, by the sizes of one
        that the record saw being made and going at once (or standing at its end)."""
        allocations = np.flatnonzero(self.h.action == Action.ALLOC)
        older = np.flatnonzero(self.older & (self.category == UNKNOWN) & ~self.kept)
        made = np.flatnonzero((self.category == ACTIVATIONS) & ~self.older)
        if not len(older) or not len(made):
            return older[:0]
        gone, went = (np.searchsorted(allocations, self.freed[blocks]) for blocks in (older, made))
        went[self.kept[made]] = len(allocations) + 1  # not with what went last
        pool = older[gone == np.bincount(gone, weights=self.h.size[older]).argmax()]
        there = Counter(self.h.size[pool].tolist())
        for moment in np.flatnonzero(np.bincount(went) >= GRAPH_STACKS * GRAPH_BLOCKS)[::-1]:
            sizes = self.h.size[made[went == moment]]
            graph = Counter(sizes.tolist())
            shared = sum(size * count for size, count in (graph & there).items())
            if shared >= SAME_GRAPH * int(sizes.sum()):
                alike = [nth < graph[size] for size, nth in _numbered(self.h.size[pool].tolist())]
                return np.asarray(pool[alike])
        return older[:0]

    def _built(self) -> Bool:
        """Recorded blocks that a module (or a user's own optimizer) made when it was built, moved or loaded."""
        later = self.phases.next_of(self.h.born + 1, Stage.FORWARD)
        made: Bool = ~self.older & self.setup & ((self.freed >= later) | self.kept)
        return made

    def _older(self) -> None:
        """Blocks older than the record: their own frames, else the stage that frees them."""
        older = self.older & (self.h.stack != NO_STACK)
        self._set(older & (self.stage == Stage.BACKWARD), GRADIENTS, Reason.FRAMES)
        self._set(older & (self.stage == Stage.OPTIMIZER), OPTIMIZER_STATE, Reason.FRAMES)
        self._set(older & (self.stage == Stage.FORWARD), ACTIVATIONS, Reason.FRAMES)
        self._set(older & self.setup, PARAMETERS, Reason.FRAMES)
        freed = np.append(self.phases.entry_stage, np.uint8(Stage.UNKNOWN))[self.h.freed]
        for stage, category, reason in (
            (Stage.OPTIMIZER, OPTIMIZER_STATE, Reason.FREED_IN_STEP),
            (Stage.ZERO_GRAD, GRADIENTS, Reason.FREED_IN_ZERO_GRAD),
            (Stage.BACKWARD, ACTIVATIONS, Reason.FREED_IN_BACKWARD),
        ):
            self._set(self.older & (freed == stage) & (self.category == UNKNOWN), category, reason)

    def _replaced(self) -> None:
        """A block that takes the place of a parameter in step() is a parameter, not state: the known block of its
        size that is freed next."""
        known = np.isin(self.category, (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)) & (self.h.freed < self.h.n)
        born_in_step = (self.category == OPTIMIZER_STATE) & ~self.older
        phase_freed = self.phases.of(self.h.freed)
        gone: dict[tuple[int, int], list[int]] = defaultdict(list)
        order = np.argsort(self.h.freed, kind="stable")
        for block in order[known[order]]:
            gone[int(phase_freed[block]), int(self.h.size[block])].append(int(block))
        made = np.flatnonzero(born_in_step)
        phase_born = self.phases.of(self.h.born)
        for block in made[np.argsort(self.h.born[made], kind="stable")]:
            candidates = gone.get((int(phase_born[block]), int(self.h.size[block])), [])
            born = self.h.born[block]
            old = next(
                (b for b in candidates if self.h.born[b] < born < self.h.freed[b] and b != block), None
            )
            if old is not None:
                candidates.remove(old)
                self._set(np.array([block]), int(self.category[old]), Reason.REPLACED)

    def _by_size(self) -> None:
        """Blocks nothing else tells about: the first copy of a gradient's size is the parameter, more are state."""
        unknown = (self.category == UNKNOWN) & (self.older | (self.kept & (self.stage == Stage.SCRIPT)))
        gradients = self._gradient_sizes()
        if not gradients:
            self._in_place(np.flatnonzero(unknown))
            return
        built = self._built() & (self.category == PARAMETERS)
        parameters = Counter(self.h.size[(self.category == PARAMETERS) & ~built].tolist())
        state = self._state_sizes()
        pool = np.flatnonzero(unknown | (built & np.isin(self.h.size, list(gradients))))
        for block in pool[np.lexsort((self.h.addr[pool], self.h.born[pool]))]:
            size = int(self.h.size[block])
            if parameters[size] < gradients[size]:
                parameters[size] += 1
                self._set(np.array([block]), PARAMETERS, Reason.SIZES)
            elif built[block] or (self.older[block] and state[size] < MOST_STATE_COPIES * gradients[size]):
                state[size] += 1
                self._set(np.array([block]), OPTIMIZER_STATE, Reason.SIZES)

    def _gradient_sizes(self) -> Counter[int]:
        """Sizes of the gradients of one backward, the one that left most."""
        sets: dict[int, list[int]] = defaultdict(list)
        for block in np.flatnonzero(self.category == GRADIENTS):
            born = int(self.h.born[block])
            sets[BEFORE if born == BEFORE else int(self.phases.of(np.array([born]))[0])].append(int(block))
        best = max(sets.values(), key=lambda blocks: int(self.h.size[blocks].sum()), default=[])
        return Counter(self.h.size[best].tolist())

    def _state_sizes(self) -> Counter[int]:
        """Known optimizer state alive together, at the first moment of most of it."""
        known = self.category == OPTIMIZER_STATE
        if not known.any():
            return Counter()
        moment = int(self.h.bytes_over_time(known).argmax())
        return Counter(self.h.size[known & self.h.alive(moment)].tolist())

    def _in_place(self, pool: I64) -> None:
        """No gradient outlives backward: they are older than the record, one more equal copy of each parameter."""
        backward = ~self.older & (self.stage == Stage.BACKWARD)
        computed = set(self.h.size[backward].tolist())
        pool = np.array([b for b in pool if int(self.h.size[b]) in computed and self.kept[b]], dtype=np.int64)
        counts = Counter(self.h.size[pool].tolist())
        copies = int(np.gcd.reduce(list(counts.values()))) if counts else 0
        if not 2 <= copies <= 2 + MOST_STATE_COPIES:
            return
        for size, count in counts.items():
            blocks = pool[self.h.size[pool] == size]
            each = count // copies
            self._set(blocks[:each], PARAMETERS, Reason.IN_PLACE)
            self._set(blocks[each : 2 * each], GRADIENTS, Reason.IN_PLACE)
            self._set(blocks[2 * each :], OPTIMIZER_STATE, Reason.IN_PLACE)


def _numbered(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Each size with how many equal ones stand before it."""
    seen = Counter[int]()
    for size in sizes:
        yield size, seen[size]
        seen[size] += 1


def _as_of_oom(history: DeviceHistory) -> I64:
    """Where each block was freed; n for blocks alive at an out-of-memory error, whose unwinding frees everything."""
    freed = history.freed.copy()
    for at in np.flatnonzero(history.action == Action.OOM):
        freed[(history.born < at) & (history.freed > at)] = history.n
    return freed
