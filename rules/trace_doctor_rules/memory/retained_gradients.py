"""TD404 retained-gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from trace_doctor import Claim, Context, Fix, NotCaptured, Rule, Severity, Table, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.evidence.trace.call_sites import Site, location
from trace_doctor.testing import MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._retained_gradients_evidence import Retention, peak_when_freed, retentions
from trace_doctor_rules.memory._shared import MiB, make_up, peak_saving, size

_OF = {
    "step": "of gradients that step() has used stay through the next forward",
    "likely": "of an earlier step's gradients stay through the forward",
    "none": "of gradients of an earlier backward stay through the forward, and no optimizer step is in the record: they may be "
    "accumulated on purpose",
}
_WHEN = {True: "before the record", False: "none is recorded"}
_UNLESS = ", unless the batch is one of several that are accumulated: nothing in the record frees them"
_HOW = {
    "after_forward": "zero_grad() runs after the forward",
    "to_zero": "zero_grad() keeps their memory (set_to_none=False)",
    "missing": "nothing frees them: zero_grad() is missing or keeps their memory (set_to_none=False)",
}


def _train(
    zero_grad: str, *, stacks: str | None = "all", annotate: bool = True, **more: object
) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks, annotate=annotate)  # type: ignore[arg-type]
    b.train(4, zero_grad=zero_grad, **more)  # type: ignore[arg-type]
    return b


def _workspace() -> SnapshotBuilder:
    """cuBLAS allocates its scratch space in the first backward and keeps it."""
    b = SnapshotBuilder()
    b.held(40 * MIB)
    for step in range(4):
        with b.forward():
            workspace = b.alloc(60 * MIB)
        with b.backward():
            if step == 0:
                b.alloc(
                    33_554_432,
                    frames=[
                        ("??", 0, "at::cuda::getNewWorkspace()"),
                        ("??", 0, "torch::autograd::Engine::x"),
                    ],
                )
            gradient = b.alloc(40 * MIB)
            b.free(workspace)
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
    return b


def _recorded_later(
    steps: int = 3,
    *,
    to_zero: bool = False,
    ends_in_forward: bool = False,
    state: bool = True,
    micro_batches: int = 1,
) -> SnapshotBuilder:
    """A script without zero_grad(), recorded when it has trained for a while: parameters, gradients and state are there."""
    b = SnapshotBuilder()
    parameters = [64 * MIB, 32 * MIB]
    gradients: list[Any] = []
    for of in range(4 if state else 2):
        blocks = [b.held(p, frames=_ENGINE if of == 1 else None) for p in parameters]
        gradients = blocks if of == 1 else gradients
    for step in range(steps * micro_batches):
        kept = []
        for line in range(2):
            with b.forward(line=30 + line):
                kept.append(b.alloc(100 * MIB))
        if ends_in_forward and step == steps - 1:
            break
        with b.backward():
            for p in reversed(parameters):
                b.temporary(p)
                b.free(kept.pop())
        if (step + 1) % micro_batches:
            continue
        with b.optimizer_step():
            b.temporary(MIB)
        if to_zero:
            with b.zero_grad():
                pass
        if micro_batches > 1:
            with b.zero_grad():
                b.free(*gradients)
    return b


_ENGINE = [("??", 0, "torch::autograd::Engine::evaluate_function(...)")]


def _only_forward_and_backward(stacks: Literal["all", "python"]) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks)
    for _ in range(3):
        with b.forward():
            gradients = b.alloc(100 * MIB)
        with b.backward():
            b.alloc(50 * MIB)
            b.free(gradients)
    return b


_BEFORE = f"""import torch
{7 * chr(10)}
def main():
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
_AFTER = f"""import torch
{7 * chr(10)}
def main():
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class RetainedGradients(Rule):
    """The gradients of the step before stay in memory through the next forward.

    What it does
    Looks for gradients that an optimizer step has already used and that are still alive when the next forward makes its
    last activation, at the end of the record too.

    Why is this bad
    Gradients are as large as the parameters. They are needed from backward to step(); kept through the forward they lie
    beside the activations, where the peak usually is. Where nothing ever clears them, every backward adds to the old ones:
    then the training itself is wrong.

    Evidence
    A snapshot's history: blocks allocated in backward and alive after it, the optimizer's steps, the frames that free
    them. Library workspaces are none. Several backwards before one step are accumulation, and no fault. Gradients older than
    the record that nothing in it frees are likely retained where optimizer state or a step is there; where no step is
    recorded they are a note.

    How the saving is estimated
    The fall of the highest live bytes when these gradients are freed at the end of step() and come back in the next
    backward. It is 0 where the peak lies elsewhere; then only the risk is reported.

    Fix
    `optimizer.zero_grad(set_to_none=True)` right after `optimizer.step()`: move it, add it, or delete `set_to_none=False`.

    Fix safety
    Unsafe: a parameter without a gradient is then skipped by the optimizer instead of updated with a zero gradient (weight
    decay, momentum), and code that reads `.grad` between step() and backward sees None.

    When to ignore
    When the gradients are read after the step, for logging or for gradient statistics.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD404"
    name = "retained-gradients"
    title = "Old gradients stay through the forward"
    needs = (MemoryBlocks,)

    min_share: float = threshold(
        0.05,
        "retained gradients, as a share of the peak",
        unit="share",
        source="below, another fault is worth more",
    )
    min_bytes: int = threshold(
        16 * MiB, "retained gradients", unit="bytes", source="above any library workspace but cuBLAS's own"
    )

    VALID = [
        Valid("zero_grad after the step", lambda: _train("after_step")),
        Valid("zero_grad before the forward", lambda: _train("before_forward")),
        Valid("accumulation over four backwards", lambda: _train("after_step", accumulate=4)),
        Valid("a cuBLAS workspace allocated in backward", _workspace),
        Valid("small gradients", lambda: _train("never", parameters=[4 * MIB]), thresholds={"min_share": 0.0}),
        Valid("a small part", lambda: _train("never"), thresholds={"min_share": 0.5}),
        Valid("Python frames only, nothing marks the steps", lambda: _only_forward_and_backward("python"), skipped="Python frames"),
        Valid("a batch of several, those before it older than the record", lambda: _recorded_later(1, micro_batches=2)),
        Valid("no frames", lambda: _train("never", stacks=None), skipped="frames"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "zero_grad between forward and backward",
            lambda: _train("after_forward"),
            saving_bytes=64 * MIB,
            message="after the forward; freed after",
            shown="0 | 2 | 100663296 | between forward and backward",
            thresholds={"min_bytes": 96 * MIB},
            confidence="high",
            codemod="zero-grad",
            file="/home/me/train.py",
            line=15,
            before=_BEFORE,
            after=_AFTER,
        ),
        Invalid("zero_grad missing", lambda: _train("never"), message="zero_grad() is missing", confidence="high", claims=1),
        Invalid("Python frames only", lambda: _train("after_forward", stacks="python"), confidence="medium"),
        Invalid(
            "no annotations",
            lambda: _train("never", annotate=False),
            message="the peak lies elsewhere",
            severity="warning",
            shown="0 | 2 | 100663296 | not before backward",
        ),
        Invalid("one step of a script without zero_grad", lambda: _recorded_later(1), message="unless the batch is one of several", confidence="medium", saving_bytes=96 * MIB, shown="before the record | 2 | 100663296"),
        Invalid("one step with set_to_none=False", lambda: _recorded_later(1, to_zero=True), message="zero_grad() keeps their memory", codemod="zero-grad"),
        Invalid("the record ends in a forward after a step", lambda: _recorded_later(2, ends_in_forward=True), message="zero_grad() is missing"),
        Invalid("the forward is all that was recorded", lambda: _recorded_later(1, ends_in_forward=True), message="earlier step's gradients stay through the forward, unless", confidence="medium", saving_bytes=96 * MIB),
        Invalid("nothing marks the steps", lambda: _only_forward_and_backward("all"), message="may be accumulated on purpose", severity="info", confidence="low", shown="none is recorded"),
        Invalid("set_to_none=False", lambda: _train("to_zero"), message="set_to_none=False", codemod="zero-grad"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence = ctx[MemoryBlocks]
        if evidence.frames_kind in ("none", "cpp"):
            raise NotCaptured(
                "no Python frames were recorded, so forward and optimizer cannot be told apart",
                CAPTURE_ADVICE,
            )
        if evidence.frames_kind == "python" and not any(
            d.phases.has(Stage.OPTIMIZER) for d in evidence.devices
        ):
            raise NotCaptured(
                "only Python frames were recorded and no optimizer step: backward has none, and cannot be told from other "
                "threads",
                CAPTURE_ADVICE,
            )
        for device in evidence.devices:
            large = [r for r in retentions(device) if self._large(device, r)]
            if large:
                yield self._claim(device, large, sure=evidence.frames_kind == "all")

    def _large(self, device: DeviceBlocks, r: Retention) -> bool:
        return r.bytes >= self.min_bytes and r.bytes >= self.min_share * device.history.peak_bytes

    def _claim(self, device: DeviceBlocks, retentions: Sequence[Retention], *, sure: bool) -> Claim:
        history = device.history
        most = max(retentions, key=lambda r: (r.bytes, -r.backward))
        without = min(peak_when_freed(device, retentions), history.peak_bytes)
        fall = history.peak_bytes - without
        proof = min((r.proof for r in retentions), key=list(_OF).index)
        how = (
            most.cleared
            if most.cleared == "after_forward"
            else "to_zero"
            if device.phases.zero_grads
            else "missing"
        )
        site = _site(device, how)
        severity: Severity | None = "info" if proof == "none" else None if fall else "warning"
        why = f": {_HOW[how]}" if proof == "step" else _UNLESS if proof == "likely" else ""
        return Claim(
            message=f"{size(most.bytes)} {_OF[proof]}{why}; "
            + (f"freed after step() the peak falls by {size(fall)}." if fall else "the peak lies elsewhere."),
            confidence="low" if proof == "none" else "high" if sure and proof == "step" else "medium",
            severity=severity,
            saving=peak_saving(
                history.peak_bytes, without, "when these gradients are freed at the end of step()"
            )
            if fall
            else None,
            location=location(site, device=device.device),
            evidence=[_table(device, retentions), make_up(device, history.peak, "Live at the peak")],
            fixes=[_fix(how, site)],
            key=how,
        )


def _site(device: DeviceBlocks, how: str) -> Site | None:
    """The line of zero_grad() that comes too late, else that of step()."""
    return device.caller(Stage.ZERO_GRAD if how == "after_forward" else Stage.OPTIMIZER)


def _table(device: DeviceBlocks, retentions: Sequence[Retention]) -> Table:
    ends = device.phases.step_ends
    return table(
        "Gradients alive at the last allocation of a forward",
        {"after optimizer step": "text", "blocks": "count", "bytes": "bytes", "freed": "text"},
        [
            [
                str(ends.index(r.step_end)) if r.step_end in ends else _WHEN[r.step_end == BEFORE],
                len(r.blocks),
                r.bytes,
                "between forward and backward" if r.cleared == "after_forward" else "not before backward",
            ]
            for r in retentions
        ],
    )


def _fix(how: str, site: Site | None) -> Fix:
    titles = {
        "after_forward": "Move zero_grad() to right after step()",
        "to_zero": "Let zero_grad() free the gradients",
        "missing": "Clear the gradients right after step()",
    }
    modes = {"after_forward": "move", "to_zero": "drop-set-to-none-false", "missing": "add"}
    return Fix(
        title=titles[how],
        kind="patch",
        safety="unsafe",
        codemod="zero-grad",
        params={"mode": modes[how]},
        target=target(site),
        text="optimizer.step()\noptimizer.zero_grad(set_to_none=True)",
        verify="a new snapshot shows no gradients alive in the forward",
        risk="parameters without a gradient are skipped by the optimizer; code that reads .grad after step() sees None",
    )
