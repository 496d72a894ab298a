"""TD205 periodic-work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath

from trace_doctor import Claim, Context, Location, Rule, threshold
from trace_doctor.evidence.durations import three_figures
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.host._periodic_work_evidence import ObservedWork
from trace_doctor_rules.host._work_kinds import kind_of_work


def _training(
    *,
    share: float | None = 0.35,
    steps: tuple[int, ...] = (30, 60, 90),
    calls: str = "evaluate",
    more: int = 0,
    ended: str = "enough",
    observed: bool = True,
) -> RunBuilder:
    """`share` None: a recording in which nothing came twice."""
    b = RunBuilder(gpu=None)
    for _ in range(3):
        with b.step(), b.op("aten::mm", us=1000):
            pass
    b.ended = ended
    places = [
        {
            "file": "train.py",
            "function": "main",
            "line": 70 + n,
            "calls": calls if not n else "",
            "share": 0.9 - n / 2,
        }
        for n in range(1 + more)
    ]
    work = {
        "steps": list(steps),
        "every": 30.0,
        "milliseconds": 2810.0,
        "step_ms": 177.0,
        "share": share,
        "places": places,
    }
    if observed:
        b.periodic = {} if share is None else work
    return b


class PeriodicWork(Rule):
    """Work that comes once in several steps takes much of the run.

    What it does
    Compares the time of evaluation, rollouts, checkpoints and logs between steps with the time of the steps. All other rules
    are about steady steps, in which such work is not.

    Why is this bad
    A training can spend more time on it than on its steps. Whatever makes the steps faster then changes little.

    Evidence
    Steps without the profiler in a recording of `trace-doctor record`, three times as long as the median, and the lines that
    the training thread was on in them, sampled. A line counts that no other step was on, in two long steps at least. A rollout
    makes what the steps learn from, and is an info finding.

    How the saving is estimated
    None is claimed: how much of this work the training needs is for people to say.

    Fix
    By what is called: evaluate less often, checkpoint asynchronously, batch the rollout.

    Fix safety
    Only shown: how often a model is evaluated or saved is for people to say.

    When to ignore
    When this work is the point of the run, as with few long rollouts.

    References
    https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """

    code = "TD205"
    name = "periodic-work"
    title = "Periodic work takes much of the run"
    of_training = True
    needs = (ObservedWork,)

    min_share: float = threshold(
        0.10,
        "time of the work, as a share of it and of the steps between",
        unit="share",
        source="estimate: evaluating on a sixth of the images of an epoch, without backward, as MNIST does, is about 5% of it",
    )

    VALID = [
        Valid("a short evaluation", lambda: _training(share=0.09)),
        Valid("none up to the end of the script", lambda: _training(share=None, ended="script")),
        Valid("none in a part of the run", lambda: _training(share=None), skipped="no work came twice"),
        Valid("steps were not observed", lambda: _training(observed=False), skipped="was not observed"),
        Valid("one long step", lambda: _training(steps=(30,)), skipped="no work came twice"),
    ]
    INVALID = [
        Invalid(
            "an evaluation after each epoch",
            _training,
            severity="warning",
            confidence="high",
            message="evaluate() (train.py:70) takes 2.81 s every 30 steps, 35% of the run",
            file="train.py",
            line=70,
            fixes=("Evaluate less often",),
        ),
        Invalid("seen twice", lambda: _training(steps=(30, 60)), confidence="medium"),
        Invalid("not always after as many steps", lambda: _training(steps=(30, 50, 90)), message="about every 30 steps"),
        Invalid("a rollout", lambda: _training(calls="get_action_and_value", more=1), message="and 1 more place", severity="info", fixes=("Batch the rollout",)),
        Invalid("code of the loop itself", lambda: _training(calls=""), message="main() (train.py:70) takes", fixes=("Run it less often",)),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        work = ctx[ObservedWork].work
        if work is None or work.share < self.min_share:
            return
        first, *others = work.places
        file = PurePath(first.file).name
        name = first.calls or first.function
        kind = kind_of_work(f"{name} ({file})")
        regular = len({after - before for before, after in pairwise(work.steps)}) == 1
        more = f" and {len(others)} more place{'s' * (len(others) > 1)}" if others else ""
        yield Claim(
            message=(
                f"{name}() ({file}:{first.line}){more} take{'s' * (not others)} {three_figures(work.milliseconds * 1e3)} "
                f"{'' if regular else 'about '}every {work.every:.0f} steps, {work.share:.0%} of the run. "
                f"A step takes {three_figures(work.step_ms * 1e3)} otherwise."
            ),
            confidence="high" if len(work.steps) > 2 else "medium",
            severity="info" if kind == "rollout" else "warning",
            location=Location(file=first.file, line=first.line or None, function=first.function),
            evidence=[
                table(
                    "Work between steps, longest first",
                    {"line": "text", "calls": "text", "each time": "us", "of it": "share"},
                    [
                        [f"{p.file}:{p.line}", p.calls, work.milliseconds * p.share * 1e3, p.share]
                        for p in work.places
                    ],
                )
            ],
            fixes=[
                techniques.off_the_step(
                    "Record as many steps again: TD205 is gone or its share is smaller", kind
                )
            ],
            key=f"{first.function} {first.calls}",
        )
