"""What a stack says about an allocation: the part of the training step it belongs to, its site, its operator.

Backward runs on autograd's own threads, which have no Python frames; in captures with C++ frames
`torch::autograd::Engine::` marks it. Optimizers, also a user's own, run below the wrapper in `torch/optim/`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from trace_doctor.arrays import I32, U8, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.trace.call_sites import Site
from trace_doctor.snapshot import Snapshot, StackFrame
from trace_doctor.user_frames import is_user_frame, shown_path


class Stage(enum.IntEnum):
    """Part of the step that an entry happens in. `SCRIPT` is Python outside modules: data, loss, bookkeeping."""

    UNKNOWN = 0
    SCRIPT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    ZERO_GRAD = 5


_TORCH = re.compile(r"(?:^|/)torch/(?!.*site-packages)")
_OPTIM = re.compile(r"(?:^|/)torch/optim/(?!lr_scheduler|swa_utils)")
_MODULE = re.compile(r"(?:^|/)torch/nn/modules/module\.py$")
_MODULE_CALLS = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward", "__call__"})
_BACKWARD = re.compile(r"(?:^|/)torch/(?:autograd/__init__|autograd/graph|_tensor)\.py$")
_BACKWARD_CALLS = frozenset({"backward", "grad", "_make_grads", "_engine_run_backward"})
_ROOTS = frozenset({"<module>", "_bootstrap", "_bootstrap_inner", "_run_code", "_run_module_as_main", "main"})
_ENGINE = "torch::autograd::Engine::"
_AOT = re.compile(r"(?:^|/)torch/_functorch/_aot_autograd/")
_FUNCTION = re.compile(r"(?:^|/)torch/autograd/function\.py$")
_SHARDED = re.compile(r"(?:^|/)(?:torch/distributed/(?:_composable/)?fsdp|deepspeed/runtime/zero)/")
_UNSHARD = re.compile(r"(?!.*(?:grad|state)).*(?:unshard|all_?gather)")
_SETUP = frozenset(
    {"__init__", "_apply", "_load_from_state_dict", "load_state_dict", "from_pretrained", "to_empty"}
)
_NN = re.compile(r"(?:^|/)torch/nn/")
_FACTORY = re.compile(
    r"(?:rand|ones|zeros|empty|full)\w*|arange|linspace|eye|normal\w*|scalar_tensor|(?:bernoulli|uniform)_?"
)
_LIKE = re.compile(r"(?:zeros|ones|empty|full)_like|clone")
_KEEPS_STATE = re.compile(
    r"optim|estimator|(?:^|[^a-z])ema(?:[^a-z]|$)|precondition|shampoo|momentum", re.IGNORECASE
)
_INPUT = re.compile(r"(?:batch|send|move_data)_to_device|_prepare_inputs?|to_device")
_TRANSFER = re.compile(r"THPVariable_(?:to|cuda)\b")
_CAST = re.compile(r"at::_ops::to_dtype::call")
_AUTOCAST = "at::autocast::cached_cast"
_WORKSPACE = re.compile(r"[gG]etNew\w*Workspace|[gG]et\w*CUDABlas\w*|Cublas\w*Workspace|cudnn\w*[wW]orkspace")
_NODE = re.compile(r"(\w+Backward\d*)(?:_apply_functional|::apply|\b)")
_OP = re.compile(r"at::_ops::(\w+?)(?:_(?:[A-Z]\w*|int|dim|dtype|self|out))?::(?:call|redispatch)")
WORKSPACE_BYTES = (8_519_680, 33_554_432)
"""What cuBLAS asks for by default, before and since Hopper: for stacks without C++ frames."""


def stage_of(frames: Sequence[StackFrame], kind: str) -> Stage:
    """The stage of one stack, innermost frame first. `kind` is `Snapshot.frames_kind`.

    The innermost decisive frame wins, so that a closure run by the optimizer is forward and an optimizer run by a
    gradient hook is the optimizer; a forward that autograd runs again (checkpointing) is backward.
    """
    python = [f for f in frames if f.is_python]
    engine = any(_ENGINE in f.name for f in frames if not f.is_python)
    if not python:
        if engine or (kind == "all" and frames) or kind == "python":
            return Stage.BACKWARD
        return Stage.UNKNOWN
    found = Stage.SCRIPT
    for frame in python:
        stage = _decisive(frame)
        if stage == Stage.BACKWARD and found in (Stage.SCRIPT, Stage.FORWARD):
            return Stage.BACKWARD
        if stage is not None and found == Stage.SCRIPT:
            found = stage
    if found in (Stage.SCRIPT, Stage.FORWARD) and (engine or _rootless(python)):
        return Stage.BACKWARD
    return found


def in_torch(filename: str) -> bool:
    """Whether a file is PyTorch's own, by its path."""
    return _TORCH.search(filename.replace("\\", "/")) is not None


