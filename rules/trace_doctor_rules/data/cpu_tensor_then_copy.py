"""TD104 cpu-tensor-then-copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np

from trace_doctor import Claim, Confidence, Context, NotCaptured, Table, threshold
from trace_doctor.evidence.host.device_copies import DeviceCopies
from trace_doctor.evidence.host.transfers import Copies, UnseenCopies
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.recorded_operators import LEAST_LAUNCHES, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule


def _copy(b: RunBuilder, kind: str = "HtoD (Pageable -> Device)") -> None:
    with b.op("aten::to", dims=[[1024, 256]]), b.op("aten::_to_copy"), b.op("aten::copy_"):
        b.copy(90, kind, bytes=1 << 20)
        if "Pageable" in kind:
            b.sync()


_BETWEEN = {
    "viewed": ("aten::tril", "aten::unsqueeze"),
    "scaled": ("aten::mul", "aten::add"),
    "another": ("aten::mul",),
}
"""what is done to it before it is copied"""


def _training(
    creation: str = "cpu",
    *,
    steps: int = 6,
    every: int = 1,
    shape: tuple[int, int] = (1024, 256),
    stacks: bool = True,
    marked: bool = True,
    stall: float = 0,
) -> RunBuilder:
    """Steps that need a mask; where it is made is the question."""
    b = RunBuilder(stacks=stacks, shapes=True)
    for n in range(steps):
        with b.step() if marked else nullcontext(), b.python("train.py", 4, "train"):
            if n % every == 0:
                if creation == "in place":
                    b.run_op("aten::empty", host_us=3)
                    b.run_op("aten::normal_", dims=[list(shape)], host_us=60)
                else:
                    with b.op("aten::zeros", us=5), b.op("aten::zero_", dims=[list(shape)]):
                        if creation == "gpu":
                            b.launch(3)
                        else:
                            b.wait(60)
                if creation == "between":
                    b.run_op("aten::mm", 5, host_us=10)
                for name in _BETWEEN.get(creation, ()):
                    b.run_op(name, dims=[list(shape)] * (2 if creation == "another" else 1), host_us=5)
                if creation != "gpu":
                    _copy(b)
            if n == 1:
                b.stall(stall)
            for _ in range(20):
                b.run_op("aten::mm", 30, host_us=20)
    return b


def _device_lost(fill_us: float, products: int = 20) -> RunBuilder:
    """Noise made on the host; the runtime's calls were recorded, and nothing of the GPU."""
    b = RunBuilder()
    for _ in b.steps(3):
        with b.op("aten::randn"), b.op("aten::normal_", us=fill_us):
            pass
        with b.op("aten::to"), b.op("aten::copy_"):
            b.runtime("cudaMemcpyAsync", 90)
            b.runtime("cudaStreamSynchronize", 5)
        for _ in range(products):
            with b.op("aten::mm", us=20):
                b.runtime("cudaLaunchKernel", 5)
    return b


def _calls_lost() -> RunBuilder:
    b = _training()
    b.events = [e for e in b.events if e["name"] != "cudaMemcpyAsync"]
    return b


_SCRIPT = """import torch
for step, x in enumerate(batches):
    mask = torch.zeros(1024, 256).to(device)
    loss = model(x, mask)
    loss.backward()
"""
_PATCHED = _SCRIPT.replace("torch.zeros(1024, 256).to(device)", "torch.zeros(1024, 256, device=device)")


