"""Pauses of the host that nothing names: what TD203 says of them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from trace_doctor import Claim, Context, Fix
from trace_doctor.evidence.host.host_gaps import HostPauses, Pause
from trace_doctor.evidence.host.unattributed_gaps import UnnamedPauses
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor_rules import techniques

RARE = 2
"""A pause that does not come back in most steps must cost so many times as much."""


def worth_a_note(ctx: Context, min_share: float) -> Iterator[tuple[Pause, Removal, ReplayOutcome]]:
    """The places where such pauses cost a share of the step: twice as much where they do not come back in most steps. These
    are left out with stacks, which name what is called, and without steps, where one pause may be the start of the program;
    on a CPU alone all but the `_sure` ones are."""
    seen, where, count = ctx[HostPauses], ctx.get(UnnamedPauses), ctx[Steps].count
    for pause in where.places if where is not None else ():
        often = 2 * pause.steps >= count and len(pause.spans) > 1
        least = min_share * (1 if often else RARE)
        if pause.idle_ns < max(least * seen.length, 1) or (not often and (seen.stacks or count < 2)):
            continue
        if seen.device < 0 and not _sure(pause, count, least * seen.length):
            continue
        removal = Removal(host_spans=tuple((seen.thread, start, end) for start, end in pause.spans))
        outcome = ctx[Replay].without(removal)
        if outcome.share_of_step >= least:
            yield pause, removal, outcome


def _sure(pause: Pause, count: int, least: float) -> bool:
    """Whether a pause on a CPU alone is the program's own: in every step (of the last one the end is not known), as long as
    the shortest of them at least, for what is longer another program may have had the core; and mostly without work of
    other threads, which the main one waits for (gradients of other ranks, for one)."""
    each = [end - start for start, end in pause.spans]
    alone = 2 * pause.idle_ns >= sum(each)
    return alone and pause.steps + 1 >= count > 1 and min(each) * len(each) >= least


def note(ctx: Context, pause: Pause, removal: Removal, outcome: ReplayOutcome, message: str) -> Claim:
    moments = ctx[Moments]
    idle = [(int(s), int(e)) for s, e in pause.idle]
    device = ctx[HostPauses].device
    on = device if device >= 0 else None
    return Claim(
        message=message,
        confidence="low",
        severity="info",
        saving=outcome.saving(),
        location=location(pause.site, device=on, ts_us=moments.ts_us(pause.spans[0][0])),
        evidence=[outcome.table("What if it were not in the step", "without it")],
        spans=moments.longest(idle, pause.name, device=on),
        fixes=[
            _NAME_IT if pause.site is None else techniques.off_the_step(VERIFY, "other", pause.site.target)
        ],
        removal=removal,
        owned=idle,
        key=pause.name,
    )


def named(pause: Pause) -> Pause:
    """The same with a name that fits into a sentence."""
    whose = f"Code of {pause.site} itself" if pause.site else "Python code that was not recorded"
    return replace(pause, name=f"{whose}, {pause.name},", site=None)


VERIFY = "record the same steps again: TD203 should no longer name it, and the step should be shorter"
_NAME_IT = Fix(
    title="Record again with Python stacks, which name it",
    kind="advice",
    safety="display",
    text="with profile(..., with_stack=True) as prof:   # or, around parts of the loop:\n"
    'with torch.profiler.record_function("name"):',
    verify="record the same steps again: TD203 names a function",
)
