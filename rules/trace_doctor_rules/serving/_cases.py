"""Captures of an inference engine: steps of prefill and decode, with what the host does between them."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.testing import RunBuilder

Step = tuple[int, int]
"""tokens of prompts that are computed, in one request; requests that are decoded"""
DECODES: tuple[Step, ...] = ((0, 8),) * 12


def engine(
    steps: Sequence[Step] = DECODES,
    *,
    graphs_up_to: int = 512,
    kernels: int = 60,
    kernel_us: float = 20,
    host_us: float = 5,
    between_us: float = 20,
    between: tuple[str, str] = ("vllm/v1/core/sched/scheduler.py", "schedule"),
    token_copy: str = "event",
    token_us: float = 0.2,
    pause_us: float = 0,
    stall_us: float = 0,
    stacks: bool = False,
    lost: bool = False,
    mixed: bool = False,
    prepares: bool = False,
    request_us: float = 0,
) -> RunBuilder:
    """Decodes of up to `graphs_up_to` requests are one graph of `kernels`, larger ones and prefills launch each kernel after
    `host_us`. Then the host gets the tokens (`token_copy`: event, stream, third: the latter in every third step, none) and does `between` for `between_us`. `pause_us`: nothing
    runs before the last half of the steps. `lost`: of most graphs no kernel was recorded. `prepares`: scheduling launches a kernel, too. `request_us`: by how much each decoded
    request makes a kernel longer."""
    b = RunBuilder(stacks=stacks)
    for n, (tokens, requests) in enumerate(steps):
        if pause_us and n == len(steps) // 2:
            b.wait(pause_us)
        prefills = int(tokens > 0)
        decodes = requests if mixed or not prefills else 0
        with b.annotation(f"execute_context_{prefills}({tokens})_generation_{decodes}({decodes})"):
            if n == len(steps) // 2:
                b.stall(stall_us)
            if not prefills and requests <= graphs_up_to:
                _replay(b, kernels, kernel_us + requests * request_us, lost=lost and n > 2)
            else:
                _eager(b, kernels, max(kernel_us, tokens * token_us), host_us)
        _get_tokens(b, token_copy if token_copy != "third" else ("event", "event", "stream")[n % 3])
        with b.python(between[0], 200, between[1]):
            b.wait(between_us / 2)
            if prepares:
                b.launch(2, "cumsum")
            b.wait(between_us / 2)
    return b


def generate(
    tokens: int = 10,
    *,
    kernels: int = 60,
    kernel_us: float = 20,
    host_us: float = 5,
    between_us: float = 20,
    token_copy: str = "event",
) -> RunBuilder:
    """A call of `generate()` of transformers, whose forwards launch each kernel."""
    b = RunBuilder(stacks=True)
    with b.op("aten::ones"), b.python("app.py", 5, "answer"):
        pass
    with b.python("transformers/generation/utils.py", 2780, "_sample"):
        for _ in range(tokens):
            with b.event("nn.Module: LlamaForCausalLM_0", "python_function"):
                _eager(b, kernels, kernel_us, host_us)
            _get_tokens(b, token_copy)
            b.wait(between_us)
    return b


def _eager(b: RunBuilder, kernels: int, kernel_us: float, host_us: float) -> None:
    for _ in range(kernels):
        b.run_op("aten::mm", kernel_us, "gemm", host_us=host_us)


def _replay(b: RunBuilder, kernels: int, kernel_us: float, *, lost: bool) -> None:
    """One launch, whose kernels all have its correlation."""
    b.launch(kernel_us, "gemm", call="cudaGraphLaunch")
    kernel = b.events[-1]
    for n in range(1, kernels):
        b.events.append({**kernel, "ts": kernel["ts"] + n * kernel_us})
    if lost:
        del b.events[-kernels:]
    b.stall(kernel_us * (kernels - 1))


def _get_tokens(b: RunBuilder, how: str) -> None:
    if how == "stream":
        with b.op("aten::item"):
            b.copy(1.5, "DtoH (Device -> Pageable)", bytes=64)
            b.sync()
    elif how == "event":
        with b.op("aten::copy_"):
            b.copy(1.5, "DtoH (Device -> Pinned)", bytes=64)
        b.sync("cudaEventSynchronize")
