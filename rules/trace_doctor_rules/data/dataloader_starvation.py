"""TD101 dataloader-starvation."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Fix, Table, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.host.data_waits import DataWaits
from trace_doctor.evidence.idle.cpu_timeline import Processor
from trace_doctor.evidence.idle.data_loading import DataLoading, LoaderKind, RepeatedCalls
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule
from trace_doctor_rules.data import _dataloader_starvation_cases as cases
from trace_doctor_rules.data._remedies import (
    call_without_pipeline,
    fewer_batches,
    load_in_workers,
    more_workers,
    work_ahead,
    workers_that_keep_up,
)
from trace_doctor_rules.data._starved_cores_evidence import StarvedCores


class DataLoaderStarvation(TimeRule):
    """The GPU waits for the next batch.

    What it does
    Finds steps in which the GPU has nothing to do because the training loop waits in a data loader, and re-times the
    captured steps without that wait. A loader that is slow but hidden behind GPU work costs nothing and is not reported.

    Why is this bad
    A GPU that waits for data is paid for and idle. With `num_workers=0` the training process itself reads, decodes and
    collates every batch between two steps, so that loading and computing never overlap.

    Evidence
    Idle time of the GPU during which the main thread was inside `enumerate(DataLoader)#….__next__` (or a loader named in
    the settings `loader_frames`, `loader_annotations`), as a share of the steady steps. Where a batch takes less than a worker needs to
    hand it over, it is a note: what costs is how many there are. The iterator's class tells
    whether workers exist: `_SingleProcessDataLoaderIter` is `num_workers=0`. With `with_stack=True` the wait is split
    into reading, collating, pinning and waiting for workers, and of a loader without workers the functions are listed in which
    most of it goes. Where the `preprocess` of a `transformers` pipeline goes on for the same input and makes the same calls in about
    the same time, the finding says so; whether the data is the same, no trace shows. Where kernel launches stall as well while the GPU is idle, threads outnumber cores, and no workers are offered.

    How the saving is estimated
    The captured steps are simulated without the time inside the loader: host calls keep their distance otherwise, GPU
    work starts when its launch has arrived and its stream is free. It is an upper bound, "up to", because workers
    compete for cores and the copy to the GPU grows. In a capture without GPU work it is the main thread's time inside
    the loader, and what moves to workers is credited only up to the machine's core count where that is known; a
    recording tells how long the training thread was on a CPU, and a loader that waits for a disk needs none. Where an input is
    preprocessed several times, only the calls after its first are taken out.

    Fix
    num_workers = max(2, ceil(1.25 · loader / (step − exposed loader))), at most the captured machine's cores (8 where
    these are unknown), together with persistent_workers=True, pin_memory=True (with a GPU) and prefetch_factor, where it
    is not the default. What is done again for the same input is done once instead: workers would only repeat it elsewhere. Where
    workers exist already: more of them, more prefetching, or cheaper work per sample.

    Fix safety
    Unsafe: workers have random number generators of their own, so that augmentation and thus losses change; an
    IterableDataset delivers every sample once per worker unless it is sharded (never applied there); where workers are
    spawned the script needs `if __name__ == "__main__":`.

    When to ignore
    When the capture holds the first batches of an epoch only, or the profile ran on a machine with fewer cores than the
    training will have.

    References
    https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD101"
    name = "dataloader-starvation"
    title = "Steps stall on data loading"
    of_training = True
    costs_host_time = True
    about = ("data_loading",)
    needs = (Steps, DataLoading, DataWaits, Replay, Moments)
    wants = (CallSites, TimeLedger, StarvedCores)
    to_pass = (Processor,)
    yields_to = ("TD103",)

    min_share: float = threshold(
        0.05,
        "idle owned by data loading, as a share of the steady steps",
        unit="share",
        source="torch-tb-profiler recommends workers above 5%; on 110 real captures no run with workers reaches it",
        note_from=NOTE_FROM,
    )
    min_saving: float = threshold(
        0.03,
        "saving of the replay, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_wait_us: float = threshold(
        100.0,
        "exposed time of one wait from which on workers can help; where they cannot, a note",
        unit="us",
        source="a small batch that a worker has ready takes 50 to 110 us to fetch (captures with workers)",
    )
    min_worker_wait_us: float = threshold(
        3000.0,
        "exposed time of one wait from which on workers are late, not just handing over",
        unit="us",
        source="fetching a ready batch (unpickling, mapping shared memory) took up to 2.5 ms in captures whose workers keep up",
    )
    min_worker_share: float = threshold(
        0.15,
        "exposed waits, as a share of the steady steps, from which on workers are late however short each wait is; on a "
        "CPU, below it, a note",
        unit="share",
        source="handing over takes at most 3% of a step in captures whose workers keep up; on two cores that training "
        "shares with them, workers of makemore and minGPT's adder, whose samples cost little, were late by 10 to 12%",
    )
    min_waits: int = threshold(
        5,
        "waits from which on it counts how much of the steps short ones are together",
        unit="count",
        source="fewer show no habit",
    )
    headroom: float = threshold(
        1.25,
        "workers more than the loading time needs",
        source="workers share cores: 50 of 59 ms gained in practice",
    )
    min_starved: float = threshold(
        0.05,
        "launches that stall while the GPU is idle, in half of the steps, as a share of the steady steps, from which on no workers "
        "are offered: cores are short",
        unit="share",
        source="of 26 captures of several steps on a GPU 25 have no such launch; in one the same three kernels of each step take "
        "3.9%, for another reason",
    )
    most_workers: int = threshold(
        8, "workers at most where the core count is not known", source="common node sizes"
    )

    VALID = [
        Valid("loader hidden behind GPU work", lambda: cases.training(200, gpu_us=2000)),
        Valid("hidden, but for the first wait of the profile", lambda: cases.training(1500, gpu_us=2000)),
        Valid("workers deliver in time", lambda: cases.training(3, workers=4)),
        Valid("workers hand over to short steps", lambda: cases.training(90, gpu_us=80, workers=2, steps=8)),
        Valid("short waits of workers in few steps", lambda: cases.training(500, workers=2, steps=4)),
        Valid("short waits of workers, a tenth of each step", lambda: cases.training(200, gpu_us=1600, workers=2)),
        Valid("little to be had", lambda: cases.training(400), thresholds={"min_saving": 0.9}),
        Valid("a small part", lambda: cases.training(400), thresholds={"min_share": 0.7}),
        Valid("too small a part for workers", lambda: cases.training(600, workers=2, steps=8), thresholds={"min_worker_share": 0.9}),
        Valid("short waits of workers in every third step", lambda: cases.training(2400, workers=2, steps=12, every=3)),
        Valid("workers share a CPU with training", lambda: cases.training(600, workers=2, steps=8, gpu=False)),
        Valid("workers hand over to a CPU", lambda: cases.training(2000, gpu_us=28_000, workers=2, gpu=False)),
        Valid("CPU-only on one core", lambda: cases.training(400, gpu=False), options={"extra": {"cpu_count": 1}}),
        Valid("no loader that is known by its name", cases.named_loader, skipped="data loader"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "400 us a step in the training process",
            lambda: cases.training(400),
            saving_us=220,
            message="per step for the next batch",
            fixes=("num_workers=2", "TrainingArguments", "DataModule", "IterableDataset"),
            confidence="high",
            codemod="dataloader-args",
            before=cases.SCRIPT,
            after=cases.PATCHED,
        ),
        Invalid("functions in the loader", cases.transforms, shown="scipy/ndimage/_interpolation.py(640): zoom | 350.0 | 0.87"),
        Invalid(
            "workers and launches that wait for a core",
            lambda: cases.training(6000, workers=2, launch_us=3000),
            message="Kernel launches stall as well: threads likely outnumber the cores.",
            fixes=("Give the job more cores",),
        ),
        Invalid("the same in one step", lambda: cases.training(6000, workers=2, launch_us=3000, steps=1), fixes=("Add workers",)),
        Invalid("the preprocessing of a pipeline", cases.pipeline, fixes=("Call processor and model",)),
        Invalid(
            "one input preprocessed for each of its chunks",
            lambda: cases.pipeline(400, 410, 400, 390, 400, inputs=1),
            message="__call__() (transformers/image_processing_utils.py:40) runs 5 times for 1 input: likely on the same data.",
            shown="without the repeated calls",
            saving_us=320,
            fixes=("Preprocess each input once",),
        ),
        Invalid("chunks that take as long as they are large", lambda: cases.pipeline(400, 900, 300, 500, 400, inputs=1), fixes=("Call processor and model",)),
        Invalid("five inputs of one chunk", lambda: cases.pipeline(400, 400, 400, 400, 400), fixes=("Call processor and model",)),
        Invalid(
            "workers that do not keep up",
            lambda: cases.training(6000, workers=2),
            message="the workers are too slow",
            confidence="high",
            fixes=("Add workers",),
        ),
        Invalid(
            "short steps, and workers that do not keep up",
            lambda: cases.training(600, workers=2, steps=8),
            message="handover",
            confidence="medium",
        ),
        Invalid(
            "batches that cost less than handing them over",
            lambda: cases.training(60, gpu_us=80),
            severity="info",
            message="Workers would take as long to hand over a batch",
            fixes=("Increase the batch size",),
        ),
        Invalid("the same on a CPU", lambda: cases.training(60, gpu_us=80, gpu=False), severity="info", message="The main thread waits 0.0600 ms per step"),
        Invalid("the same in half of the steps", lambda: cases.training(1200, workers=2, steps=12, every=2), message="handover"),
        Invalid("more loading than eight workers do", lambda: cases.training(4000), fixes=("num_workers=8", "", "", "")),
        Invalid("on three cores", lambda: cases.training(4000), fixes=("num_workers=3", "", "", ""), options={"extra": {"cpu_count": 3}}),
        Invalid("a queue that stands still", lambda: cases.training(400, stall=700), severity="info", message="does not reproduce"),
        Invalid("for a moment", lambda: cases.training(400, steps=30, stall=150), confidence="medium", thresholds={"max_unattributed": 1e-4}),
        Invalid("two batches", lambda: cases.training(500, steps=2), confidence="high"),
        Invalid("one batch only", lambda: cases.training(500, steps=1), confidence="low", severity="info"),
        Invalid("one slow batch of ten", cases.alternating, confidence="medium"),
        Invalid("the same on a CPU", lambda: cases.alternating(gpu=False), confidence="low", severity="info"),
        Invalid(
            "workers of a CPU, a tenth of each step",
            lambda: cases.training(4000, gpu_us=36_000, workers=2, gpu=False),
            confidence="low",
            severity="info",
        ),
        Invalid("workers of a CPU that do not keep up", lambda: cases.training(12_000, gpu_us=28_000, workers=2, gpu=False), confidence="medium"),
        Invalid("a loader named in the settings", cases.named_loader, options={"loader_annotations": ("dali_next",)}, fixes=("Prefetch batches",)),
        Invalid("CPU-only", lambda: cases.training(400, gpu=False), saving_us=400, message="The main thread", confidence="medium"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        data_waits = ctx[DataWaits]
        if (
            data_waits.exposed < self.min_share * data_waits.length
            or data_waits.lasting_share < self.min_share
        ):
            return
        if not self._late(data_waits):
            return
        brief = self._brief(data_waits)
        replay, loading = ctx[Replay], ctx[DataLoading]
        removal = Removal(host_spans=tuple((loading.thread, s, e) for s, e in data_waits.waits))
        outcome = replay.without(removal)
        if outcome.share_of_step < self.min_saving:
            return
        without = "data waits"
        if (repeated := loading.repeated(ctx[Steps].spans("steady"))) is not None:
            once = Removal(host_spans=tuple((loading.thread, s, e) for s, e in repeated.spans))
            if (shorter := replay.without(once)).share_of_step >= self.min_saving:
                removal, outcome, without = once, shorter, "the repeated calls"
            else:
                repeated = None
        confidence, why = self._confidence(ctx, data_waits, outcome)
        cores = ctx.get(StarvedCores)
        starved = cores is not None and cores.recurs and cores.share >= self.min_starved
        doubts = [
            "Workers would take as long to hand over a batch." if brief else "",
            "Kernel launches stall as well: threads likely outnumber the cores." if starved else "",
            _again(repeated) if repeated is not None else "",
            why,
        ]
        site = _site(ctx)
        if repeated is not None:
            fixes = [call_without_pipeline(_VERIFY, "Preprocess each input once")]
        elif starved:
            fixes = [techniques.free_cores(_VERIFY)]
        elif brief:
            fixes = [fewer_batches(_VERIFY)]
        elif loading.of_a_pipeline:
            fixes = [call_without_pipeline(_VERIFY)]
        else:
            fixes = self._fixes(data_waits, replay.cores, site, indexed=loading.indexed)
        moments = ctx[Moments]
        longest = max(data_waits.waits, key=lambda w: w[1] - w[0])
        yield Claim(
            message=_message(data_waits, site, " ".join(filter(None, doubts))),
            confidence=confidence,
            title="Short waits for data loading" if brief else "",
            severity="info" if confidence == "low" or brief else None,
            saving=outcome.saving(),
            location=location(site, device=data_waits.device, ts_us=moments.ts_us(longest[0])),
            evidence=_tables(ctx, data_waits, outcome, without),
            spans=moments.longest(data_waits.owned, "waiting for data", device=data_waits.device),
            fixes=fixes,
            removal=removal,
            owned=data_waits.owned,
            key="loader",
        )

    def _brief(self, data_waits: DataWaits) -> bool:
        """Whether a batch takes less time than a worker needs to hand one over: what costs is how many there are."""
        waits = max(len(data_waits.waits), 1)
        return data_waits.kind != "workers" and data_waits.exposed < self.min_wait_us * 1e3 * waits

    def _late(self, data_waits: DataWaits) -> bool:
        """Whether a wait is more than handing over a batch that is ready. Of workers a short one only where short waits are
        a large part of most of several steps of a GPU: on the CPU training takes the workers' cores."""
        mean = data_waits.exposed / max(len(data_waits.waits), 1)
        if data_waits.kind != "workers" or mean >= self.min_worker_wait_us * 1e3:
            return True
        long = sum(s.exposed >= self.min_wait_us * 1e3 for s in data_waits.steps)
        return (
            data_waits.device is not None
            and len(data_waits.waits) >= self.min_waits
            and long * 2 >= len(data_waits.steps)
            and min(data_waits.exposed / data_waits.length, data_waits.lasting_share) >= self.min_worker_share
        )

    def _confidence(
        self, ctx: Context, data_waits: DataWaits, outcome: ReplayOutcome
    ) -> tuple[Confidence, str]:
        """How sure, and a sentence where it is less than sure."""
        if data_waits.device is not None and outcome.basis != "replay":
            return "low", "Low confidence: the simulation does not reproduce this capture well."
        if len(data_waits.waits) < 2:
            return "low", "Low confidence: only one batch observed."
        if ctx[Steps].source == "none":
            return "low", "Low confidence: the capture has no step markers."
        if self.much_unattributed(ctx):
            return "medium", "Much of the idle time has no known cause."
        if (
            data_waits.kind == "workers"
            and data_waits.device is None
            and data_waits.exposed < self.min_worker_share * data_waits.length
        ):
            return "low", "Low confidence: the steps run on the cores of the workers."
        if data_waits.kind == "workers" and data_waits.exposed < self.min_worker_wait_us * 1e3 * len(
            data_waits.waits
        ):
            return "medium", "Part of it may be the handover of batches, which larger batches make rarer."
        if len(data_waits.slow) * 2 < len(data_waits.steps):
            doubt = f"Only {len(data_waits.slow)} of {len(data_waits.steps)} steps wait that long"
            if self._held_up(data_waits):
                return "low", f"{doubt}: other processes may have preempted it."
            return "medium", f"{doubt}."
        return ("high" if data_waits.device is not None else "medium"), ""

    def _held_up(self, data_waits: DataWaits) -> bool:
        """Whether a loader that works in the training process, on a CPU alone, takes long in the slow steps only: what it
        does, it does in each."""
        if data_waits.device is not None or data_waits.kind != "in_process":
            return False
        others = set(data_waits.steps) - set(data_waits.slow)
        return sum(s.exposed for s in others) < self.min_share * sum(s.takes for s in others)

    def _fixes(
        self, data_waits: DataWaits, cores: int | None, site: Site | None, *, indexed: bool
    ) -> list[Fix]:
        if data_waits.kind == "workers":
            return [more_workers(data_waits, _VERIFY)]
        if data_waits.kind != "in_process":
            return [work_ahead(data_waits, _VERIFY)]
        workers = min(workers_that_keep_up(data_waits, self.headroom), cores or self.most_workers)
        return load_in_workers(data_waits, workers, _VERIFY, site.target if site else None, indexed=indexed)


_VERIFY = "Record the same steps again: TD101 is gone and the step is shorter"


def _site(ctx: Context) -> Site | None:
    sites, loading = ctx.get(CallSites), ctx[DataLoading]
    return sites.site(int(loading.rows[0])) if sites is not None else None


_WHO: dict[LoaderKind, str] = {
    "in_process": "num_workers=0, so the main process loads every batch itself",
    "workers": "the workers are too slow",
    "pipe": "the DataPipe is too slow",
    "other": "the loader is too slow",
}


def _message(data_waits: DataWaits, site: Site | None, doubt: str) -> str:
    """What waits, how long, where and why."""
    who = "The GPU" if data_waits.device is not None else "The main thread"
    where = f" in {site}" if site else ""
    waits = milliseconds(data_waits.per_step / 1e3)
    text = f"{who} waits {waits} per step for the next batch{where}: {_WHO[data_waits.kind]}."
    return f"{text} {doubt}" if doubt else text


_FUNCTIONS = 5
"""functions of the table: those where most of the time goes"""


def _again(repeated: RepeatedCalls) -> str:
    """That calls are repeated: whether their arguments are the same, no trace shows."""
    inputs = f"{repeated.inputs} input{'s' if repeated.inputs > 1 else ''}"
    return f"{repeated.function} runs {repeated.times} times for {inputs}: likely on the same data."


def _tables(ctx: Context, data_waits: DataWaits, outcome: ReplayOutcome, without: str) -> list[Table]:
    resource = "GPU" if data_waits.device is not None else "main thread"
    tables = [
        Table.with_units(
            "Data loading per steady step, longest wait first",
            {ctx[Steps].heading: "count", "takes": "us", "in the loader": "us", f"{resource} waits": "us"},
            [
                [s.step, s.takes / 1e3, s.inside / 1e3, s.exposed / 1e3]
                for s in sorted(data_waits.steps, key=lambda s: (-s.exposed, s.step))
            ],
        ),
        outcome.table(f"Simulated: without {without}", f"without {without}"),
    ]
    steady = ctx[Steps].spans("steady")
    if data_waits.kind != "workers" and (functions := ctx[DataLoading].functions(steady)):
        ranked = sorted(functions.items(), key=lambda function: -function[1])[:_FUNCTIONS]
        tables.append(
            Table.with_units(
                "Functions in the loader, without the functions that they call",
                {"function": "code", "time per step": "us", "of loader time": "share"},
                [[name, ns / data_waits.count / 1e3, ns / max(data_waits.loading, 1)] for name, ns in ranked],
            )
        )
    parts = ctx[DataLoading].parts(steady)
    if parts:
        ranked = sorted(parts.items(), key=lambda part: -part[1])
        tables.append(
            Table.with_units(
                "Time in the loader (from Python stacks)",
                {"part": "text", "time per step": "us", "of loader time": "share"},
                [[part, ns / data_waits.count / 1e3, ns / max(data_waits.loading, 1)] for part, ns in ranked],
            )
        )
    return tables
