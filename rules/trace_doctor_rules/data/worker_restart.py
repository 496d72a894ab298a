"""TD103 worker-restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_doctor import Claim, Confidence, Context, Rule, Table, threshold
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.host.data_waits import DataWaits
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules.data._worker_restart_evidence import Border, WorkerRestarts


def _training(
    *,
    stopping_us: float = 2_000,
    starting_us: float = 30_000,
    first_us: float = 20_000,
    epochs: int = 4,
    stacks: bool = False,
    frame: str = "__init__",
    gpu: bool = True,
    workers: int = 2,
    stall: float = 0,
    slow_us: float = 0,
) -> RunBuilder:
    """Epochs of four steps of 4 ms; an epoch ends inside the step that begins the next."""
    b = RunBuilder(stacks=stacks) if gpu else RunBuilder(gpu=None, stacks=stacks)
    for epoch in range(epochs):
        for step in b.steps(4):
            b.stall(stall)
            if step == 0 and epoch:
                b.loader(stopping_us, workers=workers)
                with b.python("torch/utils/data/dataloader.py", 1101, frame):
                    b.run_op("aten::random_", host_us=5)
                    b.wait(starting_us)
            b.loader(first_us if step == 0 and epoch else 100, workers=workers)
            if step == 0 and epoch and slow_us:
                b.run_op("aten::add_", host_us=slow_us)
            for _ in range(10):
                b.run_op("aten::mm", 400, host_us=20)
            b.run_op("autograd::engine::evaluate_function: AddBackward0", 40, host_us=20)
            with b.optimizer_step():
                b.wait(20)
    return b


def _only_loading() -> RunBuilder:
    """A loop that times its loader: a batch of each worker is waited for, the others are there."""
    b = RunBuilder(gpu=None)
    with b.step():
        for _ in range(8):
            b.loader(120_000, workers=2)
            b.loader(200, workers=2)
    return b


_SCRIPT = """from torch.utils.data import DataLoader
loader = DataLoader(list(range(100)), batch_size=4, num_workers=4)
for epoch in range(10):
    for batch in loader:
        loss = train(batch)
        loss.backward()
