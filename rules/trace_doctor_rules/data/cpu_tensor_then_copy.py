"""TD104 cpu-tensor-then-copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trace_doctor import Claim, Column, Confidence, Context, NotCaptured, Rule, Table, threshold
from trace_doctor.evidence import Removal
from trace_doctor.evidence.call_sites import CallSites, Site, location
from trace_doctor.evidence.device_copies import DeviceCopies
from trace_doctor.evidence.gpu_timeline import GpuTimeline
from trace_doctor.evidence.moments import Moments
from trace_doctor.evidence.replay import Replay, ReplayOutcome
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.time_ledger import TimeLedger
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques


def _copy(b: RunBuilder, kind: str = "HtoD (Pageable -> Device)") -> None:
    with b.op("aten::to", dims=[[1024, 256]]), b.op("aten::_to_copy"), b.op("aten::copy_"):
        b.copy(90, kind, bytes=1 << 20)
        if "Pageable" in kind:
            b.sync()


def _training(
    made: str = "cpu",
    *,
    steps: int = 6,
    every: int = 1,
    shape: tuple[int, int] = (1024, 256),
    stacks: bool = True,
) -> RunBuilder:
    """Steps that need a mask; where it is made is the question."""
    b = RunBuilder(stacks=stacks, shapes=True)
    for n in range(steps):
        with b.step(), b.python("train.py", 4, "train"):
            if n % every == 0:
                with b.op("aten::zeros", us=5), b.op("aten::zero_", dims=[list(shape)]):
                    if made == "gpu":
                        b.launch(3)
                    else:
                        b.wait(60)
                if made == "between":
                    with b.op("aten::mm", us=10):
                        b.launch(5)
                if made != "gpu":
                    _copy(b)
            for _ in range(20):
                with b.op("aten::mm", us=20):
                    b.launch(30)
    return b


_SCRIPT = """import torch
for step, x in enumerate(batches):
    mask = torch.zeros(1024, 256).to(device)
    loss = model(x, mask)
    loss.backward()
