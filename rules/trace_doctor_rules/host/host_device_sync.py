"""TD201 host-device-sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_doctor import NOTE_FROM, Cell, Claim, Confidence, Context, Fix, NotCaptured, Table, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.intervals import intervals, total
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule
from trace_doctor_rules.host import _host_device_sync_cases as cases
from trace_doctor_rules.host._host_device_sync_evidence import SyncSite, SyncSites


class HostDeviceSync(TimeRule):
    """The training loop waits for the GPU, and then the GPU waits for the loop.

    What it does
    Finds lines that make the host wait for the device again and again (`.item()`, `.cpu()`, `nonzero`, a printed tensor,
    `torch.cuda.synchronize()`) and re-times the captured steps with these calls made asynchronous.

    Why is this bad
    The host normally runs ahead of the GPU and keeps its queue filled. A call that reads a result back holds the host
    until the queue is empty; afterwards the GPU idles until new work has been prepared. The wait itself is usually spent
    with a busy GPU: what it costs is the idle time that follows.

    Evidence
    Calls that block (synchronises, synchronous copies, copies to pageable memory), by operator path and, with stacks, by
    the user's line; where that is not known, few waits ten times as long as the others below the same operators are a place
    of their own. The time for which such a call held the host while the device was busy is lead lost; later idle time
    with nothing else to blame is charged to it until that lead is used up. The profiler's own synchronise, warm-up, end of
    the run, compilation and graph capture do not count. A copy to the device from pageable memory waits for all that its stream
    had to do: these are call sites only where they would take over what the others hold up (else TD102 counts them).

    How the saving is estimated
    The captured steps are simulated with the calls of that one place returning at once. An upper bound, "up to": whatever
    needs the value must then come later. Places that give more together than one by one, because each wait hides behind
    the next, are one claim, which lists what each saves alone. It is a note where the replay leaves more than 3 % unexplained. Where copies
    to the device wait as well, one wait hides behind the other: both are taken away together, and the call site that holds
    the host longest comes first.

    Fix
    Keep what a model copies in each forward on the device (`register_buffer`). Keep sums there and read them every N steps; use loss.detach() in running sums; remove debug prints and
    synchronises; use operators whose output size does not depend on data. A line that only logs a value is guarded
    (`if step % 10 == 0:`, or every 50 where the capture shows a run of 200 steps), a running sum is kept on the device and read where it is used.

    Fix safety
    Unsafe: logging happens less often, and code that acts on the value (early stopping, NaN checks) acts later.

    When to ignore
    When the value decides what the program does next in every step, or the loop measures time.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """

    code = "TD201"
    name = "host-device-sync"
    title = "Frequent host–device synchronization"
    server_fixes = (techniques.no_value_on_host("Record the same load again: TD201 is gone"),)
    about = ("sync",)
    yields_to = ("TD702", "TD703")
    needs = (Steps, GpuTimeline, SyncSites, Replay, Moments)
    wants = (TimeLedger,)
    to_pass = (RecordedOperators,)

    min_with_copies: float = threshold(
        0.10,
        "saving where copies to the device would take over the waiting, and both have to go; less is a note",
        unit="share",
        source="results that the host needs at once at the end of a pass: 4 to 7% in eleven captures of inference",
        note_from=NOTE_FROM,
    )
    min_saving: float = threshold(
        0.03,
        "saving of the replay, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    max_unexplained: float = threshold(
        0.03, "unexplained GPU delays above which it is a note", unit="share", source="Replay.usable"
    )
    min_times: int = threshold(
        10,
        "waits of one place that count however they are spread",
        source="fewer are an evaluation or a checkpoint",
    )
    long_factor: float = threshold(
        10.0,
        "times the tenth longest, from which on waits of the same operators are of another place, where no line is known",
        source="waits of one place are of one order of length",
    )

    VALID = [
        Valid("nothing waits", lambda: cases.training(sync="")),
        Valid("waits behind a full queue", cases.gpu_bound),
        Valid("read once in six steps", lambda: cases.training(every=6)),
        Valid("waits for copies to the device", lambda: cases.training(sync="to_device")),
        Valid("inside compilation", lambda: cases.training(sync="compile")),
        Valid("read twice in six steps", lambda: cases.training(every=3)),
        Valid("read once, without marks of steps", lambda: cases.training(every=6, marked=False)),
        Valid("read twice, without marks of steps", lambda: cases.training(every=3, marked=False), skipped="no steps that"),
        Valid("inside the capture of a graph", lambda: cases.training(sync="capture")),
        Valid("little to be had", cases.training, thresholds={"min_saving": 0.9}),
        Valid("little to be had with copies", lambda: cases.training(sync="both", gpu_us=600), thresholds={"min_with_copies": 0.9}),
        Valid("a few times in the only step", lambda: cases.training(per_step=3, steps=1), skipped="one step"),
        Valid("once in the only step", lambda: cases.training(steps=1), skipped="one step"),
        Valid("few of them cost time, and no steps", cases.results, skipped="no steps"),
        Valid("at the end of the only step", cases.waits_at_its_end, skipped="shows in the next one"),
        Valid("copies to the device alone, in the only step", lambda: cases.training(steps=1, sync="to_device")),
        Valid("the GPU's side of the copies is missing", cases.copies_missing, skipped="calls that copy did on the GPU"),
        Valid("no GPU", lambda: without_gpu("aten::item", 200), skipped="no GPU work"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "loss.item() in every step",
            lambda: cases.training(stacks=True),
            message="aten::item",
            file="train.py",
            confidence="high",
            codemod="every-n-guard",
            before=cases.SCRIPT,
            after=cases.PATCHED,
        ),
        Invalid(
            "several times a step, without stacks",
            lambda: cases.training(per_step=3),
            message="3 times per step",
            confidence="medium",
            thresholds={"min_times": 18},
        ),
        Invalid("without marks of steps", lambda: cases.training(per_step=3, stacks=True, marked=False), confidence="medium"),
        Invalid(
            "a queue that stands still for a moment",
            lambda: cases.training(stacks=True, stall=200, steps=40),
            confidence="medium",
            thresholds={"max_unattributed": 1e-4},
        ),
        Invalid("for longer than the replay explains", lambda: cases.training(stacks=True, stall=300, steps=40), severity="info"),
        Invalid(
            "a queue that stands still for long",
            lambda: cases.training(stacks=True, stall=3000),
            severity="info",
            confidence="low",
            message="something that was not recorded",
        ),
        Invalid("in the only step", lambda: cases.training(per_step=30, stacks=True, steps=1), confidence="medium"),
        Invalid("in all steps but one", lambda: cases.training(missing=3), message="5 times in 6 steps"),
        Invalid("one after the other", lambda: cases.training(sync="one after the other"), message="and 1 more call site block the host"),
        Invalid("one alone, and two that hide each other", cases.alone_and_together, message="and 2 more call sites block the host"),
        Invalid("three in a row", lambda: cases.training(sync="three"), message="and 2 more call sites block the host"),
        Invalid("each hides the next", lambda: cases.training(sync="three"), message="The saving is of all together: one call site alone saves up to 0", shown="together | "),
        Invalid("in a run of 200 steps", lambda: cases.training(stacks=True, steps=200), fixes=("every 50 steps", "")),
        Invalid(
            "copies to the device wait as well",
            lambda: cases.training(sync="both", gpu_us=600),
            message="at 1 more call site",
            shown="together | ",
            fixes=("Read", "Accumulate", "pin_memory", "Keep the tensor"),
        ),
        Invalid(
            "a tensor of the model is copied to the device behind its kernels",
            cases.constant_of_the_model,
            message="Host-to-device aten::to → aten::copy_ in train_step() (train.py) through box_predictor() "
            "(transformers/models/detector.py:1421) blocks the host once per step",
            fixes=("Keep the tensor on the GPU", "pin_memory", "Read", "Accumulate"),
        ),
        Invalid("between copies to the host and to the device", cases.between_copies, claims=2, message="blocks the host"),
        Invalid("nonzero", lambda: cases.training(sync="nonzero"), message="aten::nonzero"),
        Invalid(".cpu()", lambda: cases.training(sync="cpu"), message="aten::to → aten::copy_ blocks the host once per step", fixes=("Batch copies", "Copy asynchronously")),
        Invalid(".cpu() of much", lambda: cases.training(sync="much"), fixes=("Copy asynchronously", "Batch copies")),
        Invalid("torch.cuda.synchronize()", lambda: cases.training(sync="synchronize"), message="cudaDeviceSynchronize", codemod="remove-call"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        replay, count = ctx[Replay], ctx[Steps].count
        waiting = [s for s in ctx[SyncSites].sites(self.long_factor) if s.idle_ns]
        sites = [s for s in waiting if self._again_and_again(s, count)]
        copies = Removal(make_async=ctx[SyncSites].to_device)
        together = replay.without(_asynchronous(sites))
        with_copies = (
            together.share_of_step < self.min_saving
            and replay.beside(_asynchronous(sites), copies) >= self.min_with_copies
        )
        if with_copies:
            together = replay.without(_asynchronous(sites) | copies)
        if together.share_of_step < self.min_saving:
            self._must_have_steps(ctx, [s for s in waiting if not self._again_and_again(s, count)])
            self._must_see_the_next_step(ctx)
            if lost := ctx[SyncSites].lost:
                raise NotCaptured(lost, "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
            return
        if with_copies:
            places = sites + [s for s in ctx[SyncSites].copy_sites(self.long_factor) if s.held_ns]
            yield self._claim(ctx, sorted(places, key=lambda s: -s.held_ns), together, copies)
            return
        alone = [(site, replay.without(_asynchronous([site]))) for site in sites]
        worth = [(site, outcome) for site, outcome in alone if outcome.share_of_step >= self.min_saving]
        apart = sum(outcome.share_of_step for _, outcome in worth)
        if together.share_of_step >= apart + self.min_saving:  # each wait hides behind the next
            yield self._claim(ctx, sites, together)
            return
        for site, outcome in worth:
            yield self._claim(ctx, [site], outcome)

    def _must_have_steps(self, ctx: Context, sites: Sequence[SyncSite]) -> None:
        """Without steps, or in one, places that wait a few times cannot be told from those that wait in each. Without steps a
        single wait is left out: there the end of the run reads its result."""
        marked = ctx[Steps].source != "none"
        if marked and ctx[Steps].count > 1:
            return
        sites = [s for s in sites if marked or s.times > 1]
        if sites and ctx[Replay].without(_asynchronous(sites)).share_of_step >= self.min_saving:
            what, advice = (
                ("one step, which does not show", "record several steps")
                if marked
                else ("no steps that would show", "call prof.step() after each step")
            )
            raise NotCaptured(f"waits that cost time, but {what} whether they come back", advice)

    def _must_see_the_next_step(self, ctx: Context) -> None:
        """What the last wait of a single step costs would show in the next one."""
        steps = ctx[Steps]
        if steps.source == "none" or steps.count > 1:
            return
        held = sum(s.held_ns for s in ctx[SyncSites].sites(self.long_factor))
        if held >= self.min_saving * total(intervals(steps.spans("steady"))):
            raise NotCaptured(
                f"the host waits {milliseconds(held / 1e3)} for the GPU in the only step: what that costs shows in the next one",
                "schedule=schedule(wait=1, warmup=1, active=3)",
            )

    def _again_and_again(self, site: SyncSite, count: int) -> bool:
        """Ten times, or in every step (one may lack it) of two or more."""
        return site.times >= self.min_times or site.steps >= max(2, count - 1)

    def _claim(
        self, ctx: Context, sites: Sequence[SyncSite], outcome: ReplayOutcome, copies: Removal | None = None
    ) -> Claim:
        """`copies`: the waits for copies to the device, where they would take over what these waits hold up."""
        moments, count = ctx[Moments], ctx[Steps].count
        idle = sorted((int(s), int(e)) for site in sites for s, e in site.idle)
        longest = max(idle, key=lambda w: w[1] - w[0])
        say = _with_copies if copies is not None else _message
        confidence = self._confidence(ctx, sites, outcome)
        return Claim(
            message=say(sites, count, _alone(ctx[Replay], sites, outcome), explained=self._explained(ctx)),
            confidence=confidence,
            severity="info" if confidence == "low" else None,
            saving=outcome.saving(),
            location=location(sites[0].site, ts_us=moments.ts_us(longest[0])),
            evidence=_tables(ctx, sites, outcome),
            spans=moments.longest(idle, "idle after a wait"),
            fixes=[fix for site in _one_of_each_kind(sites) for fix in _fixes(site, _every(ctx[Steps]))],
            removal=_asynchronous(sites) | (copies or Removal()),
            owned=idle + [(int(s), int(e)) for site in sites for s, e in site.copies],
            key=" + ".join("/".join(s.path) + " long" * s.long for s in sites),
        )

    def _explained(self, ctx: Context) -> bool:
        """Whether the replay knows what the GPU waited for."""
        return (ctx[Replay].unexplained_share or 0.0) <= self.max_unexplained

    def _confidence(self, ctx: Context, sites: Sequence[SyncSite], outcome: ReplayOutcome) -> Confidence:
        """Sure with the user's line; without it the reader has to find out whether the wait can go."""
        if outcome.basis != "replay" or not self._explained(ctx):
            return "low"
        steps = ctx[Steps]
        if steps.source == "none" or steps.alike < 2 or self.much_unattributed(ctx):
            return "medium"
        return "high" if all(s.site for s in sites) else "medium"


