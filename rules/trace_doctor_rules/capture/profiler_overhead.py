"""TD003 profiler-overhead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from trace_doctor import NOTE_FROM, Claim, Context, Rule, Table, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.idle.profiler_cost import PlainPace, ProfilerCost
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice


def _profiled(
    *,
    flush_us: float = 0.0,
    frames: int = 0,
    name: str = "Buffer Flush",
    plain: tuple[float, ...] = (),
    waits: bool = True,
) -> RunBuilder:
    """`plain`: milliseconds of the same steps without the profiler. `waits`: the host does not run ahead; where it does, loaders
    mark the steps."""
    b = RunBuilder(stacks=frames > 0)
    b.step_ms = {"timing": plain} if plain else {}
    for _ in range(3):
        with b.step() if waits else nullcontext():
            b.loader(5)
            for n in range(frames):
                with b.python("train.py", n, "helper"):
                    b.wait(0.5)
            if flush_us:
                with b.event(name, "overhead"):
                    b.wait(flush_us)
            b.run_op("aten::mm", 1000)
            if waits:
                b.sync()
    return b


class ProfilerOverhead(Rule):
    """The profiler itself takes part of the steps that it shows.

    What it does
    Compares steps with and without the profiler, where a recording of `trace-doctor record` has both. Of any other
    capture it adds up the events that the profiler marks as its own overhead in the steady steps, and estimates what
    recording Python calls (`with_stack=True`) cost on the main thread.

    Why is this bad
    What the profiler costs looks like host time of the script. A run that seems to wait for Python may be limited by
    its recording, and a fix measured on such a capture promises too much.

    Evidence
    Step times that the recording took without the profiler, in the same run; else events of category `overhead` (Buffer
    Flush, Activity Buffer Request, Resource, Instrumentation), and the number of Python events on the main thread times
    what one costs. Command Buffer Full, Lazy Function Loading and the like stand there too, but happen without it as well.

    How the saving is estimated
    None is claimed: without the profiler the time is not spent.

    Fix
    Record fewer steps, drop the option that costs, and time the script without the profiler. Buffers that are requested in the
    steps: warm-up steps before them.

    Fix safety
    Only shown: it concerns the code that records.

    When to ignore
    When the capture is for finding lines of code, not for timing.

    References
    https://docs.pytorch.org/docs/stable/profiler.html
    """

    code = "TD003"
    name = "profiler-overhead"
    title = "Profiler overhead inflates step times"
    costs_host_time = True
    about = ("profiler",)
    needs = (ProfilerCost, Steps)

    min_share: float = threshold(
        0.03,
        "the profiler's own events, as a share of the steady steps",
        unit="share",
        source="the severity `warning` begins there for savings",
        note_from=NOTE_FROM,
    )
    min_stack_share: float = threshold(
        0.10,
        "estimated cost of recording Python calls, as a share of the steady steps",
        unit="share",
        source="the estimate is good to a factor of two; 7 of 22 real captures with stacks reach it",
    )

    min_measured_share: float = threshold(
        0.20,
        "how much longer a step is with the profiler than without it, as a share of the latter",
        unit="share",
        source="kernels of the light trace cost 2 to 10%",
    )
    min_deviations: float = threshold(
        2.0,
        "the same difference, in median absolute deviations of the steps without it",
        source="less is within the variation of steps without profiler",
    )

    VALID = [
        Valid("nothing recorded that costs", _profiled),
        Valid("a short flush", lambda: _profiled(flush_us=10)),
        Valid("modules that CUDA loads", lambda: _profiled(flush_us=100, name="Runtime Triggered Module Loading")),
        Valid("launches that wait for a full queue", lambda: _profiled(flush_us=100, name="Command Buffer Full")),
        Valid("stacks that cost little", lambda: _profiled(frames=100)),
        Valid("steps as long as without it", lambda: _profiled(flush_us=100, plain=(1.0, 1.01, 1.0, 1.02))),
        Valid("steps that vary as much", lambda: _profiled(flush_us=500, plain=(0.2, 0.6, 1.0, 1.4, 1.8, 2.2))),
    ]  # fmt: skip
    INVALID = [
        Invalid("a flush in each step", lambda: _profiled(flush_us=100), message="Buffer Flush", severity="info", confidence="high"),
        Invalid("a flush in each step of a host that runs ahead", lambda: _profiled(flush_us=100, waits=False), message="takes 9% of step time"),
        Invalid(
            "buffers that are made in the steps",
            lambda: _profiled(flush_us=100, name="Activity Buffer Request"),
            message="Activity Buffer Request",
            fixes=("Add warm-up steps",),
        ),
        Invalid("steps half as long without it", lambda: _profiled(flush_us=500, plain=(1.0, 1.01, 1.0, 1.02)), message="). Host times"),
        Invalid("stacks of many short calls", lambda: _profiled(frames=1500), message="with_stack", confidence="medium", severity="info", fixes=("Disable stacks",)),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        cost, steps = ctx[ProfilerCost], ctx[Steps]
        if cost.plain is not None:
            yield from self._measured(cost, cost.plain)
            return
        length = max(steps.step_ns * steps.count, 1)  # steps of a damaged file may take no time
        marked, stacks = cost.marked_ns / length, cost.frames_ns / length
        parts = []
        if marked >= self.min_share:
            parts.append(f"the profiler ({cost.marked[0][0]}) takes {marked:.0%} of step time")
        if stacks >= self.min_stack_share:
            parts.append(
                f"recording {cost.frames / steps.count:,.0f} Python calls per step (with_stack=True) takes about {stacks:.0%} of step time"
            )
        if not parts:
            return
        text = " and ".join(parts)
        work = list(cost.marked)
        if cost.frames:
            work.append(("Python calls (estimated)", cost.frames, cost.frames_ns))
        yield Claim(
            message=f"{text[0].upper()}{text[1:]}. Host times in this capture are longer than without it.",
            confidence="high" if marked >= self.min_share else "medium",
            severity="info",
            evidence=[
                Table.with_units(
                    "Profiler overhead in steady steps",
                    {"what": "text", "count": "count", "total": "us"},
                    [[name, number, ns / 1e3] for name, number, ns in work],
                )
            ],
            fixes=[
                _RECORD_LESS if stacks >= self.min_stack_share or cost.marked[0][0] != _BUFFERS else _WARM_UP
            ],
            key="overhead",
        )

    def _measured(self, cost: ProfilerCost, plain: PlainPace) -> Iterator[Claim]:
        longer = cost.median_ns - plain.median_ns
        if longer < max(self.min_measured_share * plain.median_ns, self.min_deviations * plain.mad_ns):
            return
        yield Claim(
            message=(
                f"Steps take {milliseconds(cost.median_ns / 1e3)} with and {milliseconds(plain.median_ns / 1e3)} without the "
                f"profiler (+{longer / plain.median_ns:.0%}). Host times in this capture are longer than without it."
            ),
            confidence="high",
            severity="info",
            evidence=[
                Table.with_units(
                    "Step times by recording phase",
                    {"phase": "text", "steps": "count", "median": "us"},
                    [[phase, steps, ns / 1e3] for phase, steps, ns in cost.phases],
                )
            ],
            key="overhead",
        )


_BUFFERS = "Activity Buffer Request"
"""At the first launches that are recorded, whatever the options"""
_WARM_UP = advice(
    "Add warm-up steps to the profiler schedule",
    "profile(..., schedule=schedule(wait=1, warmup=2, active=3, repeat=1)), prof.step() after each step\n"
    "# its buffers are made at the first launches: in warm-up steps, which the capture leaves out",
    "",
    "Record again: the steps hold no Activity Buffer Request",
)
_RECORD_LESS = advice(
    "Disable stacks, shapes and memory",
    "profile(with_stack=False, profile_memory=False, record_shapes=False, "
    "schedule=schedule(wait=1, warmup=2, active=3, repeat=1))\n"
    "Take stacks in a second, short capture, for the lines; compare step times without the profiler.",
    "without stacks findings name no lines",
    "Record again: the same steps are shorter",
)