class CpuTensorThenCopy(TimeRule):
    """A tensor is made on the host in every step, only to be copied to the GPU.

    What it does
    Finds factory calls (zeros, ones, full, eye, arange, rand, randn …) and tensors filled in place (normal_, fill_ …)
    that are copied to the device at once, in every step, and re-times the steps without making and copying them.

    Why is this bad
    The host fills the tensor with one core, the copy comes from memory that is not pinned and holds the host until it is
    done. The GPU would fill the tensor in microseconds, without anybody waiting.

    Evidence
    A factory operator that launched nothing, followed at once (but for views, tril, a cast and the like) by an operator
    that copies from pageable memory to the device, on the same thread; not one that was too short to fill what is copied
    (1 TB/s). With `record_shapes=True` both must have the same size. `torch.tensor(data)` is left out: with device= it is
    copied from the host just the same. Where the GPU's side was lost the calls of the runtime tell, and it is a note.

    How the saving is estimated
    The captured steps are simulated without the factory operator, the copy and its waits: an upper bound, for the device
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
    title = "Tensor created on CPU, then copied"
    needs = (Steps, Replay, Moments)
    wants = (CallSites, TimeLedger, GpuTimeline, DeviceCopies, UnseenCopies)
    to_pass = (RecordedOperators, IdleCauses)

    min_times: int = threshold(
        10, "times that count however they are spread", unit="count", source="as TD201: fewer are preparation"
    )
    min_share: float = threshold(
        0.002,
        "saving below which it is not worth a line",
        unit="share",
        source="noise between steps is larger",
    )
    min_share_unseen: float = threshold(
        0.05,
        "time of the host below which it is not worth a line where the GPU's side was lost",
        unit="share",
        source="the GPU may be busy meanwhile",
    )

    VALID = [
        Valid("made on the device", lambda: _training("gpu")),
        Valid("something else is copied", lambda: _training("between")),
        Valid("another shape is copied", lambda: _training(shape=(4, 4))),
        Valid("a view of another shape is copied", lambda: _training("viewed", shape=(4, 4))),
        Valid("multiplied with another tensor", lambda: _training("another")),
        Valid("once in six steps", lambda: _training(every=6)),
        Valid("a small part", _training, thresholds={"min_share": 0.5}),
        Valid("seven times, without marks of steps", lambda: _training(marked=False, steps=7), skipped="no step markers"),
        Valid("in the only step", lambda: _training(steps=1), skipped="one step"),
        Valid("once, without marks of steps", lambda: _training(marked=False, steps=1)),
        Valid("little, and the GPU's side was lost", lambda: _device_lost(2, 200)),
        Valid("the calls that copy are lost", _calls_lost, skipped="copies to the GPU are not in the trace"),
        Valid("nothing runs on a GPU", without_gpu, skipped="no GPU work"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "a mask in every step",
            _training,
            message="aten::zeros in train() (train.py) creates a CPU tensor once per step",
            confidence="high",
            shown="aten::zeros | 1.0 | 66.0 | 162.16666666666666 | 90.0",
            file="train.py",
            codemod="tensor-device",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("without stacks", lambda: _training(stacks=False), confidence="medium"),
        Invalid("ten times, without marks of steps", lambda: _training(marked=False, steps=10), severity="info"),
        Invalid("a queue that stands still", lambda: _training(stall=3000), severity="info"),
        Invalid("for a moment", lambda: _training(steps=30, stall=150), confidence="medium", thresholds={"max_unattributed": 1e-4}),
        Invalid("seen from another side before it is copied", lambda: _training("viewed"), message="aten::zeros"),
        Invalid("scaled before it is copied", lambda: _training("scaled"), message="aten::zeros"),
        Invalid("filled in place", lambda: _training("in place"), message="aten::normal_"),
        Invalid(
            "the GPU's side was lost",
            lambda: _device_lost(800),
            severity="info",
            message="was not recorded",
            shown="aten::randn | 1.0 | 801.0 | 97.0 | None",
        ),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        copies, replay, steps = _copies(ctx), ctx[Replay], ctx[Steps]
        least = self.min_share_unseen if isinstance(copies, UnseenCopies) else self.min_share
        sites = ctx.get(CallSites)
        groups: dict[tuple[str, Site | None], list[int]] = {}
        for i in np.flatnonzero(copies.maker >= 0).tolist():
            maker = int(copies.maker[i])
            site = sites.site(maker) if sites is not None else None
            groups.setdefault((copies.run.text(maker), site), []).append(i)
        claimed = doubtful = False
        for (name, site), members in groups.items():
            again = self._again_and_again(ctx, copies, members)
            one_step = steps.source != "none" and steps.count == 1
            if not again and not one_step and (steps.source != "none" or len(members) < 2):
                continue
            removal = _removal(copies, members)
            outcome = replay.without(removal)
            if outcome.share_of_step < least:
                continue
            if again:
                claimed = True
                yield self._claim(ctx, copies, members, name, site, removal, outcome, steps.count)
            else:
                doubtful = True
        orphans = int((copies.call < 0).sum())
        if not claimed and orphans > (1 - LEAST_LAUNCHES) * len(copies.call):
            raise NotCaptured(
                f"the calls that made {orphans:,} of {len(copies.call):,} copies to the GPU are not in the trace",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        if doubtful and not claimed:
            raise NotCaptured(
                "CPU tensors are copied to the GPU, but no step markers show whether this repeats"
                if steps.source == "none"
                else "CPU tensors are copied to the GPU, but one step does not show whether this repeats",
                "call prof.step() after each of several steps",
            )

    def _again_and_again(self, ctx: Context, copies: Copies, members: list[int]) -> bool:
        """Ten times, or in every step (one may lack it) of two or more."""
        starts = np.sort(copies.run.ts[copies.maker[members]])
        spans = np.array(ctx[Steps].spans("steady"), dtype=np.int64)
        steps_with = int((np.diff(np.searchsorted(starts, spans)) > 0).sum())
        return len(members) >= self.min_times or steps_with >= max(2, ctx[Steps].count - 1)

    def _claim(
        self,
        ctx: Context,
        copies: Copies,
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
        confidence = "low" if isinstance(copies, UnseenCopies) else self._confidence(ctx, outcome, site)
        target = site.target if site else None
        return Claim(
            message=_message(name, site, len(members) / count, copies),
            confidence=confidence,
            severity="info" if confidence == "low" else None,
            saving=outcome.saving(),
            location=location(site, ts_us=moments.ts_us(longest[0])),
            evidence=[_table(copies, members, name, count), outcome.table(_WHAT_IF, "created on the GPU")],
            spans=moments.longest(spans, "created on CPU and copied"),
            fixes=[techniques.create_on_device(_VERIFY, target), techniques.make_once(_VERIFY, target)],
            removal=removal,
            owned=spans,
            key=name,
        )

    def _confidence(self, ctx: Context, outcome: ReplayOutcome, site: Site | None) -> Confidence:
        if outcome.basis != "replay" or ctx[Steps].source == "none":
            return "low"
        return "medium" if site is None or self.much_unattributed(ctx) else "high"


def _copies(ctx: Context) -> Copies:
    """What was copied to the device; where that did no work in the capture, what the host asked it to copy."""
    if (lost := ctx.get(UnseenCopies)) is not None:
        return lost
    ctx[GpuTimeline]
    return ctx[DeviceCopies]


_VERIFY = "Record the same steps again: this line no longer copies to the device"
_WHAT_IF = "Simulated: created on the GPU"


def _removal(copies: Copies, members: list[int]) -> Removal:
    """Without making it, without copying it, and nobody waits."""
    run = copies.run
    rows = sorted({int(r) for i in members for r in (copies.maker[i], copies.op[i])})
    return Removal(
        host_spans=tuple((int(run.thread[r]), int(run.ts[r]), int(run.end[r])) for r in rows),
        make_async=tuple(sorted({w for i in members for w in copies.waits[i]})),
        gpu_rows=tuple(sorted(row for row in copies.row[members].tolist() if row >= 0)),
    )


def _message(name: str, site: Site | None, times: float, copies: Copies) -> str:
    where = f" in {site}" if site else ""
    unseen = isinstance(copies, UnseenCopies)
    often = "once" if round(times, 1) == 1 else f"{times:.1f}".removesuffix(".0") + " times"
    doubt = " Low confidence: GPU activity was not recorded." if unseen else ""
    return f"{name}{where} creates a CPU tensor {often} per step, which is then copied to the GPU.{doubt}"


def _table(copies: Copies, members: list[int], name: str, count: int) -> Table:
    run = copies.run
    on_gpu = not isinstance(copies, UnseenCopies)
    on_device = float(run.dur[copies.row[members]].sum()) / count / 1e3 if on_gpu else None
    return Table.with_units(
        "Created on CPU, then copied, per steady step",
        {
            "operator": "code",
            "times": "count",
            "creation": "us",
            "copy on the host": "us",
            "copy on the GPU": "us",
        },
        [
            [
                name,
                round(len(members) / count, 2),
                float(run.dur[copies.maker[members]].sum()) / count / 1e3,
                float(run.dur[copies.op[members]].sum()) / count / 1e3,
                on_device,
            ]
        ],
    )
