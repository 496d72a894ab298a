"""The phases follow from step times alone, whatever these are, and keep to the budget."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.recording.options import PHASES, Phase, RecordOptions
from trace_doctor.recording.plan import COST, TRACED, Plan, Schedule, Span, fitted

seconds = st.floats(1e-6, 100, allow_nan=False)
step = st.tuples(seconds, st.booleans())
options = st.builds(
    RecordOptions,
    folder=st.just("/"),
    at=st.integers(0, 30),
    max_steps=st.integers(1, 200),
    max_seconds=st.floats(0, 1000),
    phases=st.lists(st.sampled_from(PHASES), unique=True).map(lambda p: tuple(sorted(p, key=PHASES.index))),
    warmup_steps=st.integers(0, 5),
    max_warmup_steps=st.integers(0, 50),
    timing_steps=st.integers(1, 40),
    light_steps=st.integers(1, 10),
    detailed_steps=st.integers(1, 10),
    memory_steps=st.integers(1, 5),
)


def phases_of(plan: Plan, steps: list[tuple[float, bool]]) -> list[Phase]:
    """The phase of each step until enough is recorded; the steps are repeated without end."""
    phases: list[Phase] = []
    phase: Phase | None = "warmup"
    elapsed = 0.0
    for n, (time, compiled) in enumerate(itertools.cycle(steps)):
        if phase is None:
            return phases
        phases.append(phase)
        elapsed += time
        phase = plan.after(n, time if n else None, compiled, elapsed)
    raise AssertionError("steps have no end")


@given(options, st.lists(step, min_size=1, max_size=20), st.sampled_from([0, 3]))
def test_every_recording_ends_within_its_steps(
    options: RecordOptions, steps: list[tuple[float, bool]], lead: int
) -> None:
    phases = phases_of(Plan(options, lead=lead), steps)
    assert len(phases) <= options.at + options.max_steps + lead
    assert set(phases[: options.at + 1]) == {"warmup"}
    assert set(phases) <= {"warmup", *options.phases}
    order = [phase for phase, _ in itertools.groupby(phases)]
    assert order[0] == "warmup"
    without_timing = [p for p in order if p != "timing"]
    assert without_timing == sorted(without_timing, key=PHASES.index)
    if "timing" in order and len(order) > 2:
        assert order[1] == "timing", "plain steps come before any profiler"


@given(options, st.lists(step, min_size=1, max_size=20))
def test_time_that_is_used_up_ends_it(options: RecordOptions, steps: list[tuple[float, bool]]) -> None:
    """At most the step that was under way, and the one that warm-up is at least, lie beyond the limit."""
    phases = phases_of(Plan(options), steps)
    times = [time for time, _ in itertools.islice(itertools.cycle(steps), len(phases))][options.at :]
    assert sum(times[:-1]) <= max(options.max_seconds, times[0]) + 1e-9 * sum(times)


@given(st.lists(seconds, min_size=1, max_size=4))
def test_equal_steps_settle_at_once(times: list[float]) -> None:
    plan = Plan(RecordOptions(folder="/", max_seconds=1e9))
    phases = phases_of(plan, [(60.0, True)] + [(1.0, False)] * 100)
    assert phases[:6] == ["warmup"] * 4 + ["timing"] * 2, (
        "a step that compiles is followed by three quiet ones"
    )
    assert phases.count("timing") == 20 and phases.count("light") == 6 and phases.count("detailed") == 4
    assert plan.why_settled == "step times settled"


def test_falling_times_are_warm_up() -> None:
    falling = [(2.0**-n, False) for n in range(8)] + [(2.0**-8, False)] * 100
    phases = phases_of(Plan(RecordOptions(folder="/")), falling)
    assert phases.index("timing") >= 9


def test_times_that_never_settle_are_recorded_after_a_while() -> None:
    plan = Plan(RecordOptions(folder="/", max_warmup_steps=10, max_seconds=1e9))
    growing = [(1.5**n, False) for n in range(40)]
    assert phases_of(plan, growing).index("timing") == 10
    assert plan.why_settled == "step times did not settle"


def test_a_plan_starts_over_when_steps_are_something_else() -> None:
    plan = Plan(RecordOptions(folder="/"))
    for n in range(2):
        assert plan.after(n, 1.0, False, float(n)) == "warmup"
    plan.restart()
    assert [plan.after(n, 9.0, False, float(n)) for n in range(2, 5)] == ["warmup", "warmup", "timing"]


@given(
    st.dictionaries(st.sampled_from(PHASES[1:]), st.integers(2, 30)), st.integers(0, 100), seconds, seconds
)
def test_what_fits_is_no_more_than_the_budget(
    wanted: dict[Phase, int], steps: int, budget: float, pace: float
) -> None:
    counts = fitted(wanted, steps, budget, pace)
    assert sum(counts.values()) <= steps
    assert sum(COST[p] * n * pace for p, n in counts.items()) <= budget or not counts
    assert all(1 <= n <= wanted[p] for p, n in counts.items())
    assert all(n >= 2 for p, n in counts.items() if p in TRACED), (
        "one step to warm the profiler up, one to trace"
    )


spans = st.lists(st.tuples(st.sampled_from(PHASES[1:]), st.integers(1, 9)), max_size=6)


def laid_out(parts: list[tuple[Phase, int]]) -> Schedule:
    first = itertools.accumulate((n for _, n in parts), initial=4)
    return Schedule(tuple(Span(p, f, f + n - 1) for (p, n), f in zip(parts, first, strict=False)), 4)


@given(spans, st.integers(0, 40))
def test_a_schedule_is_handed_on_and_cut(parts: list[tuple[Phase, int]], end: int) -> None:
    schedule = laid_out(parts)
    assert Schedule.from_json(schedule.to_json()) == schedule
    cut = schedule.cut(end)
    for n in range(50):
        assert cut.phase(n) == (schedule.phase(n) if n < end else None)


@given(spans, st.integers(0, 40), st.integers(1, 9))
def test_a_phase_that_lasts_longer_moves_those_behind_it(
    parts: list[tuple[Phase, int]], at: int, more: int
) -> None:
    plan = Plan(RecordOptions(folder="/"))
    plan.schedule = before = laid_out(parts)
    if at < 4 or before.phase(at) is None:
        return
    assert plan.prolong(at, more)
    last = next(s.last for s in before.spans if s.first <= at <= s.last)
    for n in range(60):
        expected = before.phase(at) if last < n <= last + more else before.phase(n - more if n > last else n)
        assert plan.schedule.phase(n) == expected
