"""How a block gets its class: what each predicate of `EVIDENT` is true of, and what it is false of by a hair."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import EVIDENT, Blocks, Reason
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.model import MEMORY_CATEGORIES
from trace_doctor.testing import MIB, SnapshotBuilder
from trace_doctor.testing.snapshot_builder import SITE

SIZE = 77 * MIB
"""of the block that a history is about"""
MAIN = ("/home/me/train.py", 9, "main")
TO_DEVICE = [("??", 0, "torch::autograd::THPVariable_to(_object*, _object*, _object*)"), MAIN]
CAST = [("??", 0, "at::_ops::to_dtype::call(...)"), *TO_DEVICE]
BUILD = [("/home/me/model.py", 5, "__init__"), MAIN]
STATE = [("??", 0, "at::_ops::zeros_like::call(...)"), ("/home/me/model.py", 5, "__init__"), MAIN]
FACTOR = [("/home/me/estimators.py", 5, "__init__"), MAIN]
LAYER = [
    ("??", 0, "at::_ops::zeros_like::call(...)"),
    (SITE + "nn/modules/linear.py", 100, "__init__"),
    *BUILD,
]
MODULE = [(SITE + "nn/modules/module.py", 1790, "_call_impl"), MAIN]
WRAPPER = [(SITE + "optim/optimizer.py", 533, "wrapper"), MAIN]
FSDP = SITE + "distributed/fsdp/"
FSDP1 = [
    (FSDP + "_flat_param.py", 1405, "_alloc_padded_unsharded_flat_param"),
    (FSDP + "_flat_param.py", 1370, "unshard"),
    (FSDP + "_runtime_utils.py", 290, "_unshard"),
    (FSDP + "fully_sharded_data_parallel.py", 850, "forward"),
    MAIN,
]
FSDP2 = [
    (FSDP + "_fully_shard/_fsdp_collectives.py", 340, "foreach_all_gather"),
    (FSDP + "_fully_shard/_fsdp_param_group.py", 390, "unshard"),
    (FSDP + "_fully_shard/_fsdp_state.py", 240, "_pre_forward"),
]
ZERO = [("/venv/site-packages/deepspeed/runtime/zero/partition_parameters.py", 1200, "all_gather_coalesced")]
FSDP_GRADIENT = [(FSDP + "_fully_shard/_fsdp_param.py", 816, "accumulate_unsharded_grad_if_needed")]
TENSOR_PARALLEL = [(SITE + "distributed/_functional_collectives.py", 200, "all_gather_tensor")]
ENGINE = [("??", 0, "torch::autograd::Engine::thread_main(...)")]


def _device(b: SnapshotBuilder) -> DeviceBlocks:
    return Facts(Capture(rank=0, snapshot=b.snapshot()))[MemoryBlocks].devices[0]


def _deciding(b: SnapshotBuilder, size: int) -> set[tuple[str, Stage | None]]:
    """The first predicate that holds for blocks of a size, with its stage; ("", None) where none does."""
    device = _device(b)
    blocks = Blocks.of(device.history, device.stacks, device.phases)
    rows = [(p(blocks), p) for p, _, _ in EVIDENT]
    deciding = set()
    for at in np.flatnonzero(device.history.size == size):
        first = next((p for mask, p in rows if mask[at]), None)
        function = getattr(first, "func", first)
        stage = getattr(first, "keywords", {}).get("stage")
        deciding.add((function.__name__ if function else "", stage))
    return deciding


def _older(frames: list[tuple[str, int, str]] | None = None, *, freed_in: str = "") -> SnapshotBuilder:
    """A block that is older than the record, and a step that may free it."""
    b = SnapshotBuilder()
    block = b.held(SIZE, frames=frames)
    with b.forward():
        kept = b.alloc(MIB)
    with b.backward():
        gradient = b.alloc(2 * MIB)
        b.free(kept)
        if freed_in == "backward":
            b.free(block)
    with b.optimizer_step():
        b.temporary(MIB)
        if freed_in == "step":
            b.free(block)
    with b.zero_grad():
        b.free(gradient)
        if freed_in == "zero_grad":
            b.free(block)
    return b


def _made(where: str, *, until: str, frames: list[tuple[str, int, str]] | None = None) -> SnapshotBuilder:
    """Two steps; in the second a block is allocated somewhere and freed in or after another place, or never."""
    b = SnapshotBuilder()
    b.held(2 * MIB)
    block = None
    for step in range(2):
        for place in ("script", "forward", "backward", "step", "end", "next"):
            context = {
                "script": lambda: b.script_line(20),
                "forward": lambda: b.forward(line=31),
                "backward": b.backward,
                "step": b.optimizer_step,
                "end": lambda: b.script_line(50),
                "next": lambda: b.forward(line=31),
            }[place]
            with context():
                b.temporary(MIB)
                if block is not None and until == place:
                    b.free(block)
                    block = None
                if step and place == where and block is None:
                    block = b.alloc(SIZE, frames=frames)
                    if until == "at once":
                        b.free(block)
                        block = None
                b.temporary(3 * MIB)
    return b


def _graph(stacks: int, blocks: int, *, backward: bool = False) -> SnapshotBuilder:
    """A forward whose blocks go at once: `blocks` of each of so many lines."""
    b = SnapshotBuilder()
    kept = []
    for _ in range(blocks):
        for line in range(stacks):
            with b.forward(line=10 + line):
                kept.append(b.alloc(SIZE))
    if backward:
        with b.backward():
            b.temporary(MIB)
    with b.script_line(60):
        b.free(*kept)
        b.temporary(MIB)
    return b


def _before_training(
    frames: list[tuple[str, int, str]] | None = None, *, freed: bool = False
) -> SnapshotBuilder:
    """A block that the script makes before the first forward, which is followed by another of its stage."""
    b = SnapshotBuilder()
    with b.script_line(12):
        block = b.alloc(SIZE, frames=frames)
    for _ in range(2):
        with b.forward():
            kept = b.alloc(MIB)
        with b.backward():
            b.free(kept)
            b.temporary(MIB)
        with b.optimizer_step():
            b.temporary(MIB)
    if freed:
        b.free(block)
    return b


def _workspaces(count: int, frames: list[tuple[str, int, str]] | None = None) -> SnapshotBuilder:
    b = SnapshotBuilder()
    for _ in range(count):
        b.held(33_554_432, frames=frames)
    with b.forward():
        b.temporary(MIB)
    return b


CASES: list[tuple[str, Callable[[], SnapshotBuilder], str, Stage | None]] = [
    ("cuBLAS asks, in a backward that ends", lambda: _made("backward", until="", frames=[("??", 0, "at::cuda::getNewWorkspace()"), *ENGINE]), "library_workspace", None),
    ("built before the record", lambda: _older(BUILD), "older_from_setup", None),
    ("state of an optimizer by hand, before the record", lambda: _older(STATE), "state_by_hand", None),
    ("made by an estimator, and there in a forward", lambda: _before_training(FACTOR, freed=True), "state_by_hand", None),
    ("made by an estimator, and gone", lambda: _made("script", until="at once", frames=FACTOR), "short_lived", None),
    ("made by a layer of torch", lambda: _before_training(LAYER, freed=True), "built", None),
    ("of a forward before the record", lambda: _older(MODULE), "older_from", Stage.FORWARD),
    ("of a step before the record", lambda: _older(WRAPPER), "older_from", Stage.OPTIMIZER),
    ("of a backward before the record", lambda: _older(ENGINE), "older_from", Stage.BACKWARD),
    ("without frames, freed by step()", lambda: _older(freed_in="step"), "older_freed_in", Stage.OPTIMIZER),
    ("without frames, freed by zero_grad()", lambda: _older(freed_in="zero_grad"), "older_freed_in", Stage.ZERO_GRAD),
    ("without frames, freed by backward", lambda: _older(freed_in="backward"), "older_freed_in", Stage.BACKWARD),
    ("without frames, never freed", _older, "", None),
    ("built, and there in a forward", lambda: _before_training(BUILD, freed=True), "built", None),
    ("built, and gone before a forward", lambda: _made("script", until="at once", frames=BUILD), "short_lived", None),
    ("a weight of the script", _before_training, "kept_from_the_start", None),
    ("the same, freed", lambda: _before_training(freed=True), "made_for_forward", None),
    ("the same, copied to the device", lambda: _before_training(TO_DEVICE), "transferred", None),
    ("twenty blocks of five lines go at once", lambda: _graph(5, 4), "let_go_with_a_graph", None),
    ("four lines: keys, values, weights, states", lambda: _graph(4, 5), "short_lived", None),
    ("three blocks a line", lambda: _graph(7, 3), "short_lived", None),
    ("a backward has used it", lambda: _graph(5, 4, backward=True), "saved_for_backward", None),
    ("a batch", lambda: _made("script", until="backward", frames=TO_DEVICE), "transferred", None),
    ("a batch that is dropped at once", lambda: _made("script", until="at once", frames=TO_DEVICE), "short_lived", None),
    ("a cast is no transfer", lambda: _made("end", until="next", frames=CAST), "made_for_forward", None),
    ("made by the script, gone in the next forward", lambda: _made("end", until="next"), "made_for_forward", None),
    ("made by the script, gone in it", lambda: _made("end", until="at once"), "short_lived", None),
    ("FSDP1 gathers parameters, until backward", lambda: _made("forward", until="backward", frames=FSDP1), "gathered", None),
    ("FSDP2 gathers them, until the layer ends", lambda: _made("forward", until="at once", frames=[*FSDP2, *MODULE]), "gathered", None),
    ("FSDP2 gathers them for backward", lambda: _made("backward", until="at once", frames=[*FSDP2, *ENGINE]), "gathered", None),
    ("ZeRO-3 gathers them", lambda: _made("forward", until="backward", frames=[*ZERO, *MODULE]), "gathered", None),
    ("FSDP2 keeps a gradient", lambda: _made("backward", until="step", frames=[*FSDP_GRADIENT, *ENGINE]), "outlives_backward", None),
    ("tensor parallelism gathers activations", lambda: _made("forward", until="backward", frames=[*TENSOR_PARALLEL, *MODULE]), "saved_for_backward", None),
    ("needed in backward", lambda: _made("forward", until="backward"), "saved_for_backward", None),
    ("left by a forward that nothing follows", lambda: _made("next", until=""), "saved_for_backward", None),
    ("gone within its forward", lambda: _made("forward", until="at once"), "short_lived", None),
    ("left by step()", lambda: _made("step", until=""), "outlives_step", None),
    ("gone within step()", lambda: _made("step", until="at once"), "short_lived", None),
    ("left by backward", lambda: _made("backward", until="step"), "outlives_backward", None),
    ("gone within backward", lambda: _made("backward", until="at once"), "short_lived", None),
]  # fmt: skip


@pytest.mark.parametrize(("history", "predicate", "stage"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_predicate_that_decides(
    history: Callable[[], SnapshotBuilder], predicate: str, stage: Stage | None
) -> None:
    assert _deciding(history(), SIZE) == {(predicate, stage)}


@pytest.mark.parametrize(
    ("history", "predicate"),
    [
        (_workspaces(2), "workspace_sized"),
        (_workspaces(3), ""),  # 4096 x 4096 weights in bf16
        (_workspaces(2, [("??", 0, "at::_ops::empty::call(...)"), MAIN]), ""),  # a workspace would show
        (_workspaces(1, WRAPPER), "older_from"),  # state of an optimizer
    ],
    ids=["two", "three", "with C++ frames", "of step()"],
)
def test_workspaces_by_their_size(history: SnapshotBuilder, predicate: str) -> None:
    assert {name for name, _ in _deciding(history, 33_554_432)} == {predicate}


def test_every_predicate_decides_a_case() -> None:
    names = {getattr(p, "func", p).__name__ for p, _, _ in EVIDENT}
    assert names == {c[2] for c in CASES} - {""} | {"workspace_sized"}


def _class(device: DeviceBlocks, size: int) -> list[tuple[str, Reason]]:
    at = np.flatnonzero(device.history.size == size)
    pairs = zip(device.classes.category[at].tolist(), device.classes.reason[at].tolist(), strict=True)
    return sorted((MEMORY_CATEGORIES[c], Reason(r)) for c, r in pairs)


def test_a_weight_before_its_gradient_and_the_copies_beside_it() -> None:
    """Four copies of a gradient's size are older than the record: a parameter and at most three of state."""
    b = SnapshotBuilder()
    for _ in range(5):
        b.held(SIZE)
    with b.forward():
        kept = b.alloc(MIB)
    with b.backward():
        b.alloc(SIZE)
        b.free(kept)
    assert _class(_device(b), SIZE) == [
        ("gradients", Reason.LIFETIME),
        ("held_before_recording", Reason.NONE),
        ("optimizer_state", Reason.SIZES),
        ("optimizer_state", Reason.SIZES),
        ("optimizer_state", Reason.SIZES),
        ("parameters", Reason.SIZES),
    ]


