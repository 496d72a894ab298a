"""The summary of a rank as bytes: at most 64 kB, made anywhere and read by whoever puts the ranks of a job side by side.

What does not fit is coarsened step by step, and the summary says how (`coarse`). A summary that is read may be a stranger's: it
is bounded, typed and held against what must be true of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.evidence.base import Evidence
from trace_doctor.evidence.distributed.collectives import Collectives
from trace_doctor.evidence.distributed.flight.records import COLUMNS, COMPLETED, FlightRecords
from trace_doctor.evidence.distributed.ranks import IdlePieces
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.packed import UnusableSummary, pack, restored, unpack
from trace_doctor.evidence.rank_summary import RankSummary, Refusal
from trace_doctor.version import VERSION

MAGIC, FORMAT = b"TDRS", 3
MOST_WRITTEN, MOST_READ = 64_000, 1 << 20
"""bytes"""
_FEWER_PIECES = 50
_FEWER_CALLS = (20_000, 5_000, 2_000)
"""as many as PyTorch keeps of a rank, unless its ring is set larger, and more"""
_REFUSED = "refused"
_LARGEST = 1 << 62
_TIMES = ("start", "end", "alone", "lasting", "gaps")


class _Summary(Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    rank: int
    path: str
    world: int | None
    begin: int | None
    end: int | None
    waited_for_cpu: float | None
    dump: tuple[int, int] | None
    coarse: tuple[str, ...]
    evidence: dict[str, Any]


def encode(summary: RankSummary) -> bytes:
    """At most 64 kB, as exact as that allows."""
    for coarser in _ladder(summary):
        data = _encoded(coarser)
        if len(data) <= MOST_WRITTEN:
            return data
    raise AssertionError("a summary without evidence fits")


def _encoded(summary: RankSummary) -> bytes:
    evidence = {
        name: {_REFUSED: kind} if isinstance(kind, Refusal) else kind
        for name, kind in summary.evidence.items()
    }
    written = _Summary(
        tool=VERSION,
        rank=summary.rank,
        path=summary.path,
        world=summary.world,
        begin=summary.begin,
        end=summary.end,
        waited_for_cpu=summary.waited_for_cpu,
        dump=summary.dump,
        coarse=summary.coarse,
        evidence=evidence,
    )
    return pack(written, MAGIC, FORMAT)


def decode(data: bytes, kinds: Iterable[type[Evidence]]) -> RankSummary:
    """What `encode` made, with evidence of these kinds. Raises UnusableSummary for anything else, with one line."""
    raw = restored(unpack(data, MAGIC, FORMAT, MOST_READ), _Summary)
    by_name = {kind.__name__: kind for kind in kinds}
    if missing := by_name.keys() ^ raw.evidence.keys():
        raise UnusableSummary(f"of other evidence than is asked for: {', '.join(sorted(missing))[:200]}")
    numbers = (raw.rank, raw.world or 0, raw.begin or 0, raw.end or 0, *(raw.dump or ()))
    if not all(-_LARGEST < n < _LARGEST for n in numbers) or raw.rank < 0:
        raise UnusableSummary("damaged: a number that no rank and no clock has")
    if raw.waited_for_cpu is not None and not 0 <= raw.waited_for_cpu <= 1:
        raise UnusableSummary("damaged: a share that is none")
    return RankSummary(
        rank=raw.rank,
        path=raw.path,
        world=raw.world,
        begin=raw.begin,
        end=raw.end,
        waited_for_cpu=raw.waited_for_cpu,
        evidence={name: _evidence(part, by_name[name]) for name, part in raw.evidence.items()},
        dump=raw.dump,
        coarse=raw.coarse,
    )


def _evidence(raw: Any, kind: type[Evidence]) -> Evidence | Refusal:
    if isinstance(raw, dict) and raw.keys() == {_REFUSED}:
        return restored(raw[_REFUSED], Refusal)
    evidence = restored(raw, kind)
    try:
        sound = _SOUND.get(kind, lambda _: True)(evidence)
    except (ArithmeticError, ValueError, IndexError):
        sound = False
    if not sound:
        raise UnusableSummary(f"damaged: the parts of {kind.__name__} contradict each other")
    return evidence


# -- coarser summaries -----------------------------------------------------------------------------------------------


def _ladder(summary: RankSummary) -> Iterator[RankSummary]:
    """The summary, and coarser ones, each with what is coarse about it. In the end evidence is left out, the largest first: a
    rule that needs it is skipped."""
    yield summary
    pieces = summary.evidence.get(IdlePieces.__name__)
    if isinstance(pieces, IdlePieces):
        summary = _with(
            summary, fewer_pieces(pieces, _FEWER_PIECES), f"{_FEWER_PIECES} idle pieces of a cause"
        )
        yield summary
    collectives = summary.evidence.get(Collectives.__name__)
    if isinstance(collectives, Collectives):
        for quantum_ns in (64, 1024):
            yield _with(summary, rounded(collectives, quantum_ns), f"collectives to {quantum_ns} ns")
        summary = _with(summary, rounded(collectives, 1024), "collectives to 1024 ns")
    records = summary.evidence.get(FlightRecords.__name__)
    if isinstance(records, FlightRecords):
        whole = summary
        for most in (most for most in _FEWER_CALLS if most < len(records.state)):
            how = f"the newest {most:,} calls of a flight recorder dump"
            summary = _with(whole, records.newest(most), how)
            yield summary
    sizes = {
        name: len(pack(kind, MAGIC, FORMAT))
        for name, kind in summary.evidence.items()
        if not isinstance(kind, Refusal)
    }
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        left_out = Refusal(f"more of {name} than the summary of a rank holds", "record fewer steps")
        evidence = {**summary.evidence, name: left_out}
        summary = replace(summary, evidence=evidence, coarse=(*summary.coarse, f"without {name}"))
        yield summary


def _with(summary: RankSummary, evidence: Evidence, how: str) -> RankSummary:
    all_evidence = {**summary.evidence, type(evidence).__name__: evidence}
    return replace(summary, evidence=all_evidence, coarse=(*summary.coarse, how))


def fewer_pieces(pieces: IdlePieces, most: int) -> IdlePieces:
    """The longest of each cause: they are in that order."""
    place = np.arange(len(pieces.cause)) - np.searchsorted(pieces.cause, pieces.cause)
    kept = place < most
    return IdlePieces(pieces.cause[kept], pieces.start[kept], pieces.end[kept])


def rounded(collectives: Collectives, quantum_ns: int) -> Collectives:
    """All times in multiples of so many ns."""
    times = {name: getattr(collectives, name) // quantum_ns * quantum_ns for name in _TIMES}
    return replace(collectives, **times)


# -- what must be true -----------------------------------------------------------------------------------------------


def _sound_collectives(own: Collectives) -> bool:
    columns = (own.rows, own.sequence, own.elements, own.group_size, own.start, own.end, own.set_up)
    sets = (own.alone, own.lasting, own.gaps)
    return (
        all(column.shape == (len(own.keys),) for column in columns)
        and bool((np.diff(own.start) >= 0).all() and (own.end >= own.start).all())
        and all(s.ndim == 2 and s.shape[1] == 2 and bool((np.diff(s.ravel()) >= 0).all()) for s in sets)
        and _within(own.start, own.end, *sets)
    )


def _sound_pieces(pieces: IdlePieces) -> bool:
    shape = pieces.cause.shape
    return (
        len(shape) == 1
        and pieces.start.shape == pieces.end.shape == shape
        and _within(pieces.start, pieces.end)
    )


def _sound_records(own: FlightRecords) -> bool:
    numbers = (own.sequence, own.source, own.destination, own.elements_in, own.elements_out)
    columns = [getattr(own, name) for name in COLUMNS]
    places = (
        (own.group, own.groups), (own.kind, own.kinds), (own.backend, own.backends), (own.dtype, own.dtypes), (own.stack, own.stacks),
    )  # fmt: skip
    return (
        all(column.shape == own.state.shape and column.ndim == 1 for column in columns)
        and all(at.shape == own.state.shape and bool(((at >= 0) & (at < len(of))).all()) for at, of in places)
        and bool((own.state <= COMPLETED).all())
        and _within(*numbers, own.created, own.timeout)
        and abs(own.written) < _LARGEST
    )


def _within(*columns: np.ndarray[Any, Any]) -> bool:
    return all(bool((np.abs(column) < _LARGEST).all()) for column in columns)


def _sound_ledger(ledger: TimeLedger) -> bool:
    """Parts add up to the whole, which is what every figure of it rests on."""
    return all(
        row.window_ns == row.compute_ns + row.exposed_comm_ns + row.exposed_copy_ns + row.idle_ns.total()
        for row in ledger.rows
    )


_SOUND: Mapping[type[Evidence], Callable[[Any], bool]] = {
    Collectives: _sound_collectives,
    FlightRecords: _sound_records,
    IdlePieces: _sound_pieces,
    TimeLedger: _sound_ledger,
}
