"""What blocks are: stages by frames, classes by stage and lifetime, on built and on real histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage, stage_of
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.snapshot import Action, Snapshot, StackFrame
from trace_doctor.testing import MIB, RunBuilder, SnapshotBuilder
from trace_doctor.testing.snapshot_builder import SITE

MODULE = (SITE + "nn/modules/module.py", 1790, "_call_impl")
OPTIMIZER = (SITE + "optim/optimizer.py", 533, "wrapper")
ENGINE = ("??", 0, "torch::autograd::Engine::thread_main(...)")
NATIVE = ("??", 0, "at::_ops::mm::call(...)")
MAIN = ("/home/me/train.py", 9, "<module>")


def blocks(b: SnapshotBuilder | Snapshot) -> DeviceBlocks:
    snapshot = b.snapshot() if isinstance(b, SnapshotBuilder) else b
    return Facts(Capture(rank=0, snapshot=snapshot))[MemoryBlocks].devices[0]


def classes(d: DeviceBlocks, moment: int | None = None) -> dict[str, int]:
    """MiB by category, without what is empty."""
    at = d.at_peak if moment is None else d.at(moment)
    return {name: held // MIB for name, held in at.items() if held >= MIB}


@pytest.mark.parametrize(
    ("frames", "kind", "stage"),
    [
        ([NATIVE, ENGINE], "all", Stage.BACKWARD),
        ([NATIVE], "all", Stage.BACKWARD),
        ([], "python", Stage.BACKWARD),
        ([NATIVE], "cpp", Stage.UNKNOWN),
        ([NATIVE, ENGINE], "cpp", Stage.BACKWARD),
        ([], "none", Stage.UNKNOWN),
        ([MODULE, MAIN], "all", Stage.FORWARD),
        ([("/home/me/model.py", 3, "forward"), MAIN], "all", Stage.FORWARD),  # model.forward(x), no hooks
        ([("/home/me/data.py", 3, "load"), MAIN], "all", Stage.SCRIPT),
        ([("/home/me/adam.py", 70, "step"), OPTIMIZER, MAIN], "all", Stage.OPTIMIZER),
        ([(SITE + "optim/optimizer.py", 975, "zero_grad"), MAIN], "all", Stage.ZERO_GRAD),
        ([(SITE + "nn/modules/module.py", 2900, "zero_grad"), MAIN], "all", Stage.ZERO_GRAD),
        # a closure that the optimizer calls, as Lightning and LBFGS do: forward, and its backward
        ([MODULE, ("/home/me/loop.py", 8, "closure"), OPTIMIZER, MAIN], "all", Stage.FORWARD),
        ([("/home/me/loop.py", 8, "closure"), OPTIMIZER, MAIN], "all", Stage.FORWARD),
        (
            [(SITE + "_tensor.py", 626, "backward"), ("/l.py", 8, "closure"), OPTIMIZER, MAIN],
            "all",
            Stage.BACKWARD,
        ),
        # an optimizer that a gradient hook runs
        ([OPTIMIZER, ("/home/me/hook.py", 5, "hook"), ENGINE], "all", Stage.OPTIMIZER),
        # checkpointing: autograd runs the forward again
        ([MODULE, (SITE + "utils/checkpoint.py", 1500, "recompute_fn"), ENGINE], "all", Stage.BACKWARD),
        ([MODULE, (SITE + "utils/checkpoint.py", 1124, "unpack_hook")], "python", Stage.BACKWARD),
        ([(SITE + "autograd/function.py", 300, "apply")], "python", Stage.BACKWARD),
        # the learning-rate scheduler wraps step(), it is no optimizer
        ([(SITE + "optim/lr_scheduler.py", 130, "step"), MAIN], "all", Stage.SCRIPT),
    ],
)
def test_stage_of_a_stack(frames: list[tuple[str, int, str]], kind: str, stage: Stage) -> None:
    assert stage_of([StackFrame(*f) for f in frames], kind) == stage


@pytest.mark.parametrize("stacks", ["all", "python"])
@pytest.mark.parametrize("zero_grad", ["before_forward", "after_forward", "after_step", "never", "to_zero"])
def test_adam_has_as_many_gradients_as_parameters_and_twice_the_state(stacks: Any, zero_grad: Any) -> None:
    b = SnapshotBuilder(stacks=stacks)
    b.train(4, parameters=[64 * MIB, 24 * MIB, 8 * MIB], activations=[300 * MIB], zero_grad=zero_grad)
    d = blocks(b)
    backward = d.phases.spans(Stage.BACKWARD)[-1][1]
    assert classes(d, backward) == {"parameters": 96, "gradients": 96, "optimizer_state": 192}
    assert classes(d)["activations"] == 300


def test_state_that_step_replaces_stays_state() -> None:
    """An optimizer of the user's own makes new moments in every step and drops the old ones."""
    b = SnapshotBuilder()
    b.held(40 * MIB)
    state = [b.held(40 * MIB), b.held(40 * MIB)]
    for _ in range(3):
        with b.forward():
            kept = b.alloc(60 * MIB)
        with b.backward():
            gradient = b.alloc(40 * MIB)
            b.free(kept)
        with b.optimizer_step():
            new = [b.alloc(40 * MIB), b.alloc(40 * MIB)]
            b.free(*state)
            state = new
        with b.zero_grad():
            b.free(gradient)
    assert classes(blocks(b)) == {
        "parameters": 40,
        "gradients": 40,
        "optimizer_state": 160,  # the old moments and the new ones, for a moment
    }