def _decisive(frame: StackFrame) -> Stage | None:
    path = frame.filename.replace("\\", "/")
    if frame.name == "zero_grad":
        return Stage.ZERO_GRAD
    if _OPTIM.search(path):
        return Stage.OPTIMIZER
    if frame.name == "forward" or "closure" in frame.name:
        return Stage.FORWARD
    if frame.name in _MODULE_CALLS and _MODULE.search(path):
        return Stage.FORWARD
    if frame.name in _BACKWARD_CALLS and _BACKWARD.search(path):
        return Stage.BACKWARD
    return None


def _rootless(python: Sequence[StackFrame]) -> bool:
    """The thread began inside torch: a Python autograd function, a hook or a recomputation run by the engine."""
    outermost = python[-1]
    return outermost.name not in _ROOTS and _TORCH.search(outermost.filename.replace("\\", "/")) is not None


class MemoryStacks(Evidence, frozen=True):
    """What each distinct stack of the snapshot says. Columns by stack number; `stages` and `marked` also take NO_STACK."""

    snapshot: Snapshot
    stage: U8
    workspace: Bool
    """a library's scratch space (cuBLAS, cuBLASLt, cuDNN)"""
    setup: Bool
    """a module being built, moved or loaded"""
    state_by_hand: Bool
    """a class of the script that is no module (an optimizer, an average of the weights, an estimator) being built"""
    transfer: Bool
    """a copy to the device outside of modules: a batch on its way"""
    generated: Bool
    """an operator that reads no tensor, outside of modules: random data, zeros, positions"""
    native: Bool
    """holds C++ frames, so that a workspace would show"""
    unshards: Bool
    """FSDP or ZeRO-3 gathering parameters"""
    autocast: Bool
    """autocast converting an argument, a weight or an activation"""
    for_backward: Bool
    """a compiled forward that is an autograd function: it returns what its backward needs. Without gradients compiled
    code is called as it is"""
    source: Path | None = None

    @classmethod
    def build(cls, facts: Facts) -> Self:
        return cls.of(facts.snapshot, facts.options.source)

    @classmethod
    def of(cls, snapshot: Snapshot, source: Path | None) -> Self:
        """Of the snapshot, whose scripts lie below `source`."""
        kind = snapshot.frames_kind
        all_frames = [snapshot.frames_of(i) for i in range(len(snapshot.stacks))]

        def flags(test: object) -> Bool:
            return np.array([bool(test(f)) for f in all_frames], dtype=np.bool_)  # type: ignore[operator]

        stage = np.array([stage_of(f, kind) for f in all_frames], dtype=np.uint8)
        plain = stage == Stage.SCRIPT
        return cls(
            snapshot=snapshot,
            stage=stage,
            workspace=flags(lambda fs: any(not f.is_python and _WORKSPACE.search(f.name) for f in fs)),
            setup=plain & flags(lambda fs: any(f.is_python and f.name in _SETUP for f in fs)),
            state_by_hand=plain & flags(_makes_state),
            transfer=plain & flags(_is_transfer),
            generated=plain & flags(lambda fs: _FACTORY.fullmatch(_operator(fs) or "") is not None),
            native=flags(lambda fs: any(not f.is_python for f in fs)),
            unshards=flags(_unshards),
            autocast=flags(lambda fs: any(not f.is_python and _AUTOCAST in f.name for f in fs)),
            for_backward=flags(_is_autograd_function),
            source=source,
        )

    def stages(self, stacks: I32) -> U8:
        """Stage of many stack numbers; UNKNOWN for NO_STACK."""
        return np.append(self.stage, np.uint8(Stage.UNKNOWN))[stacks]  # NO_STACK is -1: the appended value

    def marked(self, column: Bool, stacks: I32) -> Bool:
        """A flag of many stack numbers; False for NO_STACK."""
        return np.append(column, np.False_)[stacks]

    def user_site(self, stack: int) -> Site | None:
        """The innermost frame of the user's own code."""
        return next((self.site_of(f) for f in self._python(stack) if is_user_frame(f.filename)), None)

    def caller(self, stack: int) -> Site | None:
        """The user's frame that called into torch: the innermost one outside of what torch itself called. For
        optimizers of the user's own that is the line of `step()`, not a line inside the optimizer."""
        return self._outside(stack, _OPTIM)

    def module_caller(self, stack: int) -> Site | None:
        """The user's frame that called the model: the innermost one outside of all modules."""
        return self._outside(stack, _MODULE)

    def _outside(self, stack: int, torch: re.Pattern[str]) -> Site | None:
        python = self._python(stack)
        inner = max(
            (i for i, f in enumerate(python) if torch.search(f.filename.replace("\\", "/"))), default=-1
        )
        return next((self.site_of(f) for f in python[inner + 1 :] if is_user_frame(f.filename)), None)

    def site(self, stack: int) -> Site | None:
        """The innermost frame of the user's own code, else the innermost Python frame outside torch."""
        own = self.user_site(stack)
        return own if own is not None else self._outside_torch(stack)

    def op_site(self, stack: int) -> str:
        """What made an allocation, in words: the innermost Python frame outside torch, else the autograd node."""
        outside = self._outside_torch(stack)
        if outside is not None:
            return str(outside)
        node = self.node(stack)
        if node:
            return f"{node} (backward)"
        inner = next(iter(self._python(stack)), None)
        if inner is not None:
            return str(self.site_of(inner))
        return "backward" if stack >= 0 and self.stage[stack] == Stage.BACKWARD else "no frames recorded"

    def node(self, stack: int) -> str | None:
        """The autograd node that was running: `MmBackward0`."""
        for frame in self.snapshot.frames_of(stack):
            if not frame.is_python and "ackward" in frame.name and (match := _NODE.search(frame.name)):
                return match.group(1)
        return None

    def op(self, stack: int) -> str | None:
        """The outermost ATen operator of the innermost Python frame: `softmax`. Needs C++ frames."""
        return _operator(self.snapshot.frames_of(stack))

    def calls(self, stack: int) -> frozenset[str]:
        """All function names of a stack, for a rule that recognises what made a block."""
        return frozenset(f.name for f in self.snapshot.frames_of(stack))

    def _outside_torch(self, stack: int) -> Site | None:
        for frame in self._python(stack):
            if not _TORCH.search(frame.filename.replace("\\", "/")) and not frame.filename.startswith("<"):
                return self.site_of(frame)
        return None

    def _python(self, stack: int) -> list[StackFrame]:
        return [f for f in self.snapshot.frames_of(stack) if f.is_python]

    def site_of(self, frame: StackFrame) -> Site:
        """A frame as people see it: below `--source` where that has the file."""
        return Site(shown_path(frame.filename, self.source), frame.line, frame.name, exact=True)