"""
_PATCHED = _SCRIPT.replace("torch.zeros(1024, 256).to(device)", "torch.zeros(1024, 256, device=device)")


@dataclass(frozen=True)
class CpuTensorThenCopy(Rule):
    """A tensor is made on the host in every step, only to be copied to the GPU.

    What it does
    Finds factory calls (zeros, ones, full, eye, arange, rand, randn …) whose result is copied to the device at once, in
    every step, and re-times the steps without making and copying it.

    Why is this bad
    The host fills the tensor with one core, the copy comes from memory that is not pinned and holds the host until it is
    done. The GPU would fill the tensor in microseconds, without anybody waiting.

    Evidence
    A factory operator that launched nothing, followed at once by an operator that copies from pageable memory to the
    device, on the same thread. With `record_shapes=True` both must have the same shape. `torch.tensor(data)` is left
    out: with device= it is copied from the host just the same.

    How the saving is estimated
    The captured steps are re-timed without the factory operator, the copy and its waits: an upper bound, for the device
    needs a short kernel instead.

    Fix
    `torch.zeros(n, device=device)`, `torch.randn(..., device=x.device)`, or `x.new_zeros(n)`, `torch.zeros_like(x)`.
    What is the same in every step is made once, as a buffer of the module.

    Fix safety
    Unsafe: random numbers of the device differ from those of the host.

    When to ignore
    When the host's random numbers are wanted, so that results are the same on every device.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device
    """

    code = "TD104"
    name = "cpu-tensor-then-copy"
    title = "A tensor is made on the host and then copied"
    needs = (Steps, GpuTimeline, DeviceCopies, Replay, Moments)
    wants = (CallSites, TimeLedger)

    min_times: int = threshold(
        10, "times that count however they are spread", unit="count", source="as TD201: fewer are preparation"
    )
    min_share: float = threshold(
        0.002,
        "saving below which it is not worth a line",
        unit="share",
        source="noise between steps is larger",
    )
    max_unattributed: float = threshold(
        0.10, "unattributed idle above which the rule is not sure", unit="share", source="185 real captures"
    )

    VALID = [
        Valid("made on the device", lambda: _training("gpu")),
        Valid("something else is copied", lambda: _training("between")),
        Valid("another shape is copied", lambda: _training(shape=(4, 4))),
        Valid("once in six steps", lambda: _training(every=6)),
    ]
    INVALID = [
        Invalid(
            "a mask in every step",
            _training,
            message="aten::zeros",
            confidence="high",
            file="train.py",
            codemod="tensor-device",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("without stacks", lambda: _training(stacks=False), confidence="medium"),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        copies, replay, steps = ctx[DeviceCopies], ctx[Replay], ctx[Steps]
        sites = ctx.get(CallSites)
        groups: dict[tuple[str, Site | None], list[int]] = {}
        for i in np.flatnonzero(copies.maker >= 0).tolist():
            maker = int(copies.maker[i])
            site = sites.site(maker) if sites is not None else None
            groups.setdefault((copies.run.text(maker), site), []).append(i)
        claimed = doubtful = False
        for (name, site), members in groups.items():
            again = self._again_and_again(ctx, copies, members)
            if not again and (steps.source != "none" or len(members) < 2):
                continue
            removal = _removal(copies, members)
            outcome = replay.without(removal)
            if outcome.share_of_step < self.min_share:
                continue
            if again:
                claimed = True
                yield self._claim(ctx, copies, members, name, site, removal, outcome, steps.count)
            else:
                doubtful = True
        if doubtful and not claimed:
            raise NotCaptured(
                "tensors made on the host and copied, but no steps that would show whether they come back",
                "call prof.step() after each training step",
            )

    def _again_and_again(self, ctx: Context, copies: DeviceCopies, members: list[int]) -> bool:
        """Ten times, or in every step (one may lack it) of two or more."""
        starts = np.sort(copies.run.ts[copies.maker[members]])
        spans = np.array(ctx[Steps].spans("steady"), dtype=np.int64)
        seen = int((np.diff(np.searchsorted(starts, spans)) > 0).sum())
        return len(members) >= self.min_times or seen >= max(2, ctx[Steps].count - 1)

    def _claim(
        self,
        ctx: Context,
        copies: DeviceCopies,
        members: list[int],
        name: str,
        site: Site | None,
        removal: Removal,
        outcome: ReplayOutcome,
        count: int,
    ) -> Claim:
        run, moments = copies.run, ctx[Moments]
        spans = [(int(run.ts[copies.maker[i]]), int(run.end[copies.op[i]])) for i in members]
        longest = max(spans, key=lambda s: s[1] - s[0])
        confidence = self._confidence(ctx, outcome, site)
        target = site.target if site else None
        return Claim(
            message=_message(name, site, len(members) / count, outcome),
            confidence=confidence,
            severity="info" if confidence == "low" else None,
            saving=outcome.saving(),
            location=location(site, ts_us=moments.ts_us(longest[0])),
            evidence=[_table(copies, members, name, count), outcome.table(_WHAT_IF, "made on the device")],
            spans=moments.longest(spans, "made on the host and copied"),
            fixes=[techniques.create_on_device(_VERIFY, target), techniques.make_once(_VERIFY, target)],
            removal=removal,
            owned=spans,
            key=name,
        )

    def _confidence(self, ctx: Context, outcome: ReplayOutcome, site: Site | None) -> Confidence:
        ledger = ctx.get(TimeLedger)
        if outcome.basis != "replay" or ctx[Steps].source == "none":
            return "low"
        if site is None or (ledger is not None and ledger.unattributed_share > self.max_unattributed):
            return "medium"
        return "high"


_VERIFY = "record the same steps again: the copy to the device is gone from this line"
_WHAT_IF = "What if it were made on the device"


def _removal(copies: DeviceCopies, members: list[int]) -> Removal:
    """Without making it, without copying it, and nobody waits."""
    run = copies.run
    rows = sorted({int(r) for i in members for r in (copies.maker[i], copies.op[i])})
    return Removal(
        host_spans=tuple((int(run.thread[r]), int(run.ts[r]), int(run.end[r])) for r in rows),
        make_async=tuple(sorted({w for i in members for w in copies.waits[i]})),
        gpu_rows=tuple(sorted(int(copies.row[i]) for i in members)),
    )


def _message(name: str, site: Site | None, times: float, outcome: ReplayOutcome) -> str:
    where = f" in {site}" if site else ""
    often = "once" if round(times, 1) == 1 else f"{times:.1f}".removesuffix(".0") + " times"
    return (
        f"{name}{where} makes a tensor on the host {often} a step, which is copied to the GPU at once: made there, "
        f"{outcome.promise}."
    )


def _table(copies: DeviceCopies, members: list[int], name: str, count: int) -> Table:
    run = copies.run
    rows = copies.row[members]
    return Table(
        title="Made on the host, then copied (per steady step)",
        columns=[
            Column("operator", "code"),
            Column("times", "count"),
            Column("making it", "us"),
            Column("the host copies", "us"),
            Column("the device copies", "us"),
        ],
        rows=[
            [
                name,
                round(len(members) / count, 2),
                float(run.dur[copies.maker[members]].sum()) / count / 1e3,
                float(run.dur[copies.op[members]].sum()) / count / 1e3,
                float(run.dur[rows].sum()) / count / 1e3,
            ]
        ],
    )
