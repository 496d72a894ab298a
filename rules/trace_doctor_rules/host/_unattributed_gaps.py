"""Host gaps that nothing names: what TD203 says of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from trace_doctor import Context, Fix, NotCaptured
from trace_doctor.evidence.host.host_gaps import HostGap, HostGaps
from trace_doctor.evidence.intervals import union
from trace_doctor.evidence.names.event_names import is_optimizer
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor_rules._shared import advice


def notable(
    ctx: Context, gaps: Iterable[HostGap], min_share: float, rare_factor: float
) -> Iterator[tuple[HostGap, float]]:
    """Those that may be worth saying, each with the share of the step that it must cost: more where it does not come back in
    most steps. On a GPU those that cost less count together. What does not come back is left out with stacks, which name what
    is called, and without steps, where one gap may be the start of the program; on a CPU alone all but the `_sure` ones are."""
    host, count = ctx[HostGaps], ctx[Steps].count
    small = []
    for gap in gaps:
        often = comes_back(gap, count)
        share = min_share * (1 if often else rare_factor)
        if not gap.nameless and (not often or count < 2):
            continue  # an operator that took long once loaded a library; without steps all may be the start
        if gap.idle_ns < max(share * host.length, 1) or (not often and (host.stacks or count < 2)):
            small.append(gap)
        elif host.device >= 0 or _sure(gap, count, share * host.length):
            yield gap, share
    if host.device >= 0 and len(small) > 1 and comes_back(together := _together(small, ctx[Steps]), count):
        yield together, min_share


def comes_back(gap: HostGap, count: int) -> bool:
    """Whether most steps have it."""
    return 2 * gap.steps >= count and len(gap.spans) > 1


def _together(gaps: Sequence[HostGap], steps: Steps) -> HostGap:
    """Several gaps as one, named by their number and the longest of them. Of short ones the idle time alone counts: as much
    of the rest may be the host's ordinary work."""
    idle = union(np.concatenate([gap.idle for gap in gaps]))
    spans = tuple((start, end) for start, end in idle.tolist())
    return HostGap(
        name=f"in {len(gaps)} places, mostly {gaps[0].name if gaps[0].nameless else f'inside {gaps[0].name}'}",
        site=None,
        spans=spans,
        idle=idle,
        steps=len(np.unique(steps.steady_at(np.array(spans, dtype=np.int64)[:, 0]))),
        nameless=True,
    )


def key_of(gap: HostGap) -> str:
    """What tells the gap from others in every capture of the script: their number differs from one to the next."""
    return re.sub(r"^in \d+ places.*", "in several places", gap.name) if gap.nameless else gap.name


def _sure(gap: HostGap, count: int, least: float) -> bool:
    """Whether a gap on a CPU alone is the program's own: in every step (of the last one the end is not known), as long as
    the shortest of them at least, for what is longer another program may have had the core; and mostly without work of
    other threads, which the main one waits for (gradients of other ranks, for one)."""
    shortest = min(end - start for start, end in gap.spans)
    alone = 2 * gap.idle_ns >= gap.host_ns
    return alone and gap.steps + 1 >= count > 1 and shortest * len(gap.spans) >= least


def in_words(gap: HostGap) -> HostGap:
    """The same with a name that fits into a sentence."""
    if not gap.nameless:
        return gap
    whose = f"Code of {gap.site} itself" if gap.site else "Unrecorded Python code"
    return replace(gap, name=f"{whose}, {gap.name},", site=None)


VERIFY = "Record the same steps again: TD203 no longer names it and the step is shorter"
_RECORD_STACKS = advice(
    "Record again with Python stacks",
    "with profile(..., with_stack=True) as prof:   # or, around parts of the loop:\n"
    'with torch.profiler.record_function("name"):',
    "",
    "Record the same steps again: TD203 names a function",
)
_ANNOTATE = advice(
    "Annotate the loop with record_function()",
    'with torch.profiler.record_function("name"):   # around parts of the loop, smaller ones in a second recording\n'
    "# Python stacks were recorded and name no function there. For native code: py-spy dump --native --pid PID",
    "",
    "Record the same steps again: TD203 names the annotation",
)


def fix_of(gap: HostGap, *, stacks: bool) -> Fix:
    """What to do about host time by where it lies. `stacks`: Python frames of the thread were recorded."""
    name_it = _ANNOTATE if stacks else _RECORD_STACKS
    if gap.nameless:
        return name_it
    if is_optimizer(gap.name):
        return advice(
            "Move the optimizer's host work to the GPU",
            "torch.optim.AdamW(..., fused=True)   # Adam, AdamW; SGD from torch 2.3 on: one call for all parameters\n"
            "# another class: its state and step counts on the GPU (capturable=True, where it has that)\n"
            "# preconditioners and averages of weights: every N steps (Shampoo: precondition_frequency)",
            "what is updated less often changes the training",
            VERIFY,
        )
    if "Compiled" in gap.name:
        return advice(
            "Run with TORCH_LOGS=recompiles,cudagraphs,graph_breaks",
            'TORCH_LOGS="recompiles,cudagraphs,graph_breaks" python train.py   # guards, inputs that are copied, graphs recorded again',
            "",
            VERIFY,
        )
    if "::" not in gap.name and not gap.works:  # an annotation around what was not recorded
        return name_it
    return advice(
        "Move the operator out of the step",
        "# an operator that computes on the host: make its inputs on the GPU, or run it in the loader's workers\n"
        "# what depends on no batch (masks, indices, tables): once, before the loop",
        "",
        VERIFY,
    )


def without_name(share: float, *, stacks: bool) -> NotCaptured:
    """What the rule abstains with where so much of the step has no name."""
    if stacks:
        return NotCaptured(
            f"for {share:.0%} of the step the host stands still in code that usually works: others may have held it up",
            "record again while nothing else runs",
        )
    return NotCaptured(
        f"Python code that was not recorded keeps the host busy for {share:.0%} of the step",
        'profile(..., with_stack=True), or torch.profiler.record_function("name") around parts of the loop',
    )
