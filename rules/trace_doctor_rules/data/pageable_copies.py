"""TD102 pageable-copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt

from trace_doctor import Claim, Confidence, Context, NotCaptured, Table, threshold
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.host.device_copies import DeviceCopies
from trace_doctor.evidence.host.host_bound import HALF
from trace_doctor.evidence.host.transfers import MOST_ARGS
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.replay.what_if import Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import CallSites, location
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule, spans_of

_PINNED = "HtoD (Pinned -> Device)"


def _training(
    kind: str = "HtoD (Pageable -> Device)",
    *,
    copy_us: float = 400,
    gpu_us: float = 2000,
    steps: int = 6,
    waits: bool | None = None,
    marked: bool = True,
    stall: float = 0,
) -> RunBuilder:
    """Steps that copy a batch of 4 MB and compute on it, with nothing that waits."""
    b = RunBuilder(stacks=True)
    for n in range(steps):
        with b.step() if marked else nullcontext(), b.python("train.py", 20, "train"):
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(copy_us, kind, bytes=4 << 20)
                if waits or (waits is None and "Pageable" in kind):
                    b.sync()
            if n == 1:
                b.stall(stall)
            for _ in range(40):
                b.run_op("aten::mm", gpu_us / 40, host_us=20)
    return b


def _without_sizes(of: int = 6) -> RunBuilder:
    b = _training()
    for event in [e for e in b.events if "bytes" in e.get("args", {})][:of]:
        del event["args"]["bytes"]
    return b


def _beside_pinned() -> RunBuilder:
    """Each step copies 4 MB more from pinned memory, twice as fast, and does not wait for it."""
    b = RunBuilder()
    for _ in b.steps(6):
        for us, kind in ((400, "HtoD (Pageable -> Device)"), (200, _PINNED)):
            with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                b.copy(us, kind, bytes=4 << 20)
                if kind != _PINNED:
                    b.sync()
        for _ in range(40):
            b.run_op("aten::mm", 50, host_us=20)
    return b


def _named_pinned_in_part() -> RunBuilder:
    """Each second copy is called one from pinned memory, and holds the host as the others do."""
    b = _training()
    for event in [e for e in b.events if e["name"].startswith("Memcpy")][::2]:
        event["name"] = f"Memcpy {_PINNED}"
    return b


def _kinds_in_arguments(kind: str | int) -> RunBuilder:
    """As torch 2.14 can write it: each copy is named `Memcpy`, its arguments say from where to where."""
    b = _training()
    for event in [e for e in b.events if e["name"].startswith("Memcpy")]:
        event["name"] = "Memcpy"
        event["args"] |= {"copy kind": kind, "src kind": "pageable", "dst kind": "device"}
    return b


def _made_on_the_host(us: float = 50) -> RunBuilder:
    """4 MB are copied after something of the host's was filled for so long."""
    b = RunBuilder()
    for _ in b.steps(6):
        b.run_op("aten::zeros", host_us=us)
        with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
            b.copy(400, bytes=4 << 20)
            b.sync()
        for _ in range(40):
            b.run_op("aten::mm", 50, host_us=20)
    return b


_SCRIPT = """from torch.utils.data import DataLoader
loader = DataLoader(dataset, batch_size=32, num_workers=4)
for x, y in loader:
    x = x.to(device)
    y = y.to(device)
    loss = model(x, y)
    loss.backward()
"""
_PATCHED = """from torch.utils.data import DataLoader
loader = DataLoader(dataset, batch_size=32, num_workers=4, pin_memory=True)
for x, y in loader:
    x = x.to(device, non_blocking=True)
    y = y.to(device, non_blocking=True)
    loss = model(x, y)
    loss.backward()
"""


