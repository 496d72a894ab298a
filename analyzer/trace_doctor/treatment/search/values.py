"""Which values of a fix a search compares, and what its finding predicts of each.

A fix carries one value: the workers that would keep up, a mode of torch.compile. Values around it are the same fix with
other parameters, made by the same edit; what an option or a configuration file sets goes through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_struct

from trace_doctor.fixes.plan import Plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import Finding, Fix, Location, Result
from trace_doctor.treatment.candidates import Candidate, Value, candidate_of

MOST_VALUES = 5
"""of one search"""
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
"""of torch.compile on a GPU; on a CPU they hardly differ"""
PREFETCH = (2, 4, 8)
"""batches that each worker has ready; the first is PyTorch's default"""
THREADS = "OMP_NUM_THREADS"
BATCHES = (2, 4, 8)
"""times as large a batch, or parts of it that gradients are accumulated over"""
_AXES: Mapping[str | None, tuple[str, ...]] = {
    "dataloader-args": ("num_workers", "prefetch_factor", THREADS),
    "compile-model": ("mode",),
    "batch-size": ("times",),
    "gradient-accumulation": ("steps",),
    None: (THREADS,),
}
"""codemod -> what is searched, one after the other; without one a fix may set a variable"""


@dataclass(frozen=True)
class Values:
    """Finds the values of fixes of one result. `cores` are those that the command may use; `environment` is the user's."""

    result: Result
    plan: Plan
    remake: Callable[[Result], Plan]
    """resolves the fixes of a result, whichever they are, as those of `plan` were"""
    cores: int
    environment: Mapping[str, str]
    command: Sequence[str] = ()

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
        return values if axis or len(values) > 1 or name in ("times", "steps") else []

    def _numbers(self, candidate: Candidate, name: str) -> Sequence[int | str]:
        params, now = candidate.item.fix.params, dict(candidate.environment)
        if name == "num_workers" and isinstance(wanted := params.get(name), int) and wanted:
            return around(wanted, most=max(2 * self.cores, wanted))
        if (
            name == "prefetch_factor" and name in params
        ):  # waits that are all alike are none that more ahead would shorten
            return [n for n in PREFETCH if n != params[name]]
        if name == "mode" and self.on_gpu:
            return MODES
        if name in ("times", "steps"):
            return BATCHES
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
            made = replace(made, finding=item.finding, index=item.index)
            if name in ("times", "steps"):
                return self._batch(made, int(value) if name == "times" else 1)
            varied = candidate_of(made)
            if varied is None or (varied.arguments and not self._takes_options()):
                return None
            return replace(varied, environment=candidate.environment)
        return None

    def _takes_options(self) -> bool:
        """Whether what is added to the command reaches the script: a shell or make would keep it to itself."""
        name = Path(self.command[0]).name if self.command else ""
        return name not in ("sh", "bash", "dash", "zsh", "make") and not name.endswith((".sh", ".bash"))

    def _batch(self, made: PlannedFix, times: int) -> Candidate | None:
        """A fix that changes the training, with so many times the samples of a step; what the command passes is multiplied.
        None where that is no number."""
        if made.change is None or (made.change.options and not self._takes_options()):
            return None
        candidate = candidate_of(replace(made, status="ready"))
        assert candidate is not None
        for option in made.change.options:
            given = passed(self.command, option.names or (option.flag,))
            if given is not None and not given.isdecimal():
                return None
            value = option.value if given is None else str(int(given) * times)
            candidate = replace(candidate, arguments=(option.flag, value))
        return replace(candidate, samples=float(times))

    def batches(self) -> tuple[list[Candidate], str]:
        """The fixes that change the training, and why there are none."""
        fixes = [
            Fix(title="Increase the batch size", kind="patch", safety="unsafe", codemod="batch-size", params={"times": 2}),
            Fix(title="Accumulate gradients", kind="patch", safety="unsafe", codemod="gradient-accumulation", params={"steps": 2}),
        ]  # fmt: skip
        finding = Finding(
            id="BATCH", code="", name="batch-size", title="Batch size", severity="info", confidence="low",
            message="", fingerprint="batch-size", location=Location(), fixes=fixes,
        )  # fmt: skip
        items = self.remake(replace_struct(self.result, findings=[finding])).items
        return (
            [Candidate(replace(item, status="ready")) for item in items if item.change is not None],
            "; ".join(f"{item.fix.title}: {item.missing}" for item in items if item.change is None),
        )

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


def passed(command: Sequence[str], names: Sequence[str]) -> str | None:
    """The value that a command passes for an option, whichever of its spellings or beginnings it uses; None where it passes
    none."""
    value = None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        head, equals, rest = word.partition("=")
        begins = len(head) > 2 and head.startswith("--") and any(name.startswith(head) for name in names)
        short = next((n for n in names if len(n) == 2 and word.startswith(n) and len(word) > 2), None)
        if head in names or begins:
            value = rest if equals else following
        elif short is not None:
            value = word[len(short) :].removeprefix("=")
    return value


def _title(title: str, name: str, now: object, value: int | str) -> str:
    """`Set num_workers=2` with another number."""
    if name in ("times", "steps"):
        return f"{title} {value}×" if name == "times" else f"{title} over {value} parts of a batch"
    old, new = f"{name}={now}", f"{name}={value}"
    return title.replace(old, new) if old in title else f"{title}, {new}"
