"""What an event's name says, for every vendor and profiler version: predicates over one name.

`Run.name_ids` asks each distinct name once. Sources: torch/profiler, Kineto and real captures of torch 1.8 to 2.13.
"""

from __future__ import annotations

import re

_VIEW = re.compile(
    r"aten::(?:as_strided|view|view_as|_unsafe_view|_reshape_alias|transpose|permute|expand|expand_as|slice|select|narrow|unsqueeze"
    r"|squeeze|t|numpy_T|movedim|detach|alias|unflatten|unbind|split|split_with_sizes|chunk|tensor_split|unfold|diagonal)"
)
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_LOADER = re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#.*|.*DataLoader\w*\b.*\b__next__")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.*")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#.*")
_COMPILE = re.compile(
    r"(?!gc \().*\(dynamo_timed\)"  # Dynamo also times Python's garbage collector
    r"|.*torch/_dynamo/convert_frame\.py\(\d+\): .*"
    r"|.*torch/_inductor/(?:compile_fx|async_compile|codecache)\.py\(\d+\): .*compile.*"
    r"|.*torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (?:precompile|benchmark_all_configs|autotune_to_one_config)"
    r"|.*triton/compiler/compiler\.py\(\d+\): compile"
    r"|.*triton/runtime/(?:jit\.py\(\d+\): _do_compile|autotuner\.py\(\d+\): _bench)"
)
_BACKWARD = re.compile(r"autograd::engine::.*|torch::autograd::.*|\w+Backward\d*")
_VENDOR = r"(?:cuda|hip|musa|mtia|xpu)"
_ALLOCATOR = re.compile(
    rf"{_VENDOR}(?:Malloc|Free|ExtMalloc|Host(?:Alloc|Malloc|Free|Register|Unregister)"
    r"|Mem(?:Create|Map|Unmap|Release|Address|SetAccess|Pool|Alloc))\w*"
    r"|cuMem(?:Create|Map|Unmap|Release|Address|SetAccess|Alloc|Free|Host|Pool)\w*"
)
_SEGMENT_ALLOC = re.compile(
    r"(?:cuda|hip)(?:Malloc|MallocAsync|ExtMallocWithFlags|MemCreate)|cuMemCreate|cuMemAlloc\w*"
)
_SEGMENT_FREE = re.compile(r"(?:cuda|hip)(?:Free|FreeAsync|MemRelease)|cuMemRelease|cuMemFree(?:_v2|Async)?")
_SYNCHRONIZE = re.compile(
    r"(?:cuda|cu|hip|musa|mu|mtia|xpu|aclrt|ze)\w*Synchronize\w*|ur(?:EventWait|QueueFinish)|pi(?:EventsWait|QueueFinish)"
)
_DEVICE_SYNC = re.compile(
    r"(?:cuda|hip|musa)DeviceSynchronize|cuCtxSynchronize|(?:cuda|hip)ThreadSynchronize"
)
_COPY_CALL = re.compile(r"(?:cuda|cu|hip|musa)Mem(?:cpy|Cpy)\w*")
_LAUNCH = re.compile(r"(?:cuda|cu|hip|musa|mu|mtia|xpu)\w*Launch(?!HostFunc)\w*|urEnqueueKernelLaunch\w*")
# of a name in lower case; that each alternative begins with a letter makes them five times as fast
_COLLECTIVE_KERNEL = re.compile(
    r"[nrh]ccl|oneccl|msccl|m(?<!\wm)ccl|gloo|hcom_|nvshmem|quickreduce"
    r"|(?:deep|hybrid)_ep::(?!layout)"  # DeepEP: its layout is counted on one GPU
    r"|moe_?a2a_?(?:dispatch|combine)|ep(?<!\wep)(?:dispatch|combine)\w*kernel"  # TensorRT-LLM, MORI
    r"|cross_device_reduce|userbuffers_"  # vLLM, SGLang and AITER, Transformer Engine
)
_SYMMETRIC = re.compile(
    r"a(?<!warpa)(?<!blocka)ll_?(?:reduce|gather|to_?all)|r(?<!warpr)(?<!blockr)educe_?scatter"
)
"""symmetric memory of torch, FlashInfer, TensorRT-LLM and others; not what reduces within a warp or block"""
_FUSED_BEHIND = re.compile(r"triton_[a-z]+_fused")
"""what Inductor fused behind a collective and named after it"""
_COLLECTIVE = re.compile(
    r"(?:gloo|nccl|mpi|ucc|xccl|hccl):.*|c10d::.*|record_param_comms|oneccl_bindings_for_pytorch::.*"
)
_HOST_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):.*|oneccl_bindings_for_pytorch::.*")
_TORCH_MARKS = re.compile(
    r"ProfilerStep#.*|Torch-Compiled Region.*|TorchDynamo .*|## Call CompiledFxGraph.*|Pregraph bytecode|AOTDispatcher .*"
    r"|dynamo_data: .*|PyTorch Profiler.*|nn\.Module: .*"
)