def test_gradients_older_than_the_record_that_zero_grad_frees() -> None:
    b = SnapshotBuilder()
    parameter, gradient = b.held(40 * MIB), b.held(40 * MIB)
    with b.forward():
        kept = b.alloc(100 * MIB)
    with b.zero_grad():
        b.free(gradient)
    with b.backward():
        b.alloc(40 * MIB)
        b.free(kept)
    d = blocks(b)
    assert parameter.active
    assert classes(d) == {"parameters": 40, "gradients": 40, "activations": 100}
    assert "freed in zero_grad()" in d.how


def test_gradients_accumulated_in_place_are_the_second_copy() -> None:
    """Nothing outlives backward: it adds to gradients that are older than the record."""
    b = SnapshotBuilder()
    for _ in range(2):
        for size in (40 * MIB, 12 * MIB, 12 * MIB):
            b.held(size)
    b.held(7 * MIB)
    for _ in range(2):
        with b.forward():
            kept = b.alloc(100 * MIB)
        with b.backward():
            for size in (12 * MIB, 12 * MIB, 40 * MIB):
                b.temporary(size)
            b.free(kept)
    assert classes(blocks(b)) == {
        "parameters": 64,
        "gradients": 64,
        "activations": 100,
        "temporaries": 40,
        "held_before_recording": 7,
    }


def test_frozen_weights_stay_what_was_held_before() -> None:
    b = SnapshotBuilder()
    b.held(500 * MIB)
    b.train(2, parameters=[8 * MIB], activations=[64 * MIB])
    assert classes(blocks(b))["held_before_recording"] == 500


def test_a_failed_forward_is_classed_as_of_the_failure() -> None:
    """The exception unwinds and frees everything: activations are not temporaries for that."""
    b = SnapshotBuilder()
    kept = []
    for line in range(5):
        with b.forward(line=line):
            kept.append(b.alloc(100 * MIB))
    with b.forward(line=9):
        b.oom(900 * MIB, device_free=MIB)
    b.free(*kept)
    b.temporary(MIB)
    assert classes(blocks(b)) == {"activations": 500}


def test_workspaces_by_frame_and_a_weight_of_the_same_size() -> None:
    b = SnapshotBuilder()
    for _ in range(8):
        b.held(33_554_432)  # 4096 x 4096 weights in bf16
    with b.forward():
        b.alloc(8_519_680, frames=[("??", 0, "at::cuda::getNewWorkspace()"), NATIVE, MODULE, MAIN])
        b.temporary(MIB)
    assert classes(blocks(b)) == {"workspaces": 8, "temporaries": 1, "held_before_recording": 256}


def test_inputs_are_copied_to_the_device_outside_of_modules() -> None:
    b = SnapshotBuilder()
    b.held(10 * MIB)
    to_device = [("??", 0, "torch::autograd::THPVariable_to(_object*, _object*, _object*)"), MAIN]
    for _ in range(2):
        batch = b.alloc(50 * MIB, frames=to_device)
        with b.forward():
            kept = b.alloc(100 * MIB)
        with b.backward():
            b.temporary(MIB)
            b.free(kept)
        b.free(batch)
    assert classes(blocks(b)) == {
        "inputs": 50,
        "activations": 100,
        "temporaries": 1,
        "held_before_recording": 10,
    }