def _asynchronous(sites: Sequence[SyncSite]) -> Removal:
    return Removal(make_async=tuple(sorted(row for site in sites for row in site.rows)))


def _one_of_each_kind(sites: Sequence[SyncSite]) -> list[SyncSite]:
    first = {(s.kind, s.site): s for s in reversed(sites)}
    return [s for s in sites if first[s.kind, s.site] is s]


# -- words -----------------------------------------------------------------------------------------------------


def _alone(replay: Replay, sites: Sequence[SyncSite], outcome: ReplayOutcome) -> str:
    """What the call site saves that saves most alone, where that is not the saving of the finding; empty else."""
    most = max(replay.without(_asynchronous([s])).saved_us_per_step for s in sites)
    return "" if most >= outcome.saved_us_per_step else milliseconds(most)


def _message(sites: Sequence[SyncSite], count: int, alone: str, *, explained: bool) -> str:
    """What blocks, where and how often. `alone`: what one saves where the rest stays. `explained`: whether the capture shows all
    that the GPU waits for."""
    what = _what(sites[0])
    if len(sites) > 1:
        what += f" and {len(sites) - 1} more call site{'s' if len(sites) > 2 else ''}"
    often = _often(sum(s.times for s in sites), count)
    also = f" {_TOGETHER} {alone} per step." if alone else ""
    doubt = "" if explained else _DOUBT
    return f"{what} block{'s' if len(sites) == 1 else ''} the host {often}, so it can't run ahead of the GPU.{also}{doubt}"


