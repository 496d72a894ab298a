"""Edits that can change nothing in a program, whatever a capture of another one says."""

from __future__ import annotations

from trace_doctor.fixes.codemods.compiling import takes_graphs
from trace_doctor.model import Result
from trace_doctor.model.parameters import Autocast, Compile, Parameters, SetConfig
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.project import Project
from trace_doctor.program.queries.work import (
    may_convolve,
    may_multiply,
    may_use_gpu,
    trains_under_autocast,
)

_ON_GPU = [
    "allocator-setting",
    "autocast",
    "checkpoint-blocks",
    "compile-loss",
    "every-n-guard",
    "matmul-precision",
    "optimizer-args",
    "remove-call",
    "sdpa-backend",
    "sum-on-device",
    "zero-grad",
]
"""edits that gain something on a GPU only: its memory, its launches, waiting for it, types that its Tensor Cores take"""
_CUDNN = "torch.backends.cudnn.benchmark"
_TF32 = "torch.backends.cuda.matmul.allow_tf32"


def names_gpu(result: Result) -> bool:
    """Whether a result is of a capture with GPU activity, or of GPU memory: then its program uses one, however it is told to."""
    return any(row.device >= 0 for row in result.time_ledger) or any(
        i.kind == "snapshot" for i in result.inputs
    )


def refuse_without_effect(program: Project, codemod: str, params: Parameters, *, gpu: bool) -> None:
    """Raises NoEdit where the program has nothing that an edit could change. `gpu`: the capture has GPU activity."""
    name = params.name if isinstance(params, SetConfig) else ""
    if _gains_on_gpu(codemod, params, name) and not gpu and not may_use_gpu(program):
        raise NoEdit("display", "the program runs on the CPU: nothing in its files moves anything to a GPU")
    if name == _CUDNN and not may_convolve(program):
        raise NoEdit("display", "the program has no convolution, which cudnn.benchmark is for")
    if codemod == "matmul-precision" or name == _TF32:
        if not may_multiply(program):
            raise NoEdit("display", "the program multiplies no matrices; convolutions use TF32 by default")
        if trains_under_autocast(program):
            raise NoEdit("display", "every training step runs under autocast, whose matmuls are not in fp32")


def _gains_on_gpu(codemod: str, params: Parameters, name: str) -> bool:
    match params:
        case Autocast():
            return params.device != "cpu"
        case Compile() if codemod == "compile-model":
            return takes_graphs(params)
        case SetConfig():
            return name in (_CUDNN, _TF32)
    return codemod in _ON_GPU