@pytest.mark.parametrize("freed", [True, False])
def test_state_by_hand_is_no_parameter(freed: bool) -> None:
    """Of a gradient's size it is state, of another nothing says what it is; the model is still known by its own frames."""
    b = SnapshotBuilder()
    b.alloc(SIZE, frames=BUILD)
    with b.script_line(12):
        made = [b.alloc(SIZE, frames=STATE), b.alloc(SIZE, frames=STATE), b.alloc(50 * MIB, frames=FACTOR)]
    with b.forward():
        kept = b.alloc(MIB)
    with b.backward():
        b.alloc(SIZE)
        b.free(kept)
    if freed:
        b.free(*made)
    device = _device(b)
    assert [c for c, _ in _class(device, SIZE)] == [
        "gradients",
        "optimizer_state",
        "optimizer_state",
        "parameters",
    ]
    assert _class(device, 50 * MIB) == [("unknown", Reason.NONE)]


def test_a_parameter_that_step_replaces() -> None:
    """An optimizer that makes new parameters: what takes a parameter's place is one, whatever step() it was born in."""
    b = SnapshotBuilder()
    parameter = b.alloc(SIZE, frames=BUILD)
    with b.forward():
        kept = b.alloc(MIB)
    with b.backward():
        b.free(kept)
        b.temporary(MIB)
    with b.optimizer_step():
        b.alloc(SIZE)
        b.free(parameter)
    with b.forward():
        b.temporary(MIB)
    assert _class(_device(b), SIZE) == [("parameters", Reason.FRAMES), ("parameters", Reason.REPLACED)]