def step_number(name: str) -> int | None:
    """N of `ProfilerStep#N`."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_step(name: str) -> bool:
    """`ProfilerStep#N`"""
    return _STEP.fullmatch(name) is not None


def is_loader(name: str) -> bool:
    """The wait for the next batch, `enumerate(DataLoader)#….__next__`, as torch marks it."""
    return "__next__" in name and _LOADER.fullmatch(name) is not None and "(" in name


def is_optimizer_step(name: str) -> bool:
    """`Optimizer.step#…`, as torch marks it."""
    return _OPTIMIZER_STEP.fullmatch(name) is not None


def is_optimizer(name: str) -> bool:
    """`Optimizer.step#…` and `Optimizer.zero_grad#…`"""
    return _OPTIMIZER.fullmatch(name) is not None


def is_backward(name: str) -> bool:
    """A function of the autograd engine; torch up to 1.8 shows only the function itself (`MulBackward0`)."""
    return _BACKWARD.fullmatch(name) is not None


def is_compile(name: str) -> bool:
    """Dynamo, Inductor or Triton at work, graph capture included; never the run of compiled code."""
    return _COMPILE.fullmatch(name) is not None


def is_allocator(name: str) -> bool:
    """A call that asks the driver for memory or gives it back, on the device or pinned on the host."""
    return _ALLOCATOR.fullmatch(name) is not None


def is_segment_alloc(name: str) -> bool:
    """A call by which the caching allocator grows."""
    return _SEGMENT_ALLOC.fullmatch(name) is not None


def is_segment_free(name: str) -> bool:
    """A call by which the caching allocator shrinks."""
    return _SEGMENT_FREE.fullmatch(name) is not None


def is_synchronize(name: str) -> bool:
    """A call that waits for the device, a stream or an event."""
    return _SYNCHRONIZE.fullmatch(name) is not None


def is_device_synchronize(name: str) -> bool:
    """A call that waits for the whole device."""
    return _DEVICE_SYNC.fullmatch(name) is not None


def is_launch(name: str) -> bool:
    """A call that launches a kernel or a graph, or records a launch where a graph is being captured."""
    return _LAUNCH.fullmatch(name) is not None


def is_graph_launch(name: str) -> bool:
    """A call that launches a whole graph: `cudaGraphLaunch_v10000`, `hipGraphLaunch`."""
    return is_launch(name) and "GraphLaunch" in name


def is_copy_call(name: str) -> bool:
    """Any runtime or driver copy call."""
    return _COPY_CALL.fullmatch(name) is not None


def has_no_kind(name: str) -> bool:
    """A copy on the device of which neither its name nor its arguments say from where to where."""
    return name == "Memcpy"


def is_synchronous_copy(name: str) -> bool:
    """A copy call that returns after its copy: not `…Async`, not between devices."""
    return is_copy_call(name) and "Async" not in name and "Peer" not in name and "DtoD" not in name


def is_collective_kernel(name: str) -> bool:
    """A kernel that exchanges data with other ranks: NCCL, RCCL or a relative, or one of those that inference and
    mixtures of experts use instead. It waits for the other ranks as a collective of NCCL does."""
    text = name.lower()
    if _COLLECTIVE_KERNEL.search(text) is not None:
        return True
    return _SYMMETRIC.search(text) is not None and _FUSED_BEHIND.match(text) is None


def is_collective(name: str) -> bool:
    """A collective as the host sees it: `gloo:all_reduce`, `c10d::allreduce_`, `record_param_comms`."""
    return _COLLECTIVE.fullmatch(name) is not None


def is_host_collective(name: str) -> bool:
    """A collective that runs on the host, on whatever thread: its time is the transfer and the wait for other ranks."""
    return _HOST_COLLECTIVE.fullmatch(name) is not None


def is_torch_mark(name: str) -> bool:
    """A mark that torch itself puts around running code; says nothing about why the host is slow."""
    return _TORCH_MARKS.fullmatch(name) is not None or is_collective(name)


def is_module(name: str) -> bool:
    """A call of an `nn.Module`, as Python stacks show it."""
    return name.startswith("nn.Module: ")


def is_view(name: str) -> bool:
    """An operator that looks at memory anew and computes nothing, on no device. Those that may copy are none."""
    return _VIEW.fullmatch(name) is not None