def _with_copies(sites: Sequence[SyncSite], count: int, alone: str, *, explained: bool) -> str:
    """The same where copies to the device are among the call sites, which stand by how long they hold the host."""
    first, *others = sites
    held = milliseconds(first.held_ns / count / 1e3)
    text = f"{_what(first)} blocks the host {_often(first.times, count)}. It waits {held} per step there for queued GPU work"
    if others:
        rest = milliseconds(sum(s.held_ns for s in others) / count / 1e3)
        text += f", and {rest} at {len(others)} more call site{'s' if len(others) > 1 else ''}"
    text += "."
    if alone:
        text += f" {_TOGETHER} {alone} per step."
    return text + ("" if explained else _DOUBT)


_TOGETHER = "The saving is of all together: one call site alone saves up to"
_DOUBT = " The GPU also waits for something that was not recorded."


def _what(site: SyncSite) -> str:
    """The operators and where they are called."""
    through = f" through {site.library}" if site.library else ""
    return site.name + (f" in {site.site}" if site.site else "") + through


def _often(times: int, count: int) -> str:
    if times < count:
        return f"{times} times in {count} steps"
    per_step = times / count
    number = f"{per_step:.0f}" if per_step >= 2 else f"{per_step:.1f}".removesuffix(".0")
    return "once per step" if number == "1" else f"{number} times per step"