"""
_PATCHED = _SCRIPT.replace(
    "DataLoader(list(range(100)), batch_size=4, num_workers=4)",
    "DataLoader(\n    list(range(100)), batch_size=4, num_workers=4, persistent_workers=True\n)",
)


class WorkerRestart(Rule):
    """The loader's worker processes are started again for every epoch.

    What it does
    Finds the border between two epochs where worker processes end and new ones are started, and re-times the captured
    steps as if the next batch had been waited for as long as any other. On the CPU, all by which the steps are longer in
    which workers start counts.

    Why is this bad
    A DataLoader ends its workers with each epoch. The next epoch starts processes, copies the dataset object into them,
    and each opens files and fills its caches again before the first batch arrives; meanwhile nothing trains. With short
    epochs (fine-tuning, evaluation every few steps) this is a large part of the time.

    Evidence
    Two waits for a loader with workers that follow each other without any training between: the first ended the epoch
    (and its processes), the second waits for the first batch of the next. Together they take ten times the median wait
    and more. With `with_stack=True` the new iterator's `__init__` is seen; without stacks, stopping and starting must take
    20 ms, which resuming workers does not. One border alone does not tell how often it comes back: then it is a hint.

    How the saving is estimated
    The captured steps are simulated without the time from the end of the epoch to the first batch, but for one median
    wait. An upper bound: workers that persist fill their queue again, too.

    Fix
    persistent_workers=True.

    Fix safety
    Unsafe: what the dataset changes in itself lasts from epoch to epoch, and random states go on.

    When to ignore
    When epochs are so long that their borders do not matter.

    References
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    code = "TD103"
    name = "worker-restart"
    title = "DataLoader workers restart every epoch"
    of_training = True
    costs_host_time = True
    about = ("data_loading",)
    needs = (Steps, DataLoading, WorkerRestarts, Replay, Moments, DataWaits)
    wants = (TimeLedger,)
    to_pass = (IdleCauses,)

    min_times: float = threshold(
        10.0,
        "a border between epochs, in median waits",
        source="the first wait of a profile is up to 4 medians longer",
    )
    min_starting_us: float = threshold(
        20_000.0,
        "stopping and starting, where no stacks show the new iterator",
        unit="us",
        source="starting two processes took 97 to 108 ms on a CPU, resuming two 1 to 5 ms",
    )
    min_stopping_us: float = threshold(
        1_000.0,
        "the call that ends an epoch, there: it waits for the processes to end",
        unit="us",
        source="114 to 950 ms where they end, 0.02 to 0.04 ms where they persist, on a busy machine",
    )
    min_iterator_us: float = threshold(
        1_000.0,
        "`__init__` of a new iterator, where stacks show it: it starts the processes",
        unit="us",
        source="resuming workers makes no iterator",
    )
    max_operators: int = threshold(
        10,
        "operators between the end of an epoch and the next one's first batch",
        unit="count",
        source="seeds and a permutation are drawn there",
    )
    min_share: float = threshold(
        0.01, "saving, as a share of the step", unit="share", source="less is lost in the noise of epochs"
    )

    VALID = [
        Valid("workers persist", lambda: _training(stopping_us=50, starting_us=2000, first_us=1500)),
        Valid("workers persist on a busy machine", lambda: _training(stopping_us=40, starting_us=23_000)),
        Valid("workers persist, and the first batch takes long", lambda: _training(stopping_us=50, starting_us=2000, stacks=True, frame="_reset")),
        Valid("no new iterator, as the frames tell", lambda: _training(stacks=True, frame="_reset")),
        Valid("not so much longer than other waits", _training, thresholds={"min_times": 1000.0}),
        Valid("a new iterator, soon made", lambda: _training(stacks=True), thresholds={"min_iterator_us": 1e6}),
        Valid("started soon", _training, thresholds={"min_starting_us": 40_000.0}),
        Valid("work in between", _training, thresholds={"max_operators": 0}),
        Valid("a small part", _training, thresholds={"min_share": 0.7}),
        Valid("one epoch", lambda: _training(epochs=1)),
        Valid("batches that nothing is done with", _only_loading),
        Valid("no workers", lambda: _training(workers=0), skipped="worker processes"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "new workers for each epoch of four steps",
            _training,
            message="3 times in 16 steps",
            thresholds={"max_operators": 1, "min_starting_us": 32_005.0, "min_stopping_us": 2_000.0},
            confidence="medium",
            codemod="dataloader-args",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("with stacks", lambda: _training(stacks=True, starting_us=12_000), confidence="high"),
        Invalid("with stacks, on the CPU", lambda: _training(stacks=True, gpu=False), confidence="medium"),
        Invalid("a queue that stands still", lambda: _training(stall=6000), confidence="low", severity="info"),
        Invalid("one border", lambda: _training(epochs=2), severity="info", message="once in the capture"),
        Invalid("on the CPU", lambda: _training(gpu=False), confidence="medium"),
        Invalid("on the CPU, where a step with a restart is slow", lambda: _training(gpu=False, slow_us=40_000), saving_us=17_250),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        loader, count = ctx[WorkerRestarts], ctx[Steps].count
        borders = [border for border in loader.borders if border.operators <= self.max_operators]
        usual = loader.median_wait(borders)
        if usual is None:  # nothing is done with the batches: a wait after a wait is no border there
            return
        restarts = [border for border in borders if self._restarts(border, usual, stacks=loader.stacks)]
        if not restarts:
            return
        lost = [(r.start, max(r.end - usual, r.start)) for r in restarts]
        if ctx[DataWaits].device is None:
            lost += _slow_steps(ctx[Steps], restarts)
        removal = Removal(host_spans=tuple((loader.thread, *span) for span in lost))
        outcome = ctx[Replay].without(removal)
        if outcome.share_of_step < self.min_share:
            return
        moments = ctx[Moments]
        spans = [(r.start, r.end) for r in restarts]
        confidence = self._confidence(ctx, restarts, outcome)
        yield Claim(
            message=_message(restarts, usual, count),
            confidence=confidence,
            severity="info" if confidence == "low" or len(restarts) < 2 else None,
            saving=outcome.saving(),
            location=location(None, ts_us=moments.ts_us(spans[0][0])),
            evidence=[_table(ctx, restarts, usual), outcome.table(_WHAT_IF, "persistent workers")],
            spans=moments.longest(spans, "workers restart"),
            fixes=[techniques.persistent_workers(_VERIFY)],
            removal=removal,
            owned=spans,
            key="workers",
        )

    def _restarts(self, border: Border, usual: int, *, stacks: bool) -> bool:
        if border.length < self.min_times * max(usual, 1):
            return False
        return border.iterator >= self.min_iterator_us * 1e3 or (
            not stacks
            and border.stopping >= self.min_stopping_us * 1e3
            and border.stopping + border.starting >= self.min_starting_us * 1e3
        )

    def _confidence(self, ctx: Context, restarts: Sequence[Border], outcome: ReplayOutcome) -> Confidence:
        on_gpu = ctx[DataWaits].device is not None
        if ctx[Steps].source == "none" or (on_gpu and outcome.basis != "replay"):
            return "low"
        return (
            "high" if on_gpu and all(r.iterator >= self.min_iterator_us * 1e3 for r in restarts) else "medium"
        )


def _slow_steps(steps: Steps, restarts: Sequence[Border]) -> list[tuple[int, int]]:
    """On the CPU a step takes longer in which workers start: they share the memory of the training, which copies each page that it
    writes to then, and they make their first batches on its cores. From each border on, (start, end) ns, as much time as its step is
    longer than the median of the others."""
    at = {n: r for r in restarts for n, s in enumerate(steps.steady) if s.start <= r.end <= s.end}
    others = [s.end - s.start for n, s in enumerate(steps.steady) if n not in at]
    spans = []
    for n, border in at.items() if others else ():
        step = steps.steady[n]
        excess = max(step.end - step.start - int(np.median(others)), 0)
        start = max(step.start, min(border.start, step.end - excess))
        spans.append((start, start + excess))
    return spans


_VERIFY = (
    "Record the same steps again: TD103 is gone and the first step of an epoch is as short as the others"
)
_WHAT_IF = "Simulated: workers persist"


def _message(restarts: Sequence[Border], usual: int, count: int) -> str:
    each = two_figures(sum(r.length for r in restarts) / len(restarts) / 1e3)
    often = (
        f"{len(restarts)} times in {count} steps, once per epoch"
        if len(restarts) > 1
        else "once in the capture, as an epoch ends"
    )
    return (
        f"DataLoader workers restart {often}. The first batch of an epoch takes {each}, others "
        f"{two_figures(usual / 1e3)}."
    )


def _table(ctx: Context, restarts: Sequence[Border], usual: int) -> Table:
    steps = ctx[Steps]
    spans = [(s.index, s.start, s.end) for s in steps.steady]
    return Table.with_units(
        "Epoch boundaries",
        {steps.heading: "count", "shutdown": "us", "startup": "us", "first batch": "us", "median wait": "us"},
        [
            [
                next((i for i, start, end in spans if start <= r.start < end), None),
                r.stopping / 1e3,
                r.starting / 1e3,
                r.waiting / 1e3,
                usual / 1e3,
            ]
            for r in restarts
        ],
    )
