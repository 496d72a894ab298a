"""TD607 collective-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, NotCaptured, Rule
from trace_doctor.evidence.distributed.flight.mismatches import Mismatch, Mismatches
from trace_doctor.evidence.distributed.flight.records import HOW_TO_DUMP
from trace_doctor.evidence.distributed.ranks import ranks_text
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules._shared import advice
from trace_doctor_rules.comms import _flight_cases as cases
from trace_doctor_rules.comms._flight_words import calls_table, place_of


class CollectiveMismatch(Rule):
    """Ranks of a process group do not call the same collectives.

    What it does
    Compares what the ranks of each process group called under one number: the collective, elements, and dtype.

    Why is this bad
    The ranks wait for each other forever, or exchange the wrong data without an error.

    Evidence
    Flight recorder dumps of two or more ranks. Collectives are compared by their number in the process group, and groups by name and
    members. The first number that differs is reported, as later ones follow from it; the ranks that differ from most are named.
    Elements are compared, not shapes. An all_to_all, the input of a scatter, the output of a gather, and forms for uneven sizes
    (`_v`) may differ. Sends and receives are not compared. The oldest number of a ring that has overwritten calls is not compared
    either. All calls of a dump are, up to 100,000. Of 64 ranks and more, whose larger rings are read in part, a mismatch before that
    is not known, and the rule is skipped. Which rank a broadcast starts from, and the operation of a reduction, are not in a dump.

    How the saving is estimated
    There is none: the results are wrong, or the job does not go on.

    Fix
    The finding names both lines.

    Fix safety
    Advice only.

    When to ignore
    Never: NCCL requires the same calls on all ranks.

    References
    https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
    """

    code = "TD607"
    name = "collective-mismatch"
    title = "Ranks call different collectives"
    needs = (Mismatches,)

    VALID = [
        Valid("all ranks call the same", cases.job),
        Valid("an uneven all_to_all", lambda: cases.differ([3], ("all_to_all", 100), ("all_to_all", 50))),
        Valid("the input of a scatter", lambda: cases.differ([0], ("scatter", (0, 10)), ("scatter", (40, 10)))),
        Valid("the output of a gather", lambda: cases.differ([0], ("gather", (10, 0)), ("gather", (10, 40)))),
        Valid("a form for uneven sizes", lambda: cases.differ([3], ("all_gather_v", (10, 40)), ("all_gather_v", (20, 50)))),
        Valid("two names of one collective", lambda: cases.differ([3], ("all_gather", (10, 40)), ("_all_gather_base", (10, 40)))),
        Valid("the group of one rank has another name than that of others", cases.same_name_other_ranks),
        Valid("rings that begin elsewhere", cases.rings_begin_apart),
        Valid("coalesced calls, dumped between two of them", cases.in_the_midst),
        Valid("coalesced calls of different sizes", cases.coalesced),
        Valid("one rank alone", lambda: cases.job()[:1], skipped="two ranks"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "one rank calls another collective",
            lambda: cases.differ([3], ("all_reduce", 1024), ("broadcast", 1024)),
            message="Rank 3 called broadcast at train.py:52, where ranks 0-2 called all_reduce #4 of the default group at train.py:41.",
            severity="critical",
            file="train.py",
            line=52,
            shown="started | log() (train.py:52) | broadcast #4 of the default group",
        ),
        Invalid("the first rank does", lambda: cases.differ([0], ("all_reduce", 1024), ("barrier", 0)), message="Rank 0 called barrier"),
        Invalid("of another size", lambda: cases.differ([1], ("all_reduce", 1024), ("all_reduce", 1000)), message="Rank 1 called all_reduce #4 of the default group with 1,000 elements at train.py:52, ranks 0, 2 and 3 with 1,024 at train.py:41."),
        Invalid("of another dtype", lambda: cases.differ([1], ("all_reduce", 8), ("all_reduce", 8), dtype="BFloat16"), message="with BFloat16 at train.py:52, ranks 0, 2 and 3 with Float"),
        Invalid("half of the ranks", lambda: cases.differ([1], ("all_reduce", 8), ("all_reduce", 9), size=2), message="Neither is that of most ranks."),
        Invalid("in another order", lambda: cases.sequences(*[["all_gather", "all_reduce"]] * 3, ["all_reduce", "all_gather"]), message="Rank 3 called all_reduce before all_gather", fixes=("Use one order",)),
        Invalid("before as many calls that are alike", lambda: cases.long_ago(2100), message="Rank 1 called broadcast"),
        Invalid("one left out", lambda: cases.sequences(*[["all_gather", "all_reduce"]] * 3, ["all_reduce"]), message="Rank 3 left out all_gather #4 of the default group at all_gather.py:1, and called all_reduce at all_reduce.py:1."),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        found = ctx[Mismatches]
        for mismatch in found.mismatches:
            if ctx.rank == mismatch.odd[0]:
                yield _claim(mismatch)
        if not found.mismatches and found.unknown:
            raise NotCaptured(found.unknown, HOW_TO_DUMP)


def _claim(mismatch: Mismatch) -> Claim:
    odd, usual = mismatch.call(True), mismatch.call(False)
    who = ranks_text(mismatch.odd).capitalize()
    others = ranks_text([c.rank for c in mismatch.calls if c.rank not in mismatch.odd])
    if mismatch.what == "kind":
        says = f"{who} called {odd.kind}{odd.at}, where {others} called {usual.words}{usual.at}."
    elif mismatch.what == "order":
        says = f"{who} called {odd.kind} before {usual.kind}{odd.at}, {others} after it: {usual.words}{usual.at}."
    elif mismatch.what == "left out":
        says = f"{who} left out {usual.words}{usual.at}, and called {odd.kind}{odd.at}."
    else:
        (given, own), (_, usually) = _differing(mismatch)
        says = f"{who} called {odd.words} with {own}{given}{odd.at}, {others} with {usually}{usual.at}."
    doubt = "" if mismatch.majority else " Neither is that of most ranks."
    return Claim(
        title=_title(mismatch, who, others),
        message=f"{says}{doubt}",
        confidence="high",
        severity="critical",
        location=place_of(odd, mismatch.odd),
        evidence=[calls_table("Calls with this number", mismatch.calls)],
        fixes=[
            advice(
                "Use one order of collectives on all ranks",
                f"# {who.lower()}: {odd.words}{odd.at}\n# {others}: {usual.words}{usual.at}\n"
                "# look for a branch by rank, loss, or data around one of these lines, and for a shape that differs by rank\n"
                "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun ...   # checks each collective before it runs, and raises at the line",
                "which ranks call what changes: compare the losses",
                "run again with TORCH_FR_BUFFER_SIZE=2000: no dump is written",
            )
        ],
        key=f"{mismatch.what} {usual.kind} {usual.group}",
    )


def _title(mismatch: Mismatch, who: str, others: str) -> str:
    odd, usual = mismatch.call(True), mismatch.call(False)
    at = f",{odd.at}" if odd.at else ""
    if mismatch.what in ("size", "dtype"):
        return f"{who} called {odd.words} with another {mismatch.what} than {others}{at}"
    if mismatch.what == "left out":
        return f"{who} left out {usual.words}{at}"
    return f"{who} called {odd.kind} where {others} called {usual.words}{at}"


def _differing(mismatch: Mismatch) -> tuple[tuple[str, str], tuple[str, str]]:
    """Of the calls that differ and the others: unit, and figure or dtype; of inputs, else of outputs."""
    odd, usual = mismatch.call(True), mismatch.call(False)
    if mismatch.what == "dtype":
        n = 0 if odd.dtypes[0] != usual.dtypes[0] else 1
        return ("", odd.dtypes[n]), ("", usual.dtypes[n])
    n = 0 if odd.elements[0] != usual.elements[0] else 1
    return (" elements", f"{odd.elements[n]:,}"), ("", f"{usual.elements[n]:,}")
