"""Says what a file is from its first bytes, or from what was read of it."""

from __future__ import annotations

import re
from collections.abc import Collection

HEAD = 1 << 16
"""How many decompressed bytes are looked at."""

# (pattern in the first bytes, what the file is). Order matters: the more specific first.
_FOREIGN: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"start_time_since_epoch_in_micros|NEGOTIATE_ALLREDUCE"), "a Horovod timeline"),
    (re.compile(rb"/(?:host|device):(?:CPU|GPU|TPU|CUPTI)"), "a TensorFlow or JAX trace"),
    (re.compile(rb"CPU HIP API|CPU HSA API|rocprof|roctx_"), "a rocprof trace"),
    (re.compile(rb"JSONTraceHandler|\"callback/\w+/event/"), "a trace of the MosaicML Composer profiler"),
    (re.compile(rb"\"viztracer_metadata\"|\"FEE\""), "a VizTracer trace"),
    (re.compile(rb"devtools\.timeline|\"(?:v8|blink|loading)(?:,|\")"), "a Chrome browser trace"),
    (re.compile(rb"speedscope\.app"), "a speedscope profile"),
    (
        re.compile(rb"\"schema\"\s*:\s*\"[\d.]+-chakra|\"nodes\"\s*:\s*\[\s*\{\s*\"(?:name|id)\""),
        "a PyTorch execution trace",
    ),
    (re.compile(rb"\"tool\"\s*:\s*\{[^}]*\"trace-doctor\""), "a saved trace-doctor result"),
    (re.compile(rb"^\s*\[\s*\[\s*-?\d"), "the output of export_memory_timeline"),
    (re.compile(rb"\"pg_config\"[^}]*\}[^\"]*\"?.*\"entries\"", re.S), "an NCCL flight-recorder dump"),
)

_TORCH = re.compile(
    rb"\"schemaVersion\"|\"deviceProperties\"|\"distributedInfo\"|\"(?:CPU|CUDA) functions\"|\"cat\"\s*:\s*\"(?:"
    rb"cpu_op|user_annotation|gpu_user_annotation|python_function|cuda_runtime|cuda_driver|kernel|gpu_memcpy|gpu_memset"
    rb"|Operator|Runtime|Kernel|Memcpy|Memset|cpu_instant_event|mtia_\w+|xpu_\w+|hpu_op|privateuse1_\w+)\""
)


def torch_marks(head: bytes) -> bool:
    """The first bytes hold something that only PyTorch's profiler writes."""
    return _TORCH.search(head) is not None


def foreign(head: bytes) -> str | None:
    """The name of another tool's file, with its article; None when it is not recognised."""
    for pattern, name in _FOREIGN:
        if pattern.search(head):
            return name
    return None


def refusal(display: str, head: bytes, top_level: Collection[str] = ()) -> str:
    """One line for a file that is no PyTorch capture."""
    name = foreign(head)
    if name is None:
        if (
            b'"traceEvents"' in head
            or "traceEvents" in top_level
            or re.match(rb'\s*\[\s*\{[^}]*"ph"\s*:', head)
        ):
            name = "a Chrome trace of another program"
        elif head.lstrip()[:1] in (b"{", b"["):
            name = "JSON without trace events"
        else:
            name = "no JSON"
    return f"{display}: not a PyTorch profiler trace; it looks like {name}"
