"""TD608 collective-hang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trace_doctor import Claim, Confidence, Context, Fix, NotCaptured, Rule, Table, Unit, threshold
from trace_doctor.evidence.distributed.flight.groups import Call
from trace_doctor.evidence.distributed.flight.hangs import Hang, Hangs
from trace_doctor.evidence.distributed.flight.records import HOW_TO_DUMP
from trace_doctor.evidence.distributed.flight.traced import TracedCollectives
from trace_doctor.evidence.distributed.ranks import ranks_text
from trace_doctor.evidence.durations import two_figures
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules._shared import advice, table
from trace_doctor_rules.comms import _flight_cases as cases
from trace_doctor_rules.comms._flight_words import calls_table, place_of

_VERIFY = (
    "run again with TORCH_FR_BUFFER_SIZE=2000: the job gets past this collective, and no dump is written"
)
_RISK = "which ranks call what changes: compare the losses"


class CollectiveHang(Rule):
    """A collective never ended: some rank did not call it, or it got stuck.

    What it does
    Compares the flight recorder dumps of all ranks: which collective did not end, which ranks called it, and which did not.

    Why is this bad
    The job stands still. All ranks wait until the timeout (ten minutes with NCCL, thirty with gloo), then it is aborted.

    Evidence
    A dump of the flight recorder per rank: `comm_lib_trace_rank_N` or `nccl_trace_rank_N`, written when a collective times out.
    Process groups are the same if name and members are, collectives if their number in the group is. A collective hangs if it was
    not completed when the dumps were written. gloo does not record that: there it is a call that was not retired, or one of which
    all ranks are needed and some have not called it. A rank did not call it if its last number in the group is smaller and its dump
    was written later. If its ring has overwritten the group, or there is no dump of it, nothing is known of it.
    Traces of the ranks in the same folder show how long the collective took before: by process group name and number (`Seq`).
    Of several hangs those are reported whose missing ranks wait in no other, with those that wait for them. If most ranks are
    missing, the few that called are named instead.
    How long ranks waited follows from the time of the file, which a copy changes (`cp -p` keeps it). A hang is critical if a rank gave
    up, or if the file is from when the timeout ended. Before and long after that it is a warning, since a later file may be a copy of
    a dump of a sound job, as is a file from before the call, and below `min_wait` an info finding: a collective may be in
    flight. `time_discovered_*` is when a thread read
    the state, and is not used.

    How the saving is estimated
    There is none: the job does not go on.

    Fix
    The finding names the line where the others wait, and what the missing rank called last.

    Fix safety
    Advice only.

    When to ignore
    When a rank is slow on purpose, such as rank 0 writing a checkpoint while the others wait at a barrier. Raise the timeout then.

    References
    https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
    https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    code = "TD608"
    name = "collective-hang"
    title = "A collective never ended"
    needs = (Hangs,)
    wants = (TracedCollectives,)
    explained_by = ("TD607",)

    min_wait: float = threshold(
        30.0,
        "wait until the dumps were written from which on a collective is not merely in flight",
        unit="s",
        source="steps take seconds; the shortest default timeout is ten minutes",
    )

    VALID = [
        Valid("all collectives were completed", cases.job),
        Valid("gloo, which records no states", lambda: cases.job(gloo=True)),
        Valid("gloo beside NCCL", cases.two_backends),
        Valid("completed, and not all ranks have a dump", lambda: cases.job()[:3], skipped="no dump of rank 3"),
        Valid("a broadcast that gloo may have ended", lambda: cases.hang(3, kind="broadcast", gloo=True, gave_up=True)),
        Valid("send and receive both wait", lambda: cases.pipeline(answered=True)),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "one rank did not call it",
            lambda: cases.hang(3),
            message="Rank 3 did not call all_reduce #4 of the default group, where ranks 0-2 wait at train.py:41. They waited 700 s; the timeout is 600 s.",
            severity="critical",
            confidence="high",
            file="train.py",
            line=41,
            shown="completed | step() (train.py:41) | all_reduce #3 of the default group",
        ),
        Invalid("the first rank did not", lambda: cases.hang(0), message="Rank 0 did not call"),
        Invalid("a file from long after the timeout", lambda: cases.hang(3, waited_s=7000), confidence="medium", message="waited 7,000 s, or less if the file was copied; the timeout is 600 s."),
        Invalid("not for as long as the timeout", lambda: cases.hang(3, waited_s=100), confidence="medium", message="waited 100 s"),
        Invalid("in flight", lambda: cases.hang(3, waited_s=5), severity="info", confidence="low", message="waited 5 s and may be in flight; the timeout is 600 s."),
        Invalid("a file from before the call", lambda: cases.hang(3, waited_s=-3600), confidence="medium", message="How long was not recorded."),
        Invalid("in flight, and a file time in whole seconds", lambda: cases.hang(3, waited_s=-1), severity="info", confidence="low"),
        Invalid("in flight, with a higher limit", lambda: cases.hang(3, waited_s=500), thresholds={"min_wait": 550.0}, severity="info"),
        Invalid("it gave up", lambda: cases.hang(3, waited_s=1, gave_up=True), confidence="high", message="timed out"),
        Invalid("gloo, while it waits", lambda: cases.hang(3, gloo=True), message="Rank 3 did not call", confidence="high"),
        Invalid("gloo, after it gave up", lambda: cases.hang(3, gloo=True, gave_up=True, members=False), message="Rank 3 did not call"),
        Invalid("only one rank called it", lambda: cases.hang(1, 2, 3, kind="barrier"), message="Only rank 0 called barrier #4 of the default group at train.py:41", fixes=("Call the collective on every rank",)),
        Invalid("a rank without a dump", lambda: cases.no_dump_of(3), message="Whether rank 3 called it is unknown", fixes=("Collect the dump",)),
        Invalid("an older dump", cases.stale, message="Whether rank 3 called it is unknown"),
        Invalid("a ring that is too short", cases.ring, message="Whether rank 3 called it is unknown"),
        Invalid("a group of unknown members", cases.unnamed_members, message="The dumps do not name the other members of the group."),
        Invalid("all ranks called it", cases.hang, message="All 4 ranks called all_reduce #4 of the default group, and it did not end.", fixes=("Check the network",)),
        Invalid("and no device came to it", lambda: cases.hang(state="scheduled"), message="Earlier GPU work blocks it on ranks 0-3."),
        Invalid("ranks that wait for one that waits", cases.chain, message="Rank 3 did not call all_gather #1 of group tp, where rank 2 waits at model.py:7.", shown="Waits because of it"),
        Invalid("groups in another order", cases.circle, message="Rank 0 waits in all_reduce #1 of group a at train.py:41, rank 1 in all_reduce #1 of group b", fixes=("Use one order of groups",)),
        Invalid("with traces of earlier steps", cases.traced, message="Rank 3 did not call", shown="0 | 3 | 100.0 | 100.0 | 1 | 3"),
        Invalid("no send for a receive", cases.pipeline, message="Rank 0 has no open call for recv of group default_pg, where rank 1 waits at train.py:41."),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        hangs, traced = ctx[Hangs], ctx.get(TracedCollectives)
        for hang in hangs.hangs:
            blamed = _blamed(hang)
            if ctx.rank == next((r for r in blamed if r in hangs.ranks), hang.first.rank):
                claim = _claim(hang, blamed, self.min_wait * 1e9)
                yield replace(claim, evidence=[*claim.evidence, *_in_traces(hang, traced)])
        if not hangs.hangs and hangs.unknown:
            raise NotCaptured(hangs.unknown, HOW_TO_DUMP)


