"""Categories of all profiler versions and vendors, folded into `Cat`."""

from __future__ import annotations

from trace_doctor.run import Cat

CATEGORIES: dict[str, Cat] = {
    # torch >= 1.12 (Kineto's ActivityType names)
    "cpu_op": Cat.CPU_OP,
    "user_annotation": Cat.USER_ANNOTATION,
    "python_function": Cat.PYTHON,
    "overhead": Cat.OVERHEAD,
    "kernel": Cat.KERNEL,
    "gpu_memcpy": Cat.MEMCPY,
    "gpu_memset": Cat.MEMSET,
    "gpu_user_annotation": Cat.GPU_ANNOTATION,
    "cuda_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.DRIVER,
    "cuda_sync": Cat.SYNC,
    "cuda_event": Cat.OTHER,
    "cuda_profiler_range": Cat.OTHER,
    "collective_comm": Cat.OTHER,
    "external_correlation": Cat.OTHER,
    "graph_event_node": Cat.OTHER,  # nodes of a CUDA graph that occupy no engine (torch 2.14)
    "graph_host_node": Cat.OTHER,
    # other vendors
    "hip_runtime": Cat.RUNTIME,
    "hip_driver": Cat.DRIVER,
    "xpu_runtime": Cat.RUNTIME,
    "xpu_driver": Cat.DRIVER,
    "xpu_sync": Cat.SYNC,
    "xpu_scope_profiler": Cat.OTHER,
    "mtia_runtime": Cat.RUNTIME,
    "mtia_ccp_events": Cat.KERNEL,
    "mtia_insight": Cat.OTHER,
    "hpu_op": Cat.RUNTIME,
    "glow_runtime": Cat.RUNTIME,
    "privateuse1_runtime": Cat.RUNTIME,
    "privateuse1_driver": Cat.DRIVER,
    # torch 1.8 - 1.11
    "Operator": Cat.CPU_OP,
    "Runtime": Cat.RUNTIME,
    "Kernel": Cat.KERNEL,
    "Memcpy": Cat.MEMCPY,
    "Memset": Cat.MEMSET,
    "Python": Cat.PYTHON,
    "Python function": Cat.PYTHON,
    "User annotation": Cat.USER_ANNOTATION,
    "Overhead": Cat.OVERHEAD,
    "Trace": Cat.SPAN,
}

ANNOTATIONS = (
    "ProfilerStep#",
    "enumerate(DataLoader)#",
    "enumerate(DataPipe)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
)
"""Torch's own `record_function` marks. Versions up to 1.11 file them under Operator."""

# Work that MTIA's command processor reports: data movement, and bookkeeping that occupies no engine.
_MTIA = {"dma_request": Cat.MEMCPY, "event_wait": Cat.SYNC, "event_record": Cat.SYNC}


LEGACY = LEGACY_CPU, LEGACY_GPU = "CPU functions", "CUDA functions"
"""Processes of traces that autograd itself exported, whose events have no category."""
BY_NAME = frozenset({"", "mtia_ccp_events", *(text for text, cat in CATEGORIES.items() if cat is Cat.CPU_OP)})
"""Categories whose events are not all of one kind: the name tells, and the process where there is no category."""


def category(cat: str, name: str, pid: str) -> Cat:
    """The kind of one event. Legacy autograd traces have no `cat`: there the process name tells."""
    if not cat:
        if pid == LEGACY_GPU:
            return _copy_or_kernel(name)
        kind = Cat.CPU_OP if pid == LEGACY_CPU else Cat.OTHER
    else:
        kind = CATEGORIES.get(cat, Cat.OTHER)
    if kind is Cat.CPU_OP and name.startswith(ANNOTATIONS):
        return Cat.USER_ANNOTATION
    if cat == "mtia_ccp_events":
        return _MTIA.get(name, Cat.KERNEL)
    return kind


def _copy_or_kernel(name: str) -> Cat:
    lower = name.lower()
    if lower.startswith("memcpy"):
        return Cat.MEMCPY
    return Cat.MEMSET if lower.startswith("memset") else Cat.KERNEL
