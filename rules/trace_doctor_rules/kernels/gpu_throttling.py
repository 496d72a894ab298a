"""TD310 gpu-throttling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt

from trace_doctor import Cell, Claim, Context, Location, Rule, Table, threshold
from trace_doctor.evidence.compute.gpu_clock import ClockedKernels
from trace_doctor.evidence.compute.gpu_counters import POWER, SM_CLOCK, TEMPERATURE
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules._shared import advice, table
from trace_doctor_rules.kernels._shared import by_model, longest_of, negligible

_FAST, _SLOW = 1980.0, 1410.0
_OF_THE_FASTEST = 0.03
"""Clocks of so much less count as the fastest still: they go up and down by a step or two all the time"""
_LEAST_FAST = 0.05
"""share of kernel time at the fastest clock, so that one sample alone makes none"""


def _training(
    clocks: Sequence[float] = (_FAST,) * 4 + (_SLOW,) * 4,
    *,
    slower: float = 1.0,
    idle_us: float = 0.0,
    counter: str = SM_CLOCK,
    marked: bool = True,
    more: bool = True,
) -> RunBuilder:
    """A step of 1 ms of kernels for each clock, which take longer as it falls, by the part `slower` of it. `idle_us`: before each
    sample of a low clock the GPU waits so long."""
    b = RunBuilder()
    for mhz in clocks:
        with b.step() if marked else nullcontext():
            for _ in range(2):
                b.wait(idle_us if mhz < _FAST else 0.0)
                b.counter(counter, mhz)
                if more:
                    b.counter(POWER, 698.0 if mhz < _FAST else 640.0)
                    b.counter(TEMPERATURE, 86.0 if mhz < _FAST else 71.0)
                for n in range(5):
                    b.run_op("aten::mm", 100 * (1 + slower * (_FAST / mhz - 1)), f"gemm_{n % 2}")
                b.sync()
    return b


class GpuThrottling(Rule):
    """The GPU lowers its clock while it works, and kernels take longer.

    What it does
    Compares kernels of the same name and place in the step at the fastest clock and at lower ones.

    Why is this bad
    A GPU that gets too hot, or reaches its power limit, lowers the clock of its SMs. All that computes takes longer, and of
    several ranks all others wait for the slow one. Nothing in the program explains it.

    Evidence
    The counter `SM Clock (MHz)`, which the CUPTI monitor samples. Samples count while the GPU was busy for half of the time
    before, and after the fastest clock was reached: an idle GPU lowers its clock by itself, and raises it again when work begins.
    Power and temperature are shown where they were sampled; why the clock fell they do not prove.

    How the saving is estimated
    A model: at the fastest clock kernels take as long as those of their name and place did there. Never more than the steps
    gain without these kernels (replay).

    Fix
    Ask the driver for the reason, then improve cooling or raise the power limit.

    Fix safety
    Only shown: power limits and cooling are for whoever runs the machine.

    When to ignore
    Where a power limit was chosen, to save energy. Where TD602 names the lower clock of a rank as what delays the job, it is told there.

    References
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    """

    code = "TD310"
    name = "gpu-throttling"
    title = "GPU clock falls under load"
    needs = (Kernels, ClockedKernels, Replay, Moments)

    min_share: float = threshold(
        0.10,
        "kernels at lowered clocks, as a share of kernel time",
        unit="share",
        source="estimate: at 70% of the clock these cost 4% of kernel time",
    )
    min_drop: float = threshold(
        0.05,
        "how far below the fastest clock, as a share of it",
        unit="share",
        source="clocks go in steps of 15 MHz, 0.8% of 1,980 MHz, and up and down by a few at any load",
    )
    min_slowdown: float = threshold(
        1.05,
        "how many times as long kernels take at lowered clocks",
        source="kernels that wait for memory take as long at any clock of the SMs",
    )

    VALID = [
        Valid("always the same clock", lambda: _training((_FAST,) * 8)),
        Valid("one short dip", lambda: _training((_FAST,) * 10 + (_SLOW,) + (_FAST,)), thresholds={"min_share": 0.15}),
        Valid("the clock goes up and down by little", lambda: _training((_FAST, 1905.0) * 4, slower=3.0)),
        Valid("kernels take as long", lambda: _training(slower=0.0)),
        Valid("the clock rises as work begins", lambda: _training((1800.0,) * 8 + (_FAST,) * 4)),
        Valid("the GPU was idle", lambda: _training(idle_us=3000)),
        Valid("one step at a higher clock", lambda: _training((2200.0,) + (_FAST,) * 29)),
        Valid("steps of no interest", _training, thresholds={"min_share": 0.9}),
        Valid("slow enough for nobody", _training, thresholds={"min_slowdown": 1.5}),
        Valid("a fall that is allowed", _training, thresholds={"min_drop": 0.5}),
        Valid("few samples", lambda: _training((_FAST, _FAST, _SLOW)), skipped="sampled 6 times"),
        Valid("steps are not marked", lambda: _training(marked=False), skipped="steady steps"),
        Valid("cycles alone, which are computed", lambda: _training(counter="Cycles (Current Kernel)", more=False), skipped="not sampled"),
        Valid("no GPU", without_gpu, skipped="no GPU work"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "heat",
            _training,
            message="The SM clock falls from 1,980 to 1,410 MHz under load. Kernels then take 1.40× as long, for 58% of kernel "
            "time. Meanwhile power is 698 W and temperature is 86 °C.",
            confidence="high",
            fixes=("Check GPU cooling and power limit",),
        ),
        Invalid("power is not sampled", lambda: _training(more=False), message="for 58% of kernel time."),
        Invalid(
            "kernels wait for memory in part",
            lambda: _training(slower=0.3),
            confidence="medium",
            message="1.12×",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels, clocked = ctx[Kernels], ctx[ClockedKernels]
        ns = kernels.ns[clocked.places]
        fastest = _fastest(clocked.mhz, ns)
        fast = clocked.mhz >= (1 - _OF_THE_FASTEST) * fastest
        slow = clocked.mhz <= (1 - self.min_drop) * fastest
        first = clocked.places[fast].min(initial=len(kernels.rows))
        slow &= clocked.places > first  # kernels are by start
        share = float(ns[slow].sum() / max(kernels.total, 1))
        ratio = clocked.ratio(slow, fast)
        if not slow.any() or share < self.min_share or ratio < self.min_slowdown:
            return
        lowered = float(np.average(clocked.mhz[slow], weights=ns[slow]))
        mask = np.zeros(len(kernels.rows), dtype=bool)
        mask[clocked.places[slow]] = True
        saving = by_model(
            kernels,
            ctx[Replay],
            mask,
            1 - 1 / ratio,
            f"at {fastest:,.0f} MHz the same kernels take 1/{ratio:.2f} of it",
        )
        yield Claim(
            message=(
                f"The SM clock falls from {fastest:,.0f} to {lowered:,.0f} MHz under load. Kernels then take {ratio:.2f}× as "
                f"long, for {share:.0%} of kernel time.{_meanwhile(clocked, slow)}{negligible(saving.share_of_step)}"
            ),
            confidence="high" if 2 * (ratio - 1) >= fastest / lowered - 1 else "medium",
            saving=saving,
            location=Location(device=kernels.device),
            evidence=[_table(clocked, {"fastest clock": fast, "lowered clock": slow})],
            spans=ctx[Moments].longest(longest_of(kernels, mask), "lowered clock", device=kernels.device),
            fixes=[_FIX],
            key="throttling",
        )


def _fastest(mhz: npt.NDArray[np.float64], ns: npt.NDArray[np.int64]) -> float:
    """The highest clock that a part of kernel time reaches."""
    order = np.argsort(-mhz, kind="stable")
    reach = np.cumsum(ns[order])
    return float(mhz[order][np.searchsorted(reach, _LEAST_FAST * reach[-1])]) if len(reach) else 0.0


def _while(clocked: ClockedKernels, chosen: npt.NDArray[np.bool_], counter: str) -> float | None:
    """Median of a counter while these kernels began; None where it was not sampled."""
    kernels = clocked.kernels
    moments = kernels.run.ts[kernels.rows[clocked.places[chosen]]]
    values = clocked.counters.at(kernels.device, moments, counter)
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def _meanwhile(clocked: ClockedKernels, slow: npt.NDArray[np.bool_]) -> str:
    power, heat = (_while(clocked, slow, counter) for counter in (POWER, TEMPERATURE))
    parts = [f"power is {power:,.0f} W"] if power is not None else []
    parts += [f"temperature is {heat:.0f} °C"] if heat is not None else []
    return f" Meanwhile {' and '.join(parts)}." if parts else ""


def _table(clocked: ClockedKernels, states: dict[str, npt.NDArray[np.bool_]]) -> Table:
    kernels = clocked.kernels
    rows: list[list[Cell]] = []
    for state, mask in states.items():
        known = [_while(clocked, mask, counter) for counter in (SM_CLOCK, POWER, TEMPERATURE)]
        us = float(kernels.ns[clocked.places[mask]].sum()) / kernels.steps / 1e3
        rows.append([state, us, *("not sampled" if v is None else f"{v:,.0f}" for v in known)])
    return table(
        "Counters by clock",
        {"kernels at": "text", "time/step": "us", "SM clock, MHz": "text", "power, W": "text", "°C": "text"},
        rows,
    )


_FIX = advice(
    "Check GPU cooling and power limit",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK\n"
    '# "Clocks Event Reasons" says what lowered the clock: heat (thermal slowdown), the power limit, or the clocks that\n'
    "# somebody set. Then improve cooling, or raise the limit (nvidia-smi -pl) as far as the machine allows",
    "a higher power limit takes more energy and makes more heat",
    "Record the same steps again: TD310 is gone and the step is shorter.",
)
