"""What is kept of a capture group as bytes: at most 1 MiB, for the process that asked, or for a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from msgspec import Struct, structs

from trace_doctor import errors
from trace_doctor.engine import Examination, summary_kinds
from trace_doctor.engine.display import Display
from trace_doctor.engine.rule_runs import Verdict
from trace_doctor.errors import DamagedCapture, TraceDoctorError
from trace_doctor.evidence.base import Evidence
from trace_doctor.evidence.distributed import summary_format
from trace_doctor.evidence.packed import UnusableSummary, pack, restored, unpack
from trace_doctor.inputs.group_examination import ExaminedCapture, GroupExamination
from trace_doctor.loading.doubtful_ranks import FileIdentity
from trace_doctor.model import OutcomeKind, OwnershipRow
from trace_doctor.rule import Claim, Rule
from trace_doctor.version import VERSION

MAGIC, FORMAT = b"TDCG", 1
MOST = 1 << 20
"""bytes"""


class _Verdict(Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    outcome: OutcomeKind
    claims: tuple[Claim, ...]
    reason: str | None
    capture: str | None
    refers_to: tuple[str, ...]


class _Capture(Struct, frozen=True, forbid_unknown_fields=True):
    summary: bytes
    further: tuple[bytes, ...]
    display: Display
    verdicts: tuple[_Verdict, ...]
    ownership: tuple[OwnershipRow, ...]


class _Group(Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    captures: tuple[_Capture, ...]
    identities: tuple[FileIdentity, ...]
    unread: tuple[tuple[str, str, str], ...]
    """file, class of the error, its text"""
    spans: tuple[tuple[int, int], ...]


def encode(examined: GroupExamination) -> bytes:
    """At most 1 MiB. Where that is too little, rows that are shown go first, then what fixes take out of the run; a group that
    does not fit even so is one that could not be read."""
    group = _Group(
        tool=VERSION,
        captures=tuple(_written(c) for c in examined.captures),
        identities=examined.identities,
        unread=tuple((file, type(error).__name__, str(error)) for file, error in examined.unread),
        spans=examined.spans,
    )
    for captures in _ladder(group.captures):
        data = pack(structs.replace(group, captures=captures), MAGIC, FORMAT)
        if len(data) <= MOST:
            return data
    reason = f"what is found in it takes more than {MOST:,} bytes"
    lost = tuple((i.display, DamagedCapture.__name__, f"{i.display}: {reason}") for i in group.identities)
    return pack(_Group(VERSION, (), (), (*group.unread, *lost), ()), MAGIC, FORMAT)


def decode(data: bytes, rules: Sequence[Rule]) -> GroupExamination:
    """What `encode` made of an examination by these rules. Raises UnusableSummary for anything else, with one line."""
    group = restored(unpack(data, MAGIC, FORMAT, MOST), _Group)
    kinds, by_code = summary_kinds(rules), {r.code: r for r in rules if not r.over_ranks()}
    return GroupExamination(
        captures=tuple(_read(capture, kinds, by_code) for capture in group.captures),
        identities=group.identities,
        unread=tuple((file, _error(kind, text)) for file, kind, text in group.unread),
        spans=group.spans,
    )


def _written(capture: ExaminedCapture) -> _Capture:
    examination = capture.examination
    return _Capture(
        summary=summary_format.encode(examination.summary),
        further=tuple(summary_format.encode(s) for s in examination.further),
        display=examination.display,
        verdicts=tuple(
            _Verdict(v.rule.code, v.outcome, v.claims, v.reason, v.capture, v.refers_to)
            for v in examination.verdicts
        ),
        ownership=capture.ownership,
    )


def _read(capture: _Capture, kinds: Sequence[type[Evidence]], by_code: dict[str, Rule]) -> ExaminedCapture:
    if {v.code for v in capture.verdicts} != by_code.keys() or not capture.display.inputs:
        raise UnusableSummary("of other rules than are asked for")
    verdicts = (
        Verdict(by_code[v.code], v.outcome, _unpatched(v.claims), v.reason, v.capture, v.refers_to)
        if v.claims
        else _verdict(by_code[v.code], v.outcome, v.reason, v.capture, v.refers_to)
        for v in capture.verdicts
    )
    examination = Examination(
        summary=summary_format.decode(capture.summary, kinds),
        further=tuple(summary_format.decode(s, kinds) for s in capture.further),
        display=capture.display,
        verdicts=tuple(verdicts),
    )
    return ExaminedCapture(examination, capture.ownership)


@lru_cache(maxsize=10_000)
def _verdict(
    rule: Rule, outcome: OutcomeKind, reason: str | None, capture: str | None, refers_to: tuple[str, ...]
) -> Verdict:
    """One object for what most ranks of a job say alike: a third of what is kept of them in memory."""
    return Verdict(rule, outcome, (), reason, capture, refers_to)


def _unpatched(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Without diffs: those are made of the user's script later, and of no file that was read."""
    return tuple(replace(c, fixes=[structs.replace(f, diff=None) for f in c.fixes]) for c in claims)


def _error(kind: str, text: str) -> TraceDoctorError:
    known = getattr(errors, kind, DamagedCapture)
    is_error = isinstance(known, type) and issubclass(known, TraceDoctorError)
    return known(text) if is_error else DamagedCapture(text)


def _ladder(captures: tuple[_Capture, ...]) -> Iterator[tuple[_Capture, ...]]:
    yield captures
    plain = tuple(structs.replace(c, display=_without_charts(c.display)) for c in captures)
    yield plain
    yield tuple(_without_removals(c) for c in plain)


def _without_charts(display: Display) -> Display:
    doubt = f"{display.inputs[0].path}: its timelines are left out, its findings are many"
    return structs.replace(
        display, timeline=(), memory_timeline=(), detail=(), doubts=(*display.doubts, doubt)
    )


def _without_removals(capture: _Capture) -> _Capture:
    verdicts = tuple(
        structs.replace(v, claims=tuple(replace(c, removal=None, owned=(), owned_on={}) for c in v.claims))
        for v in capture.verdicts
    )
    doubt = (
        f"{capture.display.inputs[0].path}: its fixes are not replayed together, there is too much in them"
    )
    display = structs.replace(capture.display, doubts=(*capture.display.doubts, doubt))
    return structs.replace(capture, verdicts=verdicts, display=display)
