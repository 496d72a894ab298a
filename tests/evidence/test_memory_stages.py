"""What the frames of one allocation say: where it was made, by which operator, and what is told by no more than a name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.phases import (
    _after_forward,
    _annotated,
    _apart,
    _decisive,
    _forward_scripts,
)
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage, stage_of
from trace_doctor.snapshot import Action, StackFrame
from trace_doctor.testing import MIB, SnapshotBuilder
from trace_doctor.testing.snapshot_builder import SITE

Frames = list[tuple[str, int, str]]
MAIN = ("/home/me/train.py", 9, "main")
MODEL = ("/home/me/model.py", 5, "forward")
MODULE = (SITE + "nn/modules/module.py", 1790, "_call_impl")
WRAPPER = (SITE + "optim/optimizer.py", 533, "wrapper")
ADAM = ("/home/me/adam.py", 70, "step")
INIT = ("/home/me/model.py", 5, "__init__")
TO = ("??", 0, "torch::autograd::THPVariable_to(_object*, _object*, _object*)")
MM = ("??", 0, "at::_ops::mm::call(...)")
ZEROS_LIKE = ("??", 0, "at::_ops::zeros_like::call(...)")
U, S, F, B, O, Z = Stage  # noqa: E741


def stacks(*frames: Frames) -> MemoryStacks:
    b = SnapshotBuilder()
    for one in frames:
        b.held(MIB, frames=one)
    made = Facts(Capture(rank=0, snapshot=b.snapshot()))[MemoryStacks]
    assert len(made.stage) == len(frames)
    return made


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([(SITE + "_tensor.py", 626, "backward"), MAIN], B),
        ([(SITE + "_tensor.py", 626, "clone"), MAIN], S),
        ([("/home/me/_tensor.py", 626, "backward"), MAIN], S),
        ([(SITE + "nn/modules/module.py", 900, "to"), MAIN], S),
        ([("/home/me/module.py", 900, "_call_impl"), MAIN], S),
        # a backward that the optimizer or zero_grad called stays theirs where they are inside it
        ([WRAPPER, (SITE + "_tensor.py", 626, "backward"), MAIN], O),
        ([MODEL, (SITE + "_tensor.py", 626, "backward"), MAIN], B),
        # a thread whose outermost frame is torch's is autograd's, unless that is where every program begins
        ([MODEL, (SITE + "_compile.py", 5, "inner")], B),
        ([MODEL, (SITE + "distributed/run.py", 5, "main")], F),
        ([MODEL, ("C:\\py\\torch\\_compile.py", 5, "inner")], B),
        ([ADAM, WRAPPER, (SITE + "_compile.py", 5, "inner")], O),
    ],
)
def test_the_innermost_decisive_frame_is_the_stage(frames: Frames, stage: Stage) -> None:
    assert stage_of([StackFrame(*f) for f in frames], "python") == stage


@pytest.mark.parametrize(
    ("frames", "user", "caller", "module_caller"),
    [
        ([MODEL, MODULE, MAIN], "model.py", "model.py", "train.py"),
        ([ADAM, WRAPPER, MAIN], "adam.py", "train.py", "adam.py"),
        ([MODULE, MAIN], "train.py", "train.py", "train.py"),
        ([MODULE], None, None, None),
        ([MAIN, MODULE, MODEL, MODULE, ("/home/me/outer.py", 3, "run")], "train.py", "train.py", "outer.py"),
    ],
)
def test_whose_line_it_is(
    frames: Frames, user: str | None, caller: str | None, module_caller: str | None
) -> None:
    made = stacks([MM, *frames])
    places = [s and s.file for s in (made.user_site(0), made.caller(0), made.module_caller(0))]
    assert [p and p.rsplit("/", 1)[-1] for p in places] == [user, caller, module_caller]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([MM, MODULE, MAIN], "main() (/home/me/train.py:9)"),
        ([("<eval_with_key>.1", 5, "forward"), MODULE, MAIN], "main() (/home/me/train.py:9)"),
        ([("??", 0, "torch::autograd::MmBackward0::apply(...)")], "MmBackward0 (backward)"),
        ([("/home/me/x.py", 3, "SquareBackward0")], "SquareBackward0() (/home/me/x.py:3)"),
        ([MODULE], "_call_impl() (torch/nn/modules/module.py:1790)"),
        ([MM, ("??", 0, "torch::autograd::Engine::thread_main(...)")], "backward"),
    ],
)
def test_what_made_it_in_words(frames: Frames, words: str) -> None:
    assert stacks(frames).op_site(0) == words


def test_a_site_outside_the_users_code_is_a_librarys_before_torchs() -> None:
    library = ("/x/site-packages/timm/layers.py", 4, "pad")
    site = stacks([MODULE, library])
    assert site.user_site(0) is None
    assert str(site.site(0)) == "pad() (timm/layers.py:4)"


def test_the_operator_is_the_outermost_one_below_the_innermost_python_frame() -> None:
    softmax = ("??", 0, "at::_ops::softmax_int::call(...)")
    inner = ("??", 0, "at::_ops::_softmax::redispatch(...)")
    made = stacks([inner, softmax, MAIN, MM], [MAIN, MM])
    assert [made.op(0), made.op(1)] == ["softmax", None]


@pytest.mark.parametrize(
    ("frames", "by_hand", "setup", "transfer"),
    [
        ([ZEROS_LIKE, INIT, MAIN], True, True, False),
        ([MM, INIT, MAIN], False, True, False),
        ([("/home/me/my_optim.py", 3, "__init__"), MAIN], True, True, False),
        ([INIT, ("/home/me/my_optim.py", 3, "main")], False, True, False),
        ([("/home/me/ema/model.py", 3, "__init__"), MAIN], False, True, False),
        ([ZEROS_LIKE, ("/home/me/a.py", 3, "_apply"), INIT, MAIN], False, True, False),
        ([ZEROS_LIKE, (SITE + "nn/parameter.py", 3, "new"), INIT, MAIN], False, True, False),
        ([ZEROS_LIKE, ("/home/me/a.py", 3, "load"), MAIN], False, False, False),
        ([("??", 0, "__init__"), MAIN], False, False, False),
        ([TO, MAIN], False, False, True),
        ([("??", 0, "at::_ops::to_dtype::call(...)"), TO, MAIN], False, False, False),
        ([("/home/me/a.py", 3, "batch_to_device"), MAIN], False, False, True),
        ([("??", 0, "batch_to_device"), MAIN], False, False, False),
        ([TO, MODEL, MAIN], False, False, False),
        ([ZEROS_LIKE, INIT, MODEL, MAIN], False, False, False),
    ],
)
def test_state_by_hand_set_up_and_transfers(
    frames: Frames, by_hand: bool, setup: bool, transfer: bool
) -> None:
    made = stacks(frames)
    assert (made.state_by_hand[0], made.setup[0], made.transfer[0]) == (by_hand, setup, transfer)


def test_a_compiled_forward_keeps_for_backward_where_it_is_an_autograd_function() -> None:
    compiled = (SITE + "_functorch/_aot_autograd/runtime_wrappers.py", 5, "inner")
    function = (SITE + "autograd/function.py", 575, "apply")
    made = stacks([compiled, function, MAIN], [compiled, MAIN], [function, MAIN])
    assert made.for_backward.tolist() == [True, False, False]


def test_native_stacks_hold_frames_in_cpp() -> None:
    made = stacks([MM, MAIN], [MAIN])
    assert made.native.tolist() == [True, False]
    assert made.marked(made.native, np.array([-1, 0], dtype=np.int32)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("runs", "shown", "after", "saves"),
    [
        ([S, F, S, B], [S, F, F, B], [0, 1, 1, 0], None),
        ([S, F, B], [F, F, B], [0, 1, 0], 0),
        ([S, B, S], [F, B, S], [0, 0, 0], None),
        ([F, O, S, Z], [F, O, S, Z], [1, 0, 0, 0], None),
        ([F, Z, S], [F, Z, S], [1, 0, 0], None),
        ([F], [F], [1], None),
        ([F, B, F], [F, B, F], [1, 0, 1], None),
    ],
)
def test_python_outside_modules_is_forward_beside_it(
    runs: list[Stage], shown: list[Stage], after: list[int], saves: int | None
) -> None:
    """Or where a backward frees what it made (`saves`: number of the phase)."""
    column = np.array(runs, dtype=np.uint8)
    assert _forward_scripts(column, np.arange(len(runs)) == saves).tolist() == shown
    assert _after_forward(column).tolist() == [*map(bool, after), False]


def test_what_says_which_phase_runs() -> None:
    cases = [
        (Action.ALLOC, F, True),
        (Action.ALLOC, U, False),
        (Action.FREE_COMPLETED, F, False),
        (Action.FREE_COMPLETED, O, True),
        (Action.FREE_REQUESTED, Z, True),
        (Action.SEGMENT_ALLOC, O, False),
    ]
    actions, of, decisive = (list(column) for column in zip(*cases, strict=True))
    assert _decisive(np.array(actions, np.uint8), np.array(of, np.uint8)).tolist() == decisive


def test_steps_are_apart_where_something_was_allocated_between_them() -> None:
    action = np.array([Action.FREE_COMPLETED] * 10, dtype=np.uint8)
    action[5] = Action.ALLOC
    spans = [(0, 2, O), (3, 4, O), (4, 6, Z), (7, 8, O)]
    assert _apart(action, spans, np.array([0, 3, 7])).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("clock", "notes", "spans"),
    [
        ([0, 10, 20, 30], [("step", True, 10), ("step", False, 20)], [(1, 3, O)]),
        ([0, 10, 20, 30], [("zero_grad", True, 11), ("zero_grad", False, 19)], [(2, 2, Z)]),
        ([0, 10, 20, 30], [("step", False, 20)], []),
        ([0, 10, 20, 30], [("step", True, 20)], []),
        ([0, 10, 20, 30], [("else", True, 10), ("else", False, 20)], []),
        ([0, -1, 20, 30], [("step", True, 10), ("step", False, 20)], []),
        ([], [("step", True, 10), ("step", False, 20)], []),
    ],
)
@pytest.mark.parametrize("device", [-1, 1, 2])
def test_annotated_steps(
    clock: list[int], notes: list[tuple[str, bool, int]], spans: list[tuple[int, int, Stage]], device: int
) -> None:
    history: Any = SimpleNamespace(time_us=np.array(clock, dtype=np.int64), device=1)
    made = [
        SimpleNamespace(name=f"Optimizer.{name}#SGD.{name}", start=start, time_us=at, device=device)
        for name, start, at in notes
    ]
    snapshot: Any = SimpleNamespace(annotations=made)
    assert _annotated(history, snapshot) == (spans if device != 2 else [])
