"""Batch size and accumulation, searched only where that is asked for: they change the training, so times per step and losses
cannot judge them. Samples per second do, and what is faster stays a patch of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trace_doctor.fixes.diffs import unified_diff
from trace_doctor.model.treatment import Attempt
from trace_doctor.treatment.candidates import Setup
from trace_doctor.treatment.launching import CommandRunner
from trace_doctor.treatment.loop import Loop
from trace_doctor.treatment.search.values import Values
from trace_doctor.treatment.trial import OutOfTime

_LEAST_STEPS = 8
_SHARE_OF_STEPS = 4
"""an epoch has so many times fewer steps with the larger batches"""


@dataclass
class BatchSearch:
    """What the search has shown so far."""

    attempts: list[Attempt] = field(default_factory=list)
    patch: bytes = b""
    """on top of the fixes that were kept"""
    notes: list[str] = field(default_factory=list)

    def run(self, loop: Loop, values: Values, runner: CommandRunner, say: Callable[[str], None]) -> None:
        """Tries on top of what `loop` has kept: a larger batch and, where that does not help, accumulation."""
        candidates, missing = values.batches()
        if missing:
            self.notes.append(f"--search-batch: {missing}")
        steps = runner.steps
        fewer = max(steps.timing // _SHARE_OF_STEPS, min(steps.timing, _LEAST_STEPS))
        runner.steps = replace(steps, warmup=max(steps.warmup // _SHARE_OF_STEPS, 1), timing=fewer)
        rules = replace(loop.rules, without_losses=True)
        own = Loop(runner, rules, loop.clock, loop.setup, say, values_of=values.of, attempts=self.attempts)
        try:
            for candidate in candidates:
                if own.setup.fixes == loop.setup.fixes and values.of(candidate):
                    own.only(candidate, "batch")
        except OutOfTime:
            pass  # its attempt says so
        finally:
            runner.steps = steps
            self.patch = patch_between(loop.setup, own.setup)


def patch_between(before: Setup, after: Setup) -> bytes:
    """What the second setup edits beyond the first."""
    old, added = before.files(), [c.item for c in after.fixes if c not in before.fixes]
    diff = b"".join(
        unified_diff(after.plan.prefix + name, old.get(name, file.data), new)
        for name, (file, new) in after.edits.outputs.items()
    )
    return diff and after.plan.summary(added).encode() + diff