def _tables(ctx: Context, sites: Sequence[SyncSite], outcome: ReplayOutcome) -> list[Table]:
    count, replay = ctx[Steps].count, ctx[Replay]
    together: list[list[Cell]] = [["together", None, None, None, None, outcome.saved_us_per_step]]
    if len(sites) == 1:
        together = []
    return [
        Table.with_units(
            "Synchronizing calls per steady step, each alone",
            {
                "operator": "text",
                "call site": "location",
                "calls": "count",
                "blocked, GPU busy": "us",
                "GPU idle caused": "us",
                "saves": "us",
            },
            [
                [
                    s.name,
                    str(s.library or s.site) if s.site else None,
                    round(s.times / count, 2),
                    s.held_ns / count / 1e3,
                    s.idle_ns / count / 1e3,
                    replay.without(_asynchronous([s])).saved_us_per_step,
                ]
                for s in sites
            ]
            + together,
        ),
        outcome.table("Simulated: these calls do not block", "asynchronous"),
    ]


_VERIFY = "Record the same steps again: TD201 no longer names this call site and the step is shorter"


_LONG = 200
"""steps from which on a run that reads a value in every 50th still reads it four times"""


def _every(steps: Steps) -> int:
    """How seldom to read a value, by how far the run got: by the numbers of its steps."""
    return 50 if steps.steady and steps.steady[-1].index + 1 >= _LONG else 10


def _fixes(site: SyncSite, every: int) -> list[Fix]:
    target = site.site.target if site.site else None
    match site.kind:
        case "item":
            return [techniques.read_seldom(_VERIFY, target, every), techniques.sum_on_device(_VERIFY, target)]
        case "shape":
            return [techniques.fixed_sizes(_VERIFY, site.path[-1], target)]
        case "to_host":
            fixes = [techniques.copy_seldom(_VERIFY, target), techniques.copy_behind(_VERIFY, target)]
            return (
                fixes[::-1] if total(site.copies) > site.idle_ns else fixes
            )  # large: as many bytes all at once take as long
        case "to_device":
            copies = [techniques.pinned_copies(_VERIFY, target), techniques.keep_on_device(_VERIFY, target)]
            return copies[::-1] if site.in_module else copies
        case "synchronize":
            return [techniques.no_synchronize(_VERIFY, target, device_wide=site.device_wide)]
