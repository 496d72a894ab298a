"""What the kernel rules share: savings by a model, capped by the replay, and tables of kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trace_doctor import Column, Saving, Table, Unit
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.durations import three_figures, two_figures
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor_rules._shared import table

Bool = npt.NDArray[np.bool_]

HARDLY = 0.005
"""A saving below this share of the step is none that anybody would notice."""
ROWS = 8
"""Kernels of one table: the rest is summed up."""
_CUT = 160
"""characters of a kernel's name in a table"""


def by_model(
    kernels: Kernels, replay: Replay, mask: Bool, part: float, assumed: str, *, one_step: bool = False
) -> Saving:
    """A saving by a model: so much of these kernels' time, but never more than leaving all of them out would give.

    `part` is the share of their time that the model takes away, `assumed` the sentence that says why; `one_step`: the
    mask holds the kernels of one typical step.
    """
    count = kernels.steps if one_step else 1
    outcome = replay.without(_left_out(kernels, mask))
    length = max(replay.step_ns * kernels.steps, 1)
    saved_ns = float(kernels.ns[mask].sum()) * count * part / length
    most = min(outcome.share_of_step * count, 1.0)
    share = min(saved_ns, most)
    us = kernels.us_per_step(mask) * count
    how = f"{part:.0%} of {three_figures(us)} {noun(kernels)} time per step: {assumed}"
    if share < saved_ns:
        how += (
            f"; capped at the {two_figures(share * outcome.before_us)} that the step gains without these {noun(kernels)}s"
            if share
            else f"; nothing, because without these {noun(kernels)}s the GPU only waits longer for other work"
        )
    saving = Saving(time_us_per_step=share * outcome.before_us, share_of_step=share, basis="model", how=how)
    return saving.about(high=min(2.0, most / share)) if share else saving


def _left_out(kernels: Kernels, mask: Bool) -> Removal:
    """All of them: of operators the time that the threads spend in them."""
    rows, run = kernels.rows[mask], kernels.run
    if kernels.device >= 0:
        return Removal(gpu_rows=tuple(rows.tolist()))
    spans = zip(run.thread[rows].tolist(), run.ts[rows].tolist(), run.end[rows].tolist(), strict=True)
    return Removal(host_spans=tuple(spans))


def noun(kernels: Kernels) -> str:
    """What the work is, for messages and tables."""
    return "kernel" if kernels.device >= 0 else "operator"


def cost(kernels: Kernels, us_per_step: float, share: float) -> str:
    """For messages: `12 ms per step, 7% of kernel time` (on a CPU: of operator time)."""
    return f"{three_figures(us_per_step)} per step, {share:.0%} of {noun(kernels)} time"


def negligible(share: float | None) -> str:
    """A sentence after a message where leaving all of it out would hardly shorten the step; empty elsewhere."""
    return " The saving is negligible: other work determines the step time." if (share or 0) < HARDLY else ""


def kernel_table(title: str, kernels: Kernels, mask: Bool, sites: KernelSites | None = None) -> Table:
    """The kernels (on a CPU: operators) that take most time, per steady step, with their sources (see `with_sources`)."""
    rows = [
        (name[:_CUT], count / kernels.steps, ns / kernels.steps / 1e3, ns / max(kernels.total, 1))
        for name, count, ns in kernels.by_name(mask)
    ]
    columns: dict[str, Unit] = {
        noun(kernels): "code",
        "count/step": "count",
        "time/step": "us",
        f"of {noun(kernels)} time": "share",
    }
    return with_sources(table(title, columns, rows, ROWS), kernels, mask, sites)


def with_sources(shown: Table, kernels: Kernels, mask: Bool, sites: KernelSites | None) -> Table:
    """A table whose rows begin with names of kernels, with where most of each come from, as far as more than the stacks around their
    launches tells."""
    if sites is None or not sites.beyond_launches:
        return shown
    rows = kernels.rows[mask]
    names = np.array([name[:_CUT] for name in kernels.run.names], dtype=object)[kernels.run.name[rows]]
    sources = [sites.main(rows[names == row[0]])[0] for row in shown.rows]
    if not any(sources):
        return shown
    added = [[*row, source] for row, source in zip(shown.rows, sources, strict=True)]
    return replace(shown, columns=[*shown.columns, Column("source", "location")], rows=added)


def longest_of(kernels: Kernels, mask: Bool) -> list[tuple[int, int]]:
    """When the ten longest of these kernels ran, (start, end) ns, by start."""
    rows = kernels.rows[mask]
    rows = np.sort(rows[np.argsort(-kernels.run.dur[rows], kind="stable")[:10]])
    return list(zip(kernels.run.ts[rows].tolist(), kernels.run.end[rows].tolist(), strict=True))