def _blamed(hang: Hang) -> tuple[int, ...]:
    """The ranks that a finding is about: the fewer of those that called it and those that did not."""
    if hang.circle:
        return tuple(sorted({*hang.waiting, *(r for other in hang.circle for r in other.waiting)}))
    if hang.why == "missing" and len(hang.missing) <= len(hang.calls):
        return hang.missing
    return hang.unknown or hang.waiting


def _claim(hang: Hang, blamed: tuple[int, ...], min_wait_ns: float) -> Claim:
    title, sentence, fix = _told(hang)
    in_flight = not hang.past_timeout and hang.waited is not None and hang.waited < min_wait_ns
    confidence: Confidence = "high" if hang.past_timeout else "low" if in_flight else "medium"
    return Claim(
        title=title,
        message=f"{sentence} {_waited(hang, in_flight)}",
        confidence=confidence,
        severity="info" if in_flight else "critical",
        location=place_of(hang.first, blamed),
        evidence=_tables(hang),
        fixes=[fix],
        key=f"{hang.why} {hang.first.kind} {hang.first.group}",
    )


def _told(hang: Hang) -> tuple[str, str, Fix]:
    """Title, first sentence, and fix."""
    call, what = hang.first, hang.first.words
    those = ranks_text(hang.waiting)
    wait = "wait" if len(hang.waiting) > 1 else "waits"
    if hang.circle:
        others = ", ".join(f"{ranks_text(h.waiting)} in {h.first.words}{h.first.at}" for h in hang.circle)
        title = f"{_sentence(ranks_text(_blamed(hang)))} wait for each other in different groups"
        return title, f"{_sentence(those)} {wait} in {what}{call.at}, {others}: each for the other.", _ORDER
    if hang.why == "missing" and hang.peer:
        title = f"{_sentence(ranks_text(hang.missing))} did not answer {call.kind}{_comma(call)}"
        says = f"{_sentence(ranks_text(hang.missing))} has no open call for {what}, where {those} {wait}{call.at}."
        return title, says, _every_rank(hang)
    if hang.why == "missing" and len(hang.missing) <= len(hang.calls):
        who = _sentence(ranks_text(hang.missing))
        return (
            f"{who} never reached {what}{_comma(call)}",
            f"{who} did not call {what}, where {those} {wait}{call.at}.",
            _every_rank(hang),
        )
    if hang.why == "missing":
        says = (
            f"Only {ranks_text(_callers(hang))} called {what}{call.at}; {ranks_text(hang.missing)} did not."
        )
        return f"Only {ranks_text(_callers(hang))} called {what}{_comma(call)}", says, _every_rank(hang)
    if hang.why == "unknown":
        says = f"{_sentence(ranks_text(_callers(hang)))} called {what}{call.at}, and it did not end."
        doubt = (
            f"Whether {ranks_text(hang.unknown)} called it is unknown: without a dump, or with one too old or too short."
            if hang.unknown
            else "The dumps do not name the other members of the group."
        )
        return f"{_sentence(what)} never ended{_comma(call)}", f"{says} {doubt}", _COLLECT
    scheduled = [c.rank for c in hang.calls if c.state == "scheduled"]
    blocked = f" Earlier GPU work blocks it on {ranks_text(scheduled)}." if scheduled else ""
    says = f"All {len(hang.calls)} ranks called {what}, and it did not end.{blocked}"
    return f"{_sentence(what)} never ended{_comma(call)}", says, _NETWORK


