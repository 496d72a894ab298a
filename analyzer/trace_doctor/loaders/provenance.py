"""Which lines of the model Inductor made a kernel from (`INDUCTOR_PROVENANCE=1`): as a payload of a TORCH_TRACE log, or as a file that
tlparse, the debug folder of Inductor or an AOTInductor package holds.

    {"triton_poi_fused_add_0:3": ["  File \\"model.py\\", line 7, in forward\\n …"]}                       kernel_stack_traces
    {"triton_poi_fused_add_0:3": {"stack_traces": […], "post_grad_nodes": […], …}}                    kernel_information.json

The number after the name is that of the call in the generated code. A trace has the name alone, so that several may be meant. Read
from torch 2.13 (torch/_inductor/debug.py) and real logs of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trace_doctor.user_frames import Frame, is_user_frame, plain_path

STACK_TRACES = "inductor_provenance_tracking_kernel_stack_traces"
"""name of the payload"""
_NAMED = re.compile(rf"(?:{STACK_TRACES}.*|kernel_information)\.json(?:\.gz)?")
_WITHOUT_LINES = re.compile(r"inductor_provenance_tracking_node_mappings.*\.json(?:\.gz)?")
"""which nodes of graphs a kernel was made from: of no use without the graphs"""
_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d{1,9}), in (.+)$', re.MULTILINE)
_HANDLE = re.compile(r":\d{1,9}$")
_MOST_KERNELS = 100_000
_MOST_LINES = 64


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One call of a compiled kernel."""

    kernel: str
    """its name in the trace"""
    compile_id: str
    """of the function, as `Torch-Compiled Region: 0/1` has it; "" where the file does not say"""
    lines: tuple[Frame, ...]
    """of the user's code, each once: a fused kernel is made from several"""


def is_sources(path: Path) -> bool:
    """Whether a file tells the lines of kernels, by its name."""
    return _NAMED.fullmatch(path.name) is not None


def is_companion(path: Path) -> bool:
    """Whether a file is one of Inductor's about kernels that tells no lines, by its name."""
    return _WITHOUT_LINES.fullmatch(path.name) is not None


def sources_of(text: bytes | str, compile_id: str = "") -> Iterator[KernelSource]:
    """What either form says of the user's lines. Raises ValueError for something else."""
    kernels = msgspec.json.decode(text)
    if not isinstance(kernels, dict):
        raise ValueError("no kernels")
    told = {n: t.get("stack_traces") if isinstance(t, dict) else t for n, t in kernels.items()}
    if told and not any(isinstance(stacks, list) for stacks in told.values()):
        raise ValueError("no stacks of any kernel")
    for name, stacks in list(told.items())[:_MOST_KERNELS]:
        if isinstance(stacks, list) and (lines := tuple(_lines(stacks))):
            yield KernelSource(_HANDLE.sub("", name), compile_id, lines)


def _lines(stacks: list[Any]) -> Iterator[Frame]:
    """Of each stack the innermost frame of the user's."""
    innermost = (next(reversed(frames), None) for s in stacks[:_MOST_LINES] if (frames := user_frames(s)))
    yield from dict.fromkeys(filter(None, innermost))


def user_frames(stack: Any) -> list[Frame]:
    """The user's frames of a Python traceback, in its order: outermost first. Empty for anything else."""
    if not isinstance(stack, str):
        return []
    frames = (Frame(plain_path(file), int(line), name) for file, line, name in _FRAME.findall(stack))
    return [frame for frame in frames if is_user_frame(frame.file)]