class PageableCopies(TimeRule):
    """Batches go to the GPU from ordinary memory, and everything waits for the copy.

    What it does
    Finds copies to the device from pageable memory that the GPU does nothing beside, and those from pinned memory for
    which the host waits all the same (no `non_blocking=True`), and re-times the captured steps with copies from pinned
    memory that do not wait.

    Why is this bad
    The GPU can only read memory that is pinned. A copy from ordinary memory goes through a small pinned buffer that the
    host fills: about half the speed of a PCIe 3 link, down to an eighth of a PCIe 5 link's. It holds the host until it is
    done: afterwards the GPU idles until the host has launched new work. `non_blocking=True` alone changes nothing, for the copy is staged by the host all the same.

    Evidence
    `Memcpy HtoD (Pageable -> Device)` in the steady steps, as far as neither kernels nor collectives ran beside it, and
    `(Pinned -> Device)` with a synchronise in the operator that copies, where not waiting saves 3%. Copies
    of tensors that were made on the host just before are TD104's. With stacks recorded it is a hint, unless the saving lasts with half
    the host work. AMD's profiler does not say which memory is pinned.

    How the saving is estimated
    The captured steps are simulated with these copies at the link's speed (that of the fastest copy from pinned memory
    in the capture, else what PCIe gives: 12.5, 25 or 50 GB/s by the device's generation), and with calls that return at
    once. What a copy takes from pinned memory still counts. An upper bound.

    Fix
    pin_memory=True for the DataLoader together with .to(device, non_blocking=True). Never do the same with copies back
    to the host without a synchronise.

    Fix safety
    Unsafe: the same bytes arrive, in the order of the stream, unless something changes the batch while it is copied. What
    else holds it (a view, a callback, a dataset with one buffer) no script shows; where a method plainly changes it in
    place, the edit is refused.

    When to ignore
    When the machine has little memory (pinned memory cannot be swapped), or with unified memory.

    References
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://developer.nvidia.com/blog/how-optimize-data-transfers-cuda-cc/
    """

    code = "TD102"
    name = "pageable-copies"
    title = "Host-to-device copies use pageable memory"
    about = ("exposed_copy",)
    needs = (Steps, GpuTimeline, DeviceCopies, Replay, Moments)
    wants = (CallSites, TimeLedger)
    to_pass = (RecordedOperators, IdleCauses)

    min_share: float = threshold(
        0.01,
        "time of the step in which such copies run and nothing else does",
        unit="share",
        source="real captures: 1 to 5% where batches come from pageable memory, under 0.2% elsewhere",
    )
    min_waiting: float = threshold(
        0.03,
        "saving where copies from pinned memory, which wait all the same, do not",
        unit="share",
        source="the severity `warning` begins there",
    )
    min_lasting: float = threshold(
        0.03,
        "saving that must be left with half the host work, where stacks were recorded, for more than a hint",
        unit="share",
        source="stacks make host work two to three times as long: what waits behind a copy is partly the profiler's",
    )

    VALID = [
        Valid("pinned memory", lambda: _training(_PINNED)),
        Valid("pinned memory, and waiting hardly costs", lambda: _training(_PINNED, gpu_us=400, copy_us=10, waits=True)),
        Valid("too short to matter", lambda: _training(copy_us=10)),
        Valid("made on the host: TD104", _made_on_the_host, thresholds={"min_share": 0.0}),
        Valid("copies back to the host", lambda: _training("DtoH (Device -> Pageable)")),
        Valid("sizes are not there", _without_sizes, skipped="sizes of 6 of 6 copies"),
        Valid("kinds of copies that torch does not know", lambda: _kinds_in_arguments(9), skipped="kinds of copies"),
        Valid("AMD", lambda: _training("HtoD (Host -> Device)"), skipped="pinned"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "4 MB a step",
            _training,
            message="idle for 400 µs. From pageable memory, 4.19 MB are copied per step at 10 GB/s. "
            "At 50 GB/s, assumed as no pinned copy shows the link's speed, 84 µs remain.",
            confidence="high",
            shown="aten::to | 1.0 | 400.0",
            codemod="pinned-copies",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("kinds in the arguments", lambda: _kinds_in_arguments("HtoD"), confidence="high"),
        Invalid("after an operator that cannot have filled as much", lambda: _made_on_the_host(2), confidence="high"),
        Invalid("the host runs ahead", lambda: _training(waits=False), message="1 pageable", shown="aten::to | 1.0 | 400.0"),
        Invalid("a pinned copy shows the link", _beside_pinned, message="At 21 GB/s, the fastest pinned copy, 200 µs remain."),
        Invalid("sizes of most copies", lambda: _without_sizes(2), message="The 4 pageable copies whose size is known run at 10 GB/s."),
        Invalid("names that the calls contradict", _named_pinned_in_part, confidence="high", shown="aten::to | 1.0 | 400.0 | 400.0 | 316.114"),
        Invalid("one step", lambda: _training(steps=1), confidence="medium", message="1 pageable host-to-device copy"),
        Invalid("two steps", lambda: _training(steps=2), confidence="high"),
        Invalid("without marks of steps", lambda: _training(marked=False), severity="info", confidence="low"),
        Invalid("a queue that stands still", lambda: _training(stall=4000), severity="info", confidence="low"),
        Invalid("for a moment", lambda: _training(stall=150), confidence="medium", thresholds={"max_unattributed": 1e-3}),
        Invalid("which stacks may have made slow", _training, severity="info", confidence="high", thresholds={"min_lasting": 0.9}),
        Invalid(
            "pinned memory, and the host waits",
            lambda: _training(_PINNED, gpu_us=900, waits=True),
            message="1 pinned host-to-device copy per step blocks the host",
        ),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        copies, replay, steps = ctx[DeviceCopies], ctx[Replay], ctx[Steps]
        if 2 * copies.unsized > (most := min(len(copies.row), MOST_ARGS)):
            raise NotCaptured(
                f"the sizes of {copies.unsized:,} of {most:,} copies are not in the trace, so how fast they could be is not known",
                "the trace as the profiler wrote it",
            )
        chosen = self._chosen(copies, replay)
        length = sum(end - start for start, end in steps.on_device("steady"))
        bare = int(copies.exposed[chosen].sum())
        if not bare or bare < self.min_share * length:
            return
        removal = copies.removal(chosen)
        outcome = replay.without(removal)
        moments = ctx[Moments]
        longest = copies.row[chosen][np.argmax(copies.exposed[chosen])]
        sites = ctx.get(CallSites)
        site = sites.site(int(longest)) if sites is not None else None
        owned = spans_of(copies.alone(chosen))
        confidence = self._confidence(ctx, outcome)
        doubtful = copies.stacks and replay.beside(removal, HALF) < self.min_lasting
        yield Claim(
            message=" ".join(
                [
                    _message(copies, chosen, bare / steps.count, steps.count),
                    *_speed(copies, chosen, steps.count),
                ]
            ),
            title="Pinned host-to-device copies block the host" if copies.pinned[chosen].all() else "",
            confidence=confidence,
            severity="info" if confidence == "low" or doubtful else None,
            saving=outcome.saving(),
            location=location(site, ts_us=moments.ts_us(int(copies.run.ts[longest]))),
            evidence=_tables(ctx, copies, chosen, outcome),
            spans=moments.longest(owned, "copying from pageable memory"),
            fixes=[techniques.pinned_copies(_VERIFY, site.target if site else None)],
            removal=removal,
            owned=owned,
            key="copies",
        )

    def _chosen(self, copies: DeviceCopies, replay: Replay) -> npt.NDArray[np.bool_]:
        """From pageable memory; from pinned memory where it is the waiting that costs."""
        chosen = (copies.maker < 0) & ~copies.pinned
        pinned = (copies.maker < 0) & copies.pinned
        if pinned.any() and replay.without(copies.removal(pinned)).share_of_step >= self.min_waiting:
            chosen |= pinned
        return chosen

    def _confidence(self, ctx: Context, outcome: ReplayOutcome) -> Confidence:
        steps = ctx[Steps]
        if outcome.basis != "replay" or steps.source == "none":
            return "low"
        return "medium" if self.much_unattributed(ctx) or steps.count < 2 else "high"


_VERIFY = "Record the same steps again: the copies are named Pinned and the step is shorter"


def _message(copies: DeviceCopies, chosen: npt.NDArray[np.bool_], bare_ns: float, steps: int) -> str:
    """`bare_ns`: time per step in which nothing else runs on the GPU."""
    number, pinned = int(chosen.sum()), int((chosen & copies.pinned).sum())
    memory = "pinned" if pinned == number else "pinned and pageable" if pinned else "pageable"
    often = f"{number / steps:.1f}".removesuffix(".0")
    copies_, s = ("copy", "s") if often == "1" else ("copies", "")
    blocks = f" block{s} the host and" if pinned else ""
    return (
        f"{often} {memory} host-to-device {copies_} per step{blocks} leave{s} the GPU otherwise idle for "
        f"{two_figures(bare_ns / 1e3)}."
    )


def _speed(copies: DeviceCopies, chosen: npt.NDArray[np.bool_], steps: int) -> Iterator[str]:
    """How fast the pageable ones of these copies are, and what is left of them at the speed of the link."""
    pageable = chosen & ~copies.pinned
    sized = pageable & (copies.size > 0)
    if not sized.any():
        return
    took = copies.run.dur[copies.row]
    speed = f"{copies.size[sized].sum() / took[sized].sum():.2g} GB/s"
    if sized.sum() == pageable.sum():
        yield f"From pageable memory, {copies.size[sized].sum() / steps / 1e6:,.3g} MB are copied per step at {speed}."
    else:
        yield f"The {sized.sum():,} pageable copies whose size is known run at {speed}."
    source = (
        "assumed as no pinned copy shows the link's speed"
        if copies.link_assumed
        else "the fastest pinned copy"
    )
    left = (took - copies.faster)[pageable].sum() / steps / 1e3
    yield f"At {copies.link_gbs:.2g} GB/s, {source}, {two_figures(left)} remain."


def _tables(
    ctx: Context, copies: DeviceCopies, chosen: npt.NDArray[np.bool_], outcome: ReplayOutcome
) -> list[Table]:
    count, run = ctx[Steps].count, copies.run
    rows: dict[str, list[int]] = {}
    for i in np.flatnonzero(chosen).tolist():
        op = int(copies.op[i])
        rows.setdefault(run.text(op) if op >= 0 else "not recorded", []).append(i)
    return [
        Table.with_units(
            "Host-to-device copies per steady step",
            {
                "operator": "code",
                "copies": "count",
                "takes": "us",
                "GPU otherwise idle": "us",
                "saved by pinning": "us",
            },
            [
                [
                    name,
                    round(len(own_rows) / count, 2),
                    float(run.dur[copies.row[own_rows]].sum()) / count / 1e3,
                    float(copies.exposed[own_rows].sum()) / count / 1e3,
                    float(copies.faster[own_rows].sum()) / count / 1e3,
                ]
                for name, own_rows in rows.items()
            ],
        ),
        outcome.table("Simulated: pinned copies that do not block", "pinned"),
    ]
