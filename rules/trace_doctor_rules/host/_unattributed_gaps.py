"""Host gaps that nothing names: what TD203 says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from trace_doctor import Context
from trace_doctor.evidence.host.host_gaps import HostGap, HostGaps
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor_rules._shared import advice


def notable(
    ctx: Context, gaps: Iterable[HostGap], min_share: float, rare_factor: float
) -> Iterator[tuple[HostGap, float]]:
    """Those that may be worth a note, each with the share of the step that it must cost: more where it does not come back in
    most steps. These are left out with stacks, which name what is called, and without steps, where one gap may be the start
    of the program; on a CPU alone all but the `_sure` ones are."""
    host, count = ctx[HostGaps], ctx[Steps].count
    for gap in gaps:
        often = 2 * gap.steps >= count and len(gap.spans) > 1
        share = min_share * (1 if often else rare_factor)
        if gap.idle_ns < max(share * host.length, 1) or (not often and (host.stacks or count < 2)):
            continue
        if host.device >= 0 or _sure(gap, count, share * host.length):
            yield gap, share


def _sure(gap: HostGap, count: int, least: float) -> bool:
    """Whether a gap on a CPU alone is the program's own: in every step (of the last one the end is not known), as long as
    the shortest of them at least, for what is longer another program may have had the core; and mostly without work of
    other threads, which the main one waits for (gradients of other ranks, for one)."""
    shortest = min(end - start for start, end in gap.spans)
    alone = 2 * gap.idle_ns >= gap.host_ns
    return alone and gap.steps + 1 >= count > 1 and shortest * len(gap.spans) >= least


def in_words(gap: HostGap) -> HostGap:
    """The same with a name that fits into a sentence."""
    whose = f"Code of {gap.site} itself" if gap.site else "Python code that was not recorded"
    return replace(gap, name=f"{whose}, {gap.name},", site=None)


VERIFY = "record the same steps again: TD203 should no longer name it, and the step should be shorter"
NAME_IT = advice(
    "Record again with Python stacks, which name it",
    "with profile(..., with_stack=True) as prof:   # or, around parts of the loop:\n"
    'with torch.profiler.record_function("name"):',
    "",
    "record the same steps again: TD203 names a function",
)
