"""What the kernel rules share: savings by a model, capped by the replay, and tables of kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trace_doctor import Saving, Table, Unit
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor_rules._shared import table

Bool = npt.NDArray[np.bool_]

HARDLY = 0.005
"""A saving below this share of the step is none that anybody would notice."""
ROWS = 8
"""Kernels of one table: the rest is summed up."""


def by_model(
    kernels: Kernels, replay: Replay, mask: Bool, part: float, assumed: str, *, one_step: bool = False
) -> Saving:
    """A saving by a model: so much of these kernels' time, but never more than leaving all of them out would give.

    `part` is the share of their time that the model takes away, `assumed` the sentence that says why; `one_step`: the
    mask holds the kernels of one typical step.
    """
    count = kernels.steps if one_step else 1
    outcome = replay.without(_left_out(kernels, mask))
    length = max(replay.step_ns * replay.count, 1)
    saved_ns = float(kernels.ns[mask].sum()) * count * part / length
    share = min(saved_ns, outcome.share_of_step * count, 1.0)
    us = kernels.us_per_step(mask) * count
    how = f"{two_figures(us)} of {_noun(kernels)}s a step, of which {part:.0%} may go: {assumed}"
    if share < saved_ns:
        how += (
            f"; capped at {two_figures(share * outcome.before_us)}, for without these kernels a step would gain no more"
            if share
            else "; nothing, for without these kernels the GPU would only wait longer for other things"
        )
    return Saving(time_us_per_step=share * outcome.before_us, share_of_step=share, basis="model", how=how)


def _left_out(kernels: Kernels, mask: Bool) -> Removal:
    """All of them: of operators the time that the threads spend in them."""
    rows, run = kernels.rows[mask], kernels.run
    if kernels.device >= 0:
        return Removal(gpu_rows=tuple(rows.tolist()))
    spans = zip(run.thread[rows].tolist(), run.ts[rows].tolist(), run.end[rows].tolist(), strict=True)
    return Removal(host_spans=tuple(spans))


def _noun(kernels: Kernels) -> str:
    return "kernel" if kernels.device >= 0 else "operator"


def promise(saving: Saving) -> str:
    """What a message says of it: half a sentence."""
    share = saving.share_of_step or 0.0
    if share < HARDLY:
        return "a step would hardly be shorter, for the GPU waits for other things"
    return f"a step could become about {two_figures(saving.time_us_per_step or 0.0)} shorter ({share:.0%})"


def kernel_table(title: str, kernels: Kernels, mask: Bool) -> Table:
    """The kernels (on a CPU: operators) that take most time, per steady step."""
    rows = [
        (name[:160], count / kernels.steps, ns / kernels.steps / 1e3, ns / max(kernels.total, 1))
        for name, count, ns in kernels.by_name(mask)
    ]
    noun = _noun(kernels)
    columns: dict[str, Unit] = {
        noun: "code",
        "a step": "count",
        "time a step": "us",
        f"of all {noun}s": "share",
    }
    return table(title, columns, rows, ROWS)


def longest_of(kernels: Kernels, mask: Bool, most: int = 10) -> list[tuple[int, int]]:
    """When the longest of these kernels ran, (start, end) ns, by start."""
    rows = kernels.rows[mask]
    rows = np.sort(rows[np.argsort(-kernels.run.dur[rows], kind="stable")[:most]])
    return list(zip(kernels.run.ts[rows].tolist(), kernels.run.end[rows].tolist(), strict=True))