def _callers(hang: Hang) -> list[int]:
    return sorted(c.rank for c in hang.calls)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("rank") else f"Collective {text}"


def _comma(call: Call) -> str:
    return f",{call.at}" if call.at else ""


def _waited(hang: Hang, in_flight: bool) -> str:
    they = "They" if len(hang.waiting) > 1 else "It"
    if hang.timed_out:
        return f"{they} timed out."
    if hang.waited is None:
        return "How long was not recorded."
    limit = f"; the timeout is {two_figures(hang.first.timeout * 1e3)}" if hang.first.timeout else ""
    doubt = (
        " and may be in flight" if in_flight else ", or less if the file was copied" if hang.copied else ""
    )
    return f"{they} waited {two_figures(hang.waited / 1e3)}{doubt}{limit}."


def _tables(hang: Hang) -> list[Table]:
    tables = [calls_table("Calls of this collective", hang.calls)]
    if hang.last:
        tables.append(calls_table("Last call of ranks that did not call it", [call for _, call in hang.last]))
    tables += [calls_table("Waits because of it", other.calls) for other in hang.behind[:5]]
    return tables + [calls_table("The other side", other.calls) for other in hang.circle[:5]]


def _in_traces(hang: Hang, traced: TracedCollectives | None) -> list[Table]:
    """How long the same collective of the same group took before, as traces of the ranks show it."""
    same = (hang.first.kind, hang.first.group_name)
    calls = [c for c in traced.calls if (c.kind, c.group) == same] if traced is not None else []
    columns: dict[str, Unit] = {
        "rank": "count", "calls": "count", "median": "us", "longest": "us", "first number": "count", "last number": "count",
    }  # fmt: skip
    rows = [[c.rank, c.count, c.median_ns / 1e3, c.longest_ns / 1e3, *c.sequences] for c in calls]
    return [table("The same collective in the traces, earlier", columns, rows)] if rows else []


def _every_rank(hang: Hang) -> Fix:
    last = "\n".join(f"# rank {rank}: last called {call.words}{call.at}" for rank, call in hang.last[:8])
    text = (
        f"{last or '# no call of the missing ranks was recorded'}\n"
        "# 1. its log: an exception or a crash before this call? The other ranks only see the timeout\n"
        "# 2. a branch such as `if rank == 0:`, or fewer batches on one rank, around the call:\n"
        "#    every rank of the group has to make it (uneven data: DistributedSampler(drop_last=True), Join)\n"
        "# 3. slow work of one rank, as a checkpoint: init_process_group(timeout=timedelta(minutes=60))"
    )
    return advice("Call the collective on every rank", text, _RISK, _VERIFY)


_COLLECT = advice(
    "Collect the dump of every rank",
    "# a rank without a dump may have been killed before it wrote one: see its log, `dmesg` and the scheduler's reason first\n"
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/shared/fr/comm_lib_trace_rank_ torchrun ...\n"
    "# a larger number where a ring was too short; then: trace-doctor analyze /shared/fr",
    "the ring takes a few MB of memory per rank",
    "analyze again with all dumps: the finding names the rank, or that all called it",
)
_NETWORK = advice(
    "Check the network and earlier GPU work",
    "# `started` on all ranks: the transfer is stuck. NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET names the interfaces\n"
    "# `scheduled` on some: their stream did not come to it. An earlier kernel or copy hangs there: py-spy dump, nvidia-smi, dmesg (Xid)\n"
    "# two groups at once on one GPU: let one wait for the other, as NCCL does not order them",
    "none: it only shows more",
    _VERIFY,
)
_ORDER = advice(
    "Use one order of groups on all ranks",
    "# all ranks that share two groups have to call their collectives in one order:\n"
    "# in one function that all of them run, not in callbacks or threads whose order may differ",
    _RISK,
    _VERIFY,
)