def test_the_graph_of_the_forward_before() -> None:
    """As many blocks, of the same sizes, go at once: those of a forward that ran before recording began."""
    b = SnapshotBuilder()
    older = [b.held(SIZE + line * MIB) for line in range(5) for _ in range(4)] + [b.held(400 * MIB)]
    kept = []
    for _ in range(4):
        for line in range(5):
            with b.forward(line=10 + line):
                kept.append(b.alloc(SIZE + line * MIB))
    with b.script_line(60):
        b.free(*older)
        b.temporary(MIB)
        b.free(*kept)
        b.temporary(MIB)
    device = _device(b)
    assert _class(device, SIZE) == [("activations", Reason.LET_GO)] * 8
    assert _class(device, 400 * MIB) == [("held_before_recording", Reason.NONE)]


@pytest.mark.parametrize(("op", "category"), [("exp", "activations"), ("randn", "inputs")])
def test_what_functions_of_the_script_compute_and_backward_frees(op: str, category: str) -> None:
    """A loss in a module lies between; a batch that is generated on the device may go in backward as well."""
    b = SnapshotBuilder()
    frames = [
        ("??", 0, f"at::_ops::{op}::call(...)"),
        (b.script, 41, "attention"),
        (b.script, 99, "<module>"),
    ]
    for _ in range(2):
        saved = b.alloc(300 * MIB, frames=frames)
        also = b.alloc(
            MIB,
            frames=[("??", 0, "at::_ops::mul_Tensor::call(...)"), (b.script, 42, "attention"), *frames[2:]],
        )
        with b.forward("/home/me/loss.py", 50):
            b.temporary(MIB)
        with b.backward():
            b.temporary(MIB)
            b.free(saved, also)
    device = _device(b)
    made = MEMORY_CATEGORIES.index(category)
    assert (device.classes.category[device.history.size == 300 * MIB] == made).all()


@pytest.mark.parametrize(("weights", "category"), [(8, "weight_copies"), (2, "activations")])
def test_copies_of_weights_that_autocast_keeps(weights: int, category: str) -> None:
    """Not where it makes more of that size at a time than there are weights of twice the size: of activations, then."""
    b = SnapshotBuilder()
    for _ in range(weights):
        b.held(20 * MIB)
    cast = [
        ("??", 0, "at::autocast::cached_cast(c10::ScalarType, ...)"),
        ("/home/me/model.py", 30, "forward"),
    ]
    copies = [b.alloc(10 * MIB, frames=[*cast, MAIN]) for _ in range(8)]
    with b.backward():
        b.temporary(MIB)
        b.free(*copies)
    device = _device(b)
    made = MEMORY_CATEGORIES.index(category)
    assert (device.classes.category[device.history.size == 10 * MIB] == made).all()
