"""torch.compile."""

from __future__ import annotations

from collections.abc import Iterable

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import LAST_BITS, advice, advised, patch, patched


def compile_model(verify: str, mode: str | None = None) -> Fix:
    """An edit. `mode`: one of torch.compile's; None for its default."""
    mode_argument = f', mode="{mode}"' if mode else ""
    return patch(
        "Use torch.compile",
        "compile-model",
        f"model = torch.compile(model{mode_argument})\n"
        '# HF: TrainingArguments(torch_compile=True); Accelerate: TorchDynamoPlugin(backend="inductor")',
        f"{LAST_BITS}; the first steps compile; changing shapes recompile"
        + ("; outputs are overwritten by the next call (CUDA graphs)" if mode == "reduce-overhead" else ""),
        verify,
        params={"mode": mode} if mode else {},
    )


compile_blocks = advised(
    "Compile the repeated block",
    "for block in model.layers:\n    block.compile()   # instead of torch.compile(model)\n"
    "# Accelerate: TorchDynamoPlugin(use_regional_compilation=True)",
    f"{LAST_BITS}; nothing is fused across blocks",
)
"""Advice: compiles in the time of one block, where the model repeats it."""
compile_loss = patched(
    "Compile the loss",
    "compile-loss",
    "loss_fn = torch.compile(loss_fn)   # or a function that calls model and loss, compiled as one",
    LAST_BITS,
)
"""An edit for a model that is compiled already."""


def mark_dynamic(
    verify: str, name: str, dim: int, target: Target | None = None, *, known: bool = True
) -> Fix:
    """`known`: the capture names the input; what is only part of one (`batch['ids']`) is shown, not edited."""
    fix = patch(
        "Call mark_dynamic()",
        "mark-dynamic",
        f"torch._dynamo.mark_dynamic({name}, {dim})  # before the call of the compiled function",
        "raises where the compiled code needs that size to be one number",
        verify,
        params={"name": name, "dim": dim},
        safety="display",
        target=target,
    )
    return fix if known else advice(fix.title, fix.text, fix.risk, verify)


steady_shapes = advised(
    "Pad to fixed shapes",
    "def pad(batch, value, bucket=64):   # (batch, length); labels with -100, masks with 0\n"
    "    return torch.nn.functional.pad(batch, (0, -batch.shape[1] % bucket), value=value)\n\n"
    "# before the loop, a step with the largest shape: the allocator settles at its maximum at once\n"
    "largest = torch.zeros(batch_size, max_length, dtype=torch.long, device=device)\n"
    "loss_fn(model(largest), largest).backward()\n"
    "optimizer.zero_grad(set_to_none=True)\n"
    "# HF: DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)",
    "padding computes on values that are discarded",
)
"""Advice: padding to few sizes, and the largest batch first."""


_BY_LINE = """The fix depends on the code at {file}:{line}:
- print or logging: remove it, or move it out of the compiled function
- .item(), float(), int(): torch._dynamo.config.capture_scalar_outputs = True, or read the value outside
- if, while or assert on a tensor's value: torch.where, torch.cond, torch._check
- NumPy: the torch function of the same name
- a call that cannot be traced: @torch.compiler.disable, which makes the break deliberate"""


def keep_in_graph(verify: str, place: Target, hints: Iterable[str] = ()) -> Fix:
    """`place`: the line that breaks the graph; `hints`: what PyTorch's own log says of it."""
    text = _BY_LINE.format(file=place.file, line=place.line)
    if lines := "".join(f"\n- {hint}" for hint in hints):
        text += f"\nPyTorch's own hints:{lines}"
    return patch(
        f"Remove the graph break at {place.file}:{place.line}",
        "graph-break-line",
        text,
        "compiled as one graph, results may not be bitwise identical",
        verify,
        params={"line": place.line, "file": place.file, "function": place.function},
        target=place,
    )


def forbid_graph_breaks() -> Fix:
    """Shown only: it raises as long as a break is left, so it comes after the others."""
    return patch(
        "Set fullgraph=True",
        "set-call-args",
        "model = torch.compile(model, fullgraph=True)",
        "raises as long as any graph break is left",
        "The script runs: no break is left.",
        params={"callee": "torch.compile", "args": {"fullgraph": True}, "remove": []},
        safety="display",
    )