def _operator(frames: Sequence[StackFrame]) -> str | None:
    operator: str | None = None
    for frame in frames:
        if frame.is_python:
            break
        if match := _OP.search(frame.name):
            operator = match.group(1)
    return operator


def _is_autograd_function(frames: Sequence[StackFrame]) -> bool:
    paths = [f.filename.replace("\\", "/") for f in frames if f.is_python]
    return any(map(_AOT.search, paths)) and any(map(_FUNCTION.search, paths))


def _unshards(frames: Sequence[StackFrame]) -> bool:
    return any(
        f.is_python and _UNSHARD.match(f.name) and _SHARDED.search(f.filename.replace("\\", "/"))
        for f in frames
    )


def _makes_state(frames: Sequence[StackFrame]) -> bool:
    """No line of torch.nn, and a tensor made like another one, or in a file that is called an optimizer, an estimator ..."""
    python = [f for f in frames if f.is_python]
    paths = [f.filename.replace("\\", "/") for f in python]
    if {f.name for f in python} & _SETUP != {"__init__"} or any(map(_NN.search, paths)):
        return False
    operators = (m.group(1) for f in frames if not f.is_python and (m := _OP.search(f.name)))
    own = next((p for p, f in zip(paths, python, strict=True) if f.name == "__init__"), "")
    return any(map(_LIKE.fullmatch, operators)) or _KEEPS_STATE.search(own.rsplit("/", 1)[-1]) is not None


def _is_transfer(frames: Sequence[StackFrame]) -> bool:
    if any(f.is_python and _INPUT.fullmatch(f.name) for f in frames):
        return True
    native = [f.name for f in frames if not f.is_python]
    return any(map(_TRANSFER.search, native)) and not any(map(_CAST.search, native))
