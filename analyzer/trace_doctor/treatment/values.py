"""Which values of a fix a search compares, and what its finding predicts of each.

A fix carries one value: the workers that would keep up, a mode of torch.compile. Values around it are the same fix with
other parameters, made by the same edit; what an option or a configuration file sets goes through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from msgspec.structs import replace as replace_struct

from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.model import Result
from trace_doctor.treatment.candidates import Candidate, Value, candidate_of

MOST_VALUES = 5
"""of one search"""
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
"""of torch.compile on a GPU; on a CPU they hardly differ"""
PREFETCH = (2, 4, 8)
"""batches that each worker has ready; the first is PyTorch's default"""
THREADS = "OMP_NUM_THREADS"
_AXES: Mapping[str | None, tuple[str, ...]] = {
    "dataloader-args": ("num_workers", "prefetch_factor", THREADS),
    "compile-model": ("mode",),
    None: (THREADS,),
}
"""codemod -> what is searched, one after the other; without one a fix may set a variable"""


@dataclass(frozen=True)
class Values:
    """Finds the values of fixes of one result. `cores` are those that the command may use; `environment` is the user's."""

    result: Result
    plan: Plan
    remake: Callable[[Result], Plan]
    """resolves the fixes of a result as those of `plan` were"""
    cores: int
    environment: Mapping[str, str]

    @property
    def on_gpu(self) -> bool:
        """Whether the recording has work of a GPU."""
        return any(row.device >= 0 for row in self.result.time_ledger)

    def of(self, candidate: Candidate, axis: int = 0) -> list[Value]:
        """The values of one axis of a fix, smaller ones first; empty where it has none, or only one."""
        axes = _AXES.get(candidate.item.fix.codemod, ())
        name = axes[axis] if axis < len(axes) else ""
        values = [
            Value(name, str(number), varied, self._predicted(candidate, name, number))
            for number in self._numbers(candidate, name)
            if (varied := self._varied(candidate, name, number)) is not None
        ]
        return values if axis or len(values) > 1 else []

    def _numbers(self, candidate: Candidate, name: str) -> Sequence[int | str]:
        params, now = candidate.item.fix.params, dict(candidate.environment)
        if name == "num_workers" and isinstance(wanted := params.get(name), int) and wanted:
            return around(wanted, most=max(2 * self.cores, wanted))
        if name == "prefetch_factor" and params.get("num_workers"):
            return [n for n in PREFETCH if n != params.get(name, PREFETCH[0])]
        if name == "mode" and self.on_gpu:
            return MODES
        if name == THREADS and name not in self.environment:
            if name in now:
                return around(int(now[name]) if now[name].isdigit() else 1, self.cores)
            if candidate.item.fix.codemod is not None and not self.on_gpu:
                return [n for n in around(self.cores, self.cores) if n < self.cores]
        return ()

    def _varied(self, candidate: Candidate, name: str, value: int | str) -> Candidate | None:
        """The fix with another value; None where that makes no edit."""
        if name == THREADS:
            variables = {**dict(candidate.environment), THREADS: str(value)}
            return replace(candidate, environment=tuple(variables.items()))
        item = candidate.item
        params: dict[str, Any] = {**item.fix.params, name: value}
        if name == "mode" and value == MODES[0]:
            del params[name]
        if item.fix.codemod == "dataloader-args":
            params["exact"] = True
        title = _title(item.fix.title, name, item.fix.params.get(name), value)
        fix = replace_struct(item.finding.fixes[item.index], params=params, title=title)
        finding = replace_struct(item.finding, fixes=[fix])
        for made in self.remake(replace_struct(self.result, findings=[finding])).items:
            varied = candidate_of(replace(made, finding=item.finding, index=item.index))
            return replace(varied, environment=candidate.environment) if varied is not None else None
        return None

    def _predicted(self, candidate: Candidate, name: str, value: int | str) -> float:
        """Of workers: the rest of the step, or the share of one of them in what loading takes off it, whichever is longer."""
        saving = candidate.item.finding.saving
        share = min((saving.share_of_step if saving else None) or 0.0, 0.95)
        if name == "num_workers" and isinstance(value, int) and value:
            return max(1 - share, share / value)
        return 1 - share if name == "mode" else 1.0


def around(wanted: int, most: int) -> list[int]:
    """The value that is predicted and doublings and halves of it, from 1 to `most`: those nearest to it."""
    ladder = {wanted, *(n for n in (1 << i for i in range(most.bit_length())) if n <= most)}
    nearest = sorted(ladder, key=lambda n: (abs(log2(n / wanted)), n))[:MOST_VALUES]
    return sorted(nearest)


def _title(title: str, name: str, now: object, value: int | str) -> str:
    """`Set num_workers=2` with another number."""
    old, new = f"{name}={now}", f"{name}={value}"
    return title.replace(old, new) if old in title else f"{title}, {new}"


def values_of(result: Result, made: Plan, cores: int, environment: Mapping[str, str], **how: Any) -> Values:
    """The values of the fixes of a plan, which was made with these arguments."""
    return Values(
        result, made, lambda other: plan(other, made.tree.root, tree=made.tree, **how), cores, environment
    )
