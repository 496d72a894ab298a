"""TD203 slow-launch-thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_doctor import NOTE_FROM, Claim, Confidence, Context, Table, threshold
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.host.host_bound import HostBound
from trace_doctor.evidence.host.host_gap_filters import GapLimits
from trace_doctor.evidence.host.host_gaps import HostGap, HostGaps
from trace_doctor.evidence.host.stalled_operators import StalledOperators
from trace_doctor.evidence.host.unattributed_gaps import UnattributedGaps
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.names.event_names import is_optimizer
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import TimeRule, spans_of
from trace_doctor_rules.host import _slow_launch_thread_cases as cases
from trace_doctor_rules.host._stalled_operators import NOT_STALLED, STALLED, stalled_claim
from trace_doctor_rules.host._unattributed_gaps import (
    VERIFY,
    comes_back,
    fix_of,
    in_words,
    key_of,
    notable,
    without_name,
)
from trace_doctor_rules.host._work_kinds import kind_of_work


class SlowLaunchThread(TimeRule):
    """Host code in the loop delays kernel launches.

    What it does
    Finds intervals of 1 ms and more (annotated ones of 100 us) on the main thread in which no kernel is launched (checkpoints, evaluation,
    logging, tokenization, garbage collection), names the function or annotation, and re-times the steps without it.

    Why is this bad
    The GPU finishes what is queued and then idles until the host launches again. Most of such work is not needed in
    every step, or not on the thread that launches.

    Evidence
    The outermost Python frame (with `with_stack=True`) of 1 ms and more, or `record_function` annotation of 100 us and more
    (below 1 ms a note), on the main thread in which no kernel is launched, and the GPU's idle time in it that belongs to
    Python code, operators or the annotation; waits for the device are TD201's, data loaders TD101's. In a capture of the
    CPU alone: its own time, without operators, unless its name says that it stands beside training (evaluation, logging,
    checkpoints: a note).
    An optimizer that works on the host before it launches is a note, where TD304 finds nothing in it.
    Without stacks, Python code that no annotation names is a note, which says what ran before and behind it: from 3 % on
    where it comes back in most steps, else (never on a CPU, where another program may have had the core) from 6 % on.
    With stacks, the user's function that it lies in is named; on a CPU what is shorter than 1 ms counts in such functions alone.
    On a CPU alone, operators that take ten times as long as nine in ten of their name and shapes (without shapes: of their
    place in the step), and so a tenth of the step, are info: CPU contention is likely.

    How the saving is estimated
    The captured steps are simulated without these stretches: an upper bound, for what moves elsewhere still takes time.

    Fix
    Run it every N steps, in a worker process, or in a thread that copies first and writes later.

    Fix safety
    Not edited: you decide what may run later.

    When to ignore
    When it is rare and the profile contains it by chance. With stacks recorded, Python code takes two to
    three times as long as without.

    References
    https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict_saver.async_save
    https://docs.python.org/3/library/gc.html#gc.freeze
    """

    code = "TD203"
    name = "slow-launch-thread"
    title = "Host code delays kernel launches"
    about = ("python", "annotation", "dispatch", "optimizer", "unattributed")
    needs = (Steps, HostGaps, Replay, Moments)
    wants = (TimeLedger, HostBound, UnattributedGaps, StalledOperators)
    yields_to = ("TD104", "TD201", "TD304", "TD702", "TD703")
    costs_host_time = True

    min_share: float = threshold(
        0.03,
        "idle during stretches of one name, and saving without them, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_gap_us: float = threshold(
        1000.0,
        "a stretch that counts, and one in which nothing begins or ends",
        unit="us",
        source="an operator costs the host 5 to 50 us, with stacks two to three times that",
    )
    min_short_gap_us: float = threshold(
        250.0,
        "a shorter stretch that counts on a GPU, or in a function that stacks name, where it takes `min_share` of the step by itself",
        unit="us",
        source="work for the next launch takes the host 5 to 200 us",
    )
    min_annotated_us: float = threshold(
        100.0,
        "an annotated stretch that counts: what somebody has given a name",
        unit="us",
        source="many of them may be one gap, each a tenth as long",
    )
    max_operator_share: float = threshold(
        0.10,
        "operators in a stretch on a CPU alone, above which they are its purpose",
        unit="share",
        source="own captures: logging and checkpoints run a few operators to copy and to reduce",
    )
    min_wrapped_share: float = threshold(
        0.90,
        "time of a library's frame in a function of the user's, above which it only calls that",
        unit="share",
        source="decorators and hooks take some microseconds",
    )
    min_usual_share: float = threshold(
        0.50,
        "cases of a name that are long and launch nothing, below which it is work that was preempted",
        unit="share",
        source="most cases decide; captures of busy machines",
    )
    max_held_up_share: float = threshold(
        0.50,
        "a stretch in which the thread stands still in code that usually works",
        unit="share",
        source="most of it decides; captures of busy machines",
    )
    max_callee_share: float = threshold(
        0.50,
        "cases of a function that stand still in the same callee, from which on that is its work",
        unit="share",
        source="what a function waits for lies in the same callee each time; captures of busy machines",
    )
    stalled_factor: float = threshold(
        10.0,
        "times nine in ten of its like, from which on an operator of a CPU stood still",
        source="two runs on a CPU that lost the processor for seconds: 54 times; busy cores stretch an operator two to five times",
    )
    min_stalled_share: float = threshold(
        0.10,
        "what such operators take beyond the usual, as a share of the step: a note",
        unit="share",
        source="the severity `critical` begins there; on busy machines a little is usual",
    )
    rare_factor: float = threshold(
        2.0,
        "times min_share, for what nobody named and does not come back in most steps",
        source="one gap in a short capture may be chance",
    )

    VALID = [
        Valid("behind a full queue", lambda: cases.training(2000, gpu_us=8000)),
        Valid("nobody named it, once in six steps of a CPU", lambda: cases.training(9000, name="", every=5, gpu=False), skipped="not recorded"),
        Valid("a CUDA graph is captured", cases.captures_a_graph),
        Valid("operators were taken out, so that nobody knows what ran there", cases.taken_out, skipped="operators were taken out"),
        Valid("a part of the model", lambda: cases.training(name="encode", inside="operators", gpu=False)),
        Valid("a part of the model, with a short wait behind its operators", cases.model_that_waits, skipped="not recorded"),
        Valid("on a CPU, in no function of the script's", cases.in_no_function, skipped="held it up"),
        Valid("a logarithm", lambda: cases.training(name="log_likelihood", inside="operators", gpu=False)),
        Valid("short", lambda: cases.training(200)),
        Valid(
            "a short evaluation on the CPU",
            lambda: cases.training(name="evaluate", inside="operators", gpu=False),
            thresholds={"min_annotated_us": 6000.0},
        ),
        Valid("half a millisecond that nobody named, on a CPU", lambda: cases.training(500, name="", gpu=False), skipped="not recorded"),
        Valid("which is not usual", lambda: cases.training(name="evaluate", inside="operators", gpu=False), thresholds={"min_usual_share": 1.1}),
        Valid("code of the loop itself, once", lambda: cases.training(9000, name="", stacks=True, every=6), skipped="held it up"),
        Valid("nobody named it, once, without marks of steps", lambda: cases.training(9000, name="", every=6, marked=False)),
        Valid("as short as work of the host", lambda: cases.training(800, name="")),
        Valid("a small part", cases.training, thresholds={"min_share": 0.9}),
        Valid(
            "nobody named it, once in six steps, and not that long",
            lambda: cases.training(9000, name="", every=5),
            skipped="not recorded",
            thresholds={"rare_factor": 30.0},
        ),
        Valid("nobody named it, three times in one of six steps, and not that long", cases.in_one_step, skipped="not recorded", thresholds={"rare_factor": 60.0}),
        Valid("nobody named it, every other step on a CPU", lambda: cases.training(9000, name="", gpu=False, every=2), skipped="not recorded"),
        Valid("a short wait, once much longer", lambda: cases.waits_on_a_cpu(1100, 1100, 30_000, 1100, 1100, 1100), skipped="not recorded"),
        Valid("a library is loaded in an operator, once", lambda: cases.in_an_operator(once=True)),
        *NOT_STALLED,
        Valid("other programs hold it up", cases.held_up, skipped="held it up"),
        Valid("other programs hold it up, each time elsewhere", cases.held_up_anywhere, skipped="held it up"),
        Valid("it waits for the other ranks", cases.meets_other_ranks),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "an annotation",
            cases.training,
            message="log_metrics leaves the GPU idle for 4.4 ms per step",
            fixes=("Log every",),
            confidence="high",
            saving_us=4300,
            tolerance=0.1,
        ),
        Invalid(
            "a function",
            lambda: cases.training(name="save_checkpoint", stacks=True),
            message="save_checkpoint() (train.py)",
            confidence="medium",
            file="train.py",
            fixes=("Save a checkpoint every 100 steps", "asynchronously"),
            codemod="save-every-n",
        ),
        Invalid(
            "an annotation in a function",
            lambda: cases.training(stacks=True, inside="a function"),
            message="log_metrics in train() (train.py) leaves",
        ),
        Invalid("most of the step", cases.most_of_the_step, message="tidy() (train.py)"),
        Invalid("a decorated function", cases.decorated, message="count_tokens() (train.py)"),
        Invalid("many short ones", lambda: cases.training(400, often=10), message="log_metrics", severity="info"),
        Invalid("once in six steps", lambda: cases.training(9000, every=6), severity="info"),
        Invalid("garbage collection", lambda: cases.training(name="gc (dynamo_timed)"), message="gc"),
        Invalid(
            "an evaluation on the CPU",
            lambda: cases.training(name="evaluate", inside="operators", gpu=False),
            message="evaluate",
            severity="info",
            saving_us=5000,
        ),
        Invalid(
            "on the CPU",
            lambda: cases.training(gpu=False),
            confidence="medium",
            saving_us=5000,
            message="log_metrics keeps the main thread busy for 5 ms per step.",
        ),
        Invalid("without marks of steps", lambda: cases.training(marked=False), confidence="low", message="per step."),
        Invalid("once, without marks of steps", lambda: cases.training(9000, every=6, marked=False), message="in one step only"),
        Invalid("a queue that stands still", lambda: cases.training(stall=12_000), confidence="low"),
        Invalid("for longer than the replay explains", lambda: cases.training(stall=2500), confidence="medium"),
        Invalid("for a moment", lambda: cases.training(stall=700), confidence="medium", thresholds={"max_unattributed": 1e-4}),
        Invalid(
            "nobody named it",
            lambda: cases.training(name=""),
            message="after aten::mm",
            confidence="medium",
            fixes=("Record again",),
            saving_us=3600,
            tolerance=0.2,
        ),
        Invalid("half a millisecond of a short step", lambda: cases.training(900, name=""), message="after aten::mm", severity="info"),
        Invalid("between two gradients", cases.between_gradients, message="Unrecorded Python code", confidence="medium", saving_us=3300, tolerance=0.1),
        Invalid("inside an operator, in each step", cases.in_an_operator, message="aten::conv2d leaves", confidence="medium", fixes=("Move the operator",)),
        Invalid("inside a compiled region", lambda: cases.in_an_operator(name="Torch-Compiled Region: 0/0"), message="Torch-Compiled Region", fixes=("Run with TORCH_LOGS",)),
        Invalid("in many places, each of them small", cases.in_many_places, message="in 10 places", confidence="medium", fixes=("Record again",)),
        Invalid("the same with stacks", lambda: cases.in_many_places(stacks=True), message="in 10 places", fixes=("Annotate the loop",)),
        Invalid(
            "an optimizer that works on the host",
            cases.optimizer_on_the_host,
            message="Optimizer.step#Shampoo.step leaves the GPU idle",
            severity="info",
            fixes=("Move the optimizer's host work",),
        ),
        Invalid("a batch that is copied to the GPU", lambda: cases.training(name="## copy_batch_to_gpu ##"), message="copy_batch_to_gpu", fixes=("Copy the next batch",)),
        Invalid("a batch that is loaded first, inside the annotation", cases.loads_inside, message="copy_batch_to_gpu", saving_us=1000, tolerance=0.1, shown="## copy_batch_to_gpu ## | None | 6 | 6 | 1000"),
        Invalid("kernels are launched meanwhile", lambda: cases.training(inside="launch"), message="log_metrics leaves", claims=2),
        Invalid(
            "a phase of the step",
            lambda: cases.training(name="## forward ##"),
            message="Unrecorded Python code",
            confidence="medium",
        ),
        Invalid("a wrapper's mark", lambda: cases.training(name="DistributedDataParallel.forward"), message="Unrecorded Python code", confidence="medium"),
        Invalid("nobody named it, once in six steps", lambda: cases.training(9000, name="", every=5), message="one step only", severity="info"),
        Invalid(
            "code of the loop itself",
            lambda: cases.training(name="", stacks=True),
            message="Code of train() (train.py) itself",
            fixes=("Run it less often",),
            confidence="medium",
            file="train.py",
        ),
        Invalid("half a millisecond of the loop itself, on a CPU", lambda: cases.training(500, name="", stacks=True, gpu=False), message="Code of train() (train.py) itself", severity="info"),
        Invalid("nobody named it, beside longer work of a CPU", lambda: cases.waits_on_a_cpu(*[9000] * 6), message="after aten::mm and before aten::mul"),
        *STALLED,
        Invalid("nobody named it, on the CPU", lambda: cases.training(name="", gpu=False), message="after aten::mm", severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        host, limits = ctx[HostGaps], self._limits(ctx[Steps].step_ns)
        named = host.named(limits)
        least = self.min_share * host.length
        claims = [
            self._claim(ctx, gap, outcome, named.gaps)
            for gap in named.gaps
            if gap.idle_ns >= least
            if (outcome := _without(ctx, gap)).share_of_step >= self.min_share
        ]
        if not claims or host.device >= 0:
            places = ctx[UnattributedGaps].places(named, limits)
            claims += [
                self._claim(ctx, gap, outcome)
                for gap, share in notable(ctx, places, self.min_share, self.rare_factor)
                if (outcome := _without(ctx, gap)).share_of_step >= share
            ]
        yield from claims
        least_ns, factor = round(self.min_gap_us * 1e3), self.stalled_factor
        if not claims and (stalled := stalled_claim(ctx, factor, least_ns, self.min_stalled_share)):
            yield stalled
        elif not claims and (blank := total(named.blank)) >= max(least, 1):
            raise without_name(blank / host.length, stacks=host.stacks)

    def _limits(self, step_ns: int) -> GapLimits:
        gap_ns = round(self.min_gap_us * 1e3)
        short_ns = max(self.min_short_gap_us * 1e3, self.min_share * step_ns)
        return GapLimits(
            gap_ns=gap_ns,
            nameless_ns=min(gap_ns, round(short_ns)),
            annotated_ns=round(self.min_annotated_us * 1e3),
            operator_share=self.max_operator_share,
            wrapped_share=self.min_wrapped_share,
            usual_share=self.min_usual_share,
            held_up_share=self.max_held_up_share,
            callee_share=self.max_callee_share,
        )

    def _claim(
        self, ctx: Context, gap: HostGap, outcome: ReplayOutcome, named: Sequence[HostGap] = ()
    ) -> Claim:
        """`named`: all gaps that have a name; none where this one has none."""
        host, moments, count = ctx[HostGaps], ctx[Moments], ctx[Steps].count
        confidence = self._confidence(ctx, outcome, gap)
        if not named:  # who waits there is known, and where; what for is not
            sure = host.device >= 0 and comes_back(gap, count) and confidence != "low"
            confidence = "medium" if sure else "low"
        short = gap.host_ns < self.min_gap_us * 1e3 * len(
            gap.spans
        )  # callbacks and hooks are often annotated
        hint = confidence == "low" or gap.steps < 2 or gap.works or short or is_optimizer(gap.name)
        device = host.device if host.device >= 0 else None
        target = gap.site.target if gap.site else None
        kind = kind_of_work(gap.name) if named else "other"
        guarded = kind == "checkpoint" and target is not None and comes_back(gap, count)
        return Claim(
            message=_message(gap if named else in_words(gap), host, count),
            confidence=confidence,
            severity="info" if hint else None,
            saving=outcome.saving(),
            location=location(gap.site, device=device, ts_us=moments.ts_us(gap.spans[0][0])),
            evidence=[
                *([_table(named, host, count)] if named else []),
                outcome.table("Simulated: not in the step", "without it"),
            ],
            spans=moments.longest(spans_of(gap.idle), gap.name, device=device),
            fixes=[
                *([techniques.save_seldom(VERIFY, target)] if guarded else []),
                techniques.schedule_ahead(VERIFY)
                if named and ctx[Steps].of_server
                else techniques.off_the_step(VERIFY, kind, target)
                if named or target
                else fix_of(gap, stacks=host.stacks),
            ],
            removal=_removal(ctx, gap),
            owned=spans_of(gap.idle),
            key=key_of(gap),
        )

    def _confidence(self, ctx: Context, outcome: ReplayOutcome, gap: HostGap) -> Confidence:
        """Where the replay gives a bound only, what comes back in most steps is as plain as its idle time; not where much of
        that has no cause, as in a trace from which events were taken out."""
        bound = ctx.get(HostBound)
        if ctx[Steps].source == "none":
            return "low"
        if bound is not None and outcome.basis != "replay":
            plain = comes_back(gap, ctx[Steps].count) and not self.much_unattributed(ctx)
            return "medium" if plain else "low"
        doubts = bound is None or bound.stacks or self.much_unattributed(ctx)
        return "medium" if doubts else "high"


def _removal(ctx: Context, gap: HostGap) -> Removal:
    host = ctx[HostGaps]
    return Removal(host_spans=tuple((host.thread, start, end) for start, end in host.own(gap).tolist()))


def _without(ctx: Context, gap: HostGap) -> ReplayOutcome:
    return ctx[Replay].without(_removal(ctx, gap))


def _message(gap: HostGap, host: HostGaps, count: int) -> str:
    where = f" in {gap.inside}" if gap.inside is not None else ""
    what = "leaves the GPU idle" if host.device >= 0 else "keeps the main thread busy"
    once = " Seen in one step only." if gap.steps < 2 and (count > 1 or len(gap.spans) < 2) else ""
    return f"{gap.name}{where} {what} for {two_figures(gap.idle_ns / count / 1e3)} per step.{once}"


def _table(gaps: Sequence[HostGap], host: HostGaps, count: int) -> Table:
    return Table.with_units(
        "Host work without launches, per steady step",
        {
            "function or annotation": "code",
            "called from": "location",
            "gaps": "count",
            "in steps": "count",
            "GPU idle": "us",
            "host time": "us",
        },
        [
            [
                gap.name,
                str(gap.inside) if gap.inside else None,
                len(gap.spans),
                gap.steps,
                gap.idle_ns / count / 1e3,
                total(host.own(gap)) / count / 1e3,
            ]
            for gap in gaps
            if gap.idle_ns
        ],
    )