def test_optimizer_steps_are_known_by_frames_and_by_annotations() -> None:
    for options in ({}, {"annotate": False}, {"stacks": "cpp"}, {"stacks": None}):
        b = SnapshotBuilder(**options)  # type: ignore[arg-type]
        b.train(5)
        known = options.get("annotate", True) or "stacks" not in options
        # without annotations only the first step shows: it alone allocates
        expected = 5 if options.get("annotate", True) else 1
        assert known
        assert len(blocks(b).phases.step_ends) == expected, options


def test_a_trace_without_snapshot_gives_totals_of_unknown_make_up() -> None:
    b = RunBuilder(memory=True)
    with b.step(), b.op("aten::mm"):
        b.memory(64 * MIB, reserved=100 * MIB)
        b.memory(32 * MIB, reserved=120 * MIB)
        b.launch(10)
        b.memory(-32 * MIB, reserved=120 * MIB)
    ledger = Facts(Capture(rank=3, run=b.run()))[MemoryLedger]
    row = ledger.rows[0]
    assert (row.rank, row.peak_bytes, row.by_category.unknown, row.max_reserved_bytes) == (
        3,
        96 * MIB,
        96 * MIB,
        120 * MIB,
    )
    assert ledger.series[0].live_by_category["unknown"] == [64 * MIB, 96 * MIB, 64 * MIB]


def test_sites_are_shown_below_the_source_folder(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    b = SnapshotBuilder()
    with b.forward("/elsewhere/repo/model.py", 12):
        b.temporary(MIB)
    facts = Facts(Capture(rank=0, snapshot=b.snapshot()), Options(source=tmp_path))
    stacks = facts[MemoryStacks]
    sites = {str(stacks.user_site(i)) for i in range(len(stacks.stage))}
    assert "forward() (model.py:12)" in sites


# ------------------------------------------------------------------ real files

REAL = {
    "Wedsonlin_assignment2-systems/results_medium_128_training_memory_snapshot.pickle": {
        "parameters": 1614,
        "gradients": 1614,
        "optimizer_state": 3307,  # twice the parameters and the new moment of the one that step() works on
    },
    "Wedsonlin_assignment2-systems/results_medium_1024_training_memory_snapshot.pickle": {
        "parameters": 1614,
        "optimizer_state": 3229,
        "activations": 16641,
        "weight_copies": 190,  # autocast's, of 95 matrices of 2 MiB
    },
    "notHanmin_assignment2-systems/33be88e6_memory_snapshot.pickle": {
        "parameters": 3698,
        "gradients": 3698,
        "optimizer_state": 7396,
    },
    "notHanmin_assignment2-systems/bbd29721_memory_snapshot_forward.pickle": {
        "parameters": 7623,
        "gradients": 7623,
        "optimizer_state": 15245,
    },
    "NiuHuangxiaozi_assignment2-systems/profile_memory_forward_and_backward_memory_snapshot_200.pickle": {
        "parameters": 86,
        "optimizer_state": 173,
    },
}


@pytest.mark.captures
@pytest.mark.parametrize("name", REAL)
def test_make_up_of_real_peaks(captures_dir: Path, name: str) -> None:
    """Adam: as many gradients as parameters, twice the state. MiB, as read off the models' sizes."""
    at_peak = blocks(load_snapshot(captures_dir / "snapshots" / name, name)).at_peak
    for category, mib in REAL[name].items():
        assert abs(at_peak[category] / MIB - mib) <= 1, (category, at_peak[category] / MIB)


@pytest.mark.captures
def test_frames_and_annotations_agree_on_the_optimizer(snapshot_file: Path) -> None:
    """Every allocation inside an annotated step has optimizer frames, and no other has."""
    snapshot = load_snapshot(snapshot_file, snapshot_file.name)
    notes = [a for a in snapshot.annotations if a.name.startswith("Optimizer.step#")]
    if not notes or not snapshot.has_history or not snapshot.has_clock:
        pytest.skip("no annotated optimizer step in this file")
    spans = [(a.time_us, b.time_us) for a, b in zip(notes[::2], notes[1::2], strict=True)]
    stages = Facts(Capture(rank=0, snapshot=snapshot))[MemoryStacks].stages(snapshot.stack)
    for at in (snapshot.action == Action.ALLOC).nonzero()[0]:
        inside = any(a <= snapshot.time_us[at] <= b for a, b in spans)
        assert inside == (stages[at] == Stage.OPTIMIZER)
