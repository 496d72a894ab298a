"""TD404 retained-gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from trace_doctor import Claim, Context, Fix, NotCaptured, Rule, Severity, Table, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import BEFORE, CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import OwnFrames, WholeSteps
from trace_doctor.evidence.trace.call_sites import Site, location
from trace_doctor.testing import MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules._shared import patch, table, target
from trace_doctor_rules.memory._retained_gradients_evidence import Retention, peak_when_freed, retentions
from trace_doctor_rules.memory._shared import MiB, breakdown, peak_saving, size

_OF = {
    "step": "of used gradients remains allocated during the next forward",
    "likely": "of gradients from an earlier step remains allocated during the forward",
    "none": "of gradients from an earlier backward remains allocated during the forward",
}
_DOUBT = {
    "step": "",
    "likely": " Nothing recorded frees them, which gradient accumulation would explain as well.",
    "none": " No optimizer step was recorded, so they may be accumulated on purpose.",
}
_WHEN = {True: "before recording", False: "not recorded"}
_HOW = {
    "after_forward": "zero_grad() runs after the forward",
    "to_zero": "zero_grad() keeps their memory (set_to_none=False)",
    "missing": "zero_grad() is missing or keeps their memory (set_to_none=False)",
}


def _train(
    zero_grad: str, *, stacks: str | None = "all", annotate: bool = True, **more: object
) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks, annotate=annotate)  # type: ignore[arg-type]
    b.train(4, zero_grad=zero_grad, **more)  # type: ignore[arg-type]
    return b


def _of_a_library(b: SnapshotBuilder) -> SnapshotBuilder:
    """The same, with frames that hold no line of the script."""
    for frame in [f for e in b.entries for f in e["frames"] if f["filename"].startswith("/home/me/")]:
        frame["filename"] = "/usr/lib/python3/dist-packages/trainer/loop.py"
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
    micro_batches: int = 1,
) -> SnapshotBuilder:
    """A script without zero_grad(), recorded when it has trained for a while: parameters, gradients and state are there."""
    b = SnapshotBuilder()
    parameters = [64 * MIB, 32 * MIB]
    gradients: list[Any] = []
    for of in range(4):
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
    """Gradients of the previous step stay allocated during the next forward.

    What it does
    Finds gradients that an optimizer step has used and that are still allocated at the last activation of the next forward,
    also at the end of the record.

    Why is this bad
    Gradients are as large as the parameters. They are needed from backward to step(). Kept through the forward, they add to
    the activations, where the peak usually is. If nothing clears them, every backward adds to the old ones, and the training
    itself is wrong.

    Evidence
    A snapshot's history: blocks allocated in backward and alive after it, the optimizer steps, and the frames that free them.
    Library workspaces are not counted. Several backwards before one step are accumulation, not a problem. Gradients older than
    the record that nothing in it frees are likely retained if optimizer state or a step is recorded. Without a recorded
    step they are an info finding. A history without a whole step, or without a frame of the script, is skipped if it shows none.

    How the saving is estimated
    The reduction of peak allocated bytes when these gradients are freed after step() and return in the next backward.
    Where the peak is elsewhere, it is next to none: then only the risk is reported.

    Fix
    `optimizer.zero_grad(set_to_none=True)` right after `optimizer.step()`: move it, add it, or remove `set_to_none=False`.

    Fix safety
    Unsafe: the optimizer then skips a parameter without a gradient instead of updating it with a zero gradient (weight decay,
    momentum). Code that reads `.grad` between step() and backward sees None.

    When to ignore
    When gradients are read after the step, for logging or gradient statistics.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD404"
    name = "retained-gradients"
    title = "Gradients not freed before the next forward"
    of_training = True
    needs = (MemoryBlocks,)
    to_pass = (WholeSteps, OwnFrames)
    about = ("gradients",)

    min_share: float = threshold(
        0.05,
        "retained gradients, as a share of the peak",
        unit="share",
        source="below, other problems matter more",
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
        Valid("Python frames only, nothing marks the steps", lambda: _only_forward_and_backward("python"), skipped="C++ frames"),
        Valid("a batch of several, those before it older than the record", lambda: _recorded_later(1, micro_batches=2), skipped="no whole step"),
        Valid("frames of libraries alone", lambda: _of_a_library(_train("after_step")), skipped="no frame of your own code"),
        Valid("no frames", lambda: _train("never", stacks=None), skipped="frames"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "zero_grad between forward and backward",
            lambda: _train("after_forward"),
            saving_bytes=64 * MIB,
            message="because zero_grad() runs after the forward.",
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
            message="The peak is elsewhere",
            severity="warning",
            shown="0 | 2 | 100663296 | not before backward",
        ),
        Invalid("one step of a script without zero_grad", lambda: _recorded_later(1), message="gradient accumulation would explain", confidence="medium", saving_bytes=96 * MIB, shown="before recording | 2 | 100663296"),
        Invalid("one step with set_to_none=False", lambda: _recorded_later(1, to_zero=True), message="zero_grad() keeps their memory", codemod="zero-grad"),
        Invalid("the record ends in a forward after a step", lambda: _recorded_later(2, ends_in_forward=True), message="zero_grad() is missing"),
        Invalid("the forward is all that was recorded", lambda: _recorded_later(1, ends_in_forward=True), message="gradients from an earlier step remains allocated during the forward. Nothing", confidence="medium", saving_bytes=96 * MIB),
        Invalid("nothing marks the steps", lambda: _only_forward_and_backward("all"), message="may be accumulated on purpose", severity="info", confidence="low", shown="not recorded"),
        Invalid("set_to_none=False", lambda: _train("to_zero"), message="set_to_none=False", codemod="zero-grad"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence = ctx[MemoryBlocks]
        if evidence.frames_kind in ("none", "cpp"):
            raise NotCaptured("no Python frames recorded", CAPTURE_ADVICE)
        if evidence.frames_kind == "python" and not any(
            d.phases.has(Stage.OPTIMIZER) for d in evidence.devices
        ):
            raise NotCaptured("neither C++ frames nor an optimizer step recorded", CAPTURE_ADVICE)
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
        at_the_peak = fall >= self.min_share * history.peak_bytes
        severity: Severity | None = "info" if proof == "none" else None if at_the_peak else "warning"
        why = f" because {_HOW[how]}" if proof == "step" else ""
        effect = "hardly lowers" if fall else "does not lower"
        elsewhere = "" if at_the_peak else f" The peak is elsewhere, so freeing them {effect} it."
        return Claim(
            message=f"{size(most.bytes)} {_OF[proof]}{why}.{_DOUBT[proof]}{elsewhere}",
            confidence="low" if proof == "none" else "high" if sure and proof == "step" else "medium",
            severity=severity,
            saving=peak_saving(history.peak_bytes, without, "with these gradients freed at the end of step()")
            if at_the_peak
            else None,
            location=location(site, device=device.device),
            evidence=[_table(device, retentions), breakdown(device, history.peak)],
            fixes=[_fix(how, site)],
            key=how,
        )


def _site(device: DeviceBlocks, how: str) -> Site | None:
    """The line of zero_grad() that comes too late, else that of step()."""
    return device.caller(Stage.ZERO_GRAD if how == "after_forward" else Stage.OPTIMIZER)


def _table(device: DeviceBlocks, retentions: Sequence[Retention]) -> Table:
    ends = device.phases.step_ends
    return table(
        "Gradients allocated at the end of a forward",
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
        "after_forward": "Move zero_grad() after step()",
        "to_zero": "Remove set_to_none=False",
        "missing": "Call zero_grad() after step()",
    }
    modes = {"after_forward": "move", "to_zero": "drop-set-to-none-false", "missing": "add"}
    return patch(
        title=titles[how],
        safety="unsafe",
        codemod="zero-grad",
        params={"mode": modes[how]},
        target=target(site),
        text="optimizer.step()\noptimizer.zero_grad(set_to_none=True)",
        verify="a new snapshot shows no gradients allocated during the forward",
        risk="parameters without a gradient are skipped by the optimizer; code that reads .grad after step() sees None",
    )
