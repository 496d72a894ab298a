"""Fixes for repeated recompilation, by what changed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trace_doctor import Fix, Target
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import advice, patch

VERIFY = "Record the same steps again: TD502 is gone and TORCH_LOGS=recompiles prints nothing after the first steps."
_SIZE = re.compile(r"tensor '(.+?)' (?:size|stride) mismatch at index (\d+)")
_NUMBER = re.compile(r"==\s*-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)\b")
_FLAG = re.compile(
    r"(requires_grad|dtype|device|dispatch key|grad_mode|training)\b.*(?:mismatch|expected|==)?",
    re.IGNORECASE,
)


def because(reason: str) -> str:
    """A guard without the comment that PyTorch puts behind it."""
    return re.split(r"\s{2,}#", reason)[0].strip().rstrip(".")


def fixes(file: str | None, changed: Sequence[str], same_shapes: bool) -> list[Fix]:
    """`changed`: PyTorch's words, or input shapes, for each compilation; `same_shapes`: the inputs had those of before."""
    text = " ".join(changed)
    if _SIZE.search(text) or " became " in text:
        return _for_shapes(file, _SIZE.search(text))
    if _NUMBER.search(text):
        return [_for_numbers()]
    if _FLAG.search(text):
        return [_for_flags(because(changed[0]))]
    return [_ask_pytorch(), _for_numbers()] if same_shapes else [_ask_pytorch()]


def _for_shapes(file: str | None, size: re.Match[str] | None) -> list[Fix]:
    name, dim = (size.group(1), size.group(2)) if size else ("x", "0")
    variable = name.removeprefix("L['").removesuffix("']")
    return [
        patch(
            title="Set dynamic=True",
            codemod="set-call-args",
            params={"callee": "torch.compile", "args": {"dynamic": True}, "remove": []},
            target=Target(file=file),
            text="model = torch.compile(model, dynamic=True)",
            verify=VERIFY,
            risk="code for any shape can be slower than code for one, and its results may not be bitwise identical",
        ),
        techniques.mark_dynamic(
            VERIFY, variable, int(dim), Target(file=file), known=size is not None and variable.isidentifier()
        ),
        advice(
            title="Pad inputs to a few shapes",
            text="pad every batch to one of a few sizes; DataLoader(..., drop_last=True) for the smaller last batch",
            verify=VERIFY,
        ),
    ]


def _for_numbers() -> Fix:
    return advice(
        title="Pass changing numbers as tensors",
        text="scale = torch.tensor(scale, device=x.device)  # a Python float or int is compiled in as a constant",
        verify=VERIFY,
    )


def _for_flags(reason: str) -> Fix:
    return advice(
        title="Keep guarded flags constant between calls",
        text=f"the guard that failed: {reason}\ncompile one function per variant where both are needed",
        verify=VERIFY,
    )


def _ask_pytorch() -> Fix:
    return Fix(
        title="Run with TORCH_LOGS=recompiles",
        kind="command",
        safety="display",
        text="TORCH_LOGS=recompiles python train.py\n# or record the trace with record_shapes=True and TORCH_TRACE=folder next to it",
        verify="The log names the guard that failed for each recompilation.",
    )
