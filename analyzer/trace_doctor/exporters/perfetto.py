"""The capture again, with causes and findings as tracks beside its own: Chrome's JSON, which Perfetto's UI opens.

The only output that needs the capture and not the result alone. The file is copied byte for byte, with the tracks put
in before its first event, so that nothing is held in memory and nothing of the original is lost. Idle time is a
device's: no stream of it worked.

Format: "Trace Event Format" of Chromium (phases X, i, C and M; times in microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from zlib_ng import gzip_ng

from trace_doctor.arrays import I64
from trace_doctor.errors import UsageError
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.args import ArgsReader
from trace_doctor.model import IDLE_CAUSES, Finding, Result
from trace_doctor.reporters.labels import IDLE, device_name, saving_words, where
from trace_doctor.reporters.units import visible
from trace_doctor.run import Run

PROCESS = 1_900_000_000
"""pid of the tracks: no process has one that high"""
_STEPS, _FINDINGS, _IDLE, _SPANS = 1, 2, 10, 1000
_CATEGORY = "trace_doctor"
_BATCH = 20_000
Event = dict[str, Any]
"""of the format; `ts` and `dur` in ns"""


def targets(path: Path, traces: Sequence[tuple[int, Facts]]) -> list[tuple[Path, int, Facts]]:
    """The file of each trace: `path` itself for one, else with the rank (or its number) before the suffix."""
    if len(traces) == 1:
        return [(path, *traces[0])]
    ranks = [facts.capture.rank for _, facts in traces]
    ranked = len(set(ranks)) == len(ranks)
    stem, dot, suffix = path.name.partition(".")
    return [
        (path.with_name(f"{stem}-rank{rank}{dot}{suffix}" if ranked else f"{stem}-{n}{dot}{suffix}"), number, facts)
        for n, (rank, (number, facts)) in enumerate(zip(ranks, traces, strict=True))
    ]  # fmt: skip


def write(file: IO[bytes], facts: Facts, number: int, result: Result, *, packed: bool) -> None:
    """One trace with its tracks. `number`: its position in `Result.inputs`; `packed`: gzip.

    Raises UsageError where the capture holds no event to put them beside.
    """
    run = facts.run
    offsets = run.offset[run.offset >= 0]
    reader = run.read_args
    if not len(offsets) or not isinstance(reader, ArgsReader):
        raise UsageError(f"perfetto: {run.path} holds no event")
    tracks = _tracks(facts, [f for f in result.findings if f.input == number])
    with ExitStack() as stack:
        out = file
        if packed:
            packing = gzip_ng.GzipNGFile("", "wb", 2, file, mtime=0)  # type: ignore[no-untyped-call]
            out = cast(IO[bytes], stack.enter_context(packing))
        at, first, done = 0, int(offsets.min()), False
        for piece in reader.pieces():
            if not done and at + len(piece) > first:
                out.write(piece[: first - at])
                for lines in tracks:
                    out.write(lines)
                out.write(piece[first - at :])
                done = True
            else:
                out.write(piece)
            at += len(piece)


def _tracks(facts: Facts, findings: Sequence[Finding]) -> Iterator[bytes]:
    """All events of ours, each with a comma behind it."""
    run = facts.run
    steps, idle = facts.get(Steps), facts.get(IdleLedger)
    window = steps.window if steps else (int(run.ts.min()), int(run.end.max()))
    yield _lines(_named(facts, idle, findings))
    if steps is not None and steps.steps:
        yield _lines(
            _slice(_STEPS, s.start, s.end, f"step {s.index}{' (warm-up)' if s.warmup else ''}", {"completes every": f"{s.pace / 1e6:.3f} ms"})
            for s in steps.steps
        )  # fmt: skip
    if idle is not None:
        yield from _idle(run, idle)
    yield _lines(_findings(findings, window))
    yield from _memory(run)


def _lines(events: Iterable[Event]) -> bytes:
    return "".join(map(_line, events)).encode()


def _line(event: Event) -> str:
    times = {k: event[k] for k in ("ts", "dur") if k in event}
    return _at(_head({k: v for k, v in event.items() if k not in times}), **times)


def _head(fields: Event) -> str:
    """An event as JSON, up to its times."""
    return json.dumps(fields)[:-1]


def _at(head: str, **times: int) -> str:
    """The event at these times, ns. They are written as decimals of microseconds: as floats, the clock of an epoch would
    lose the nanoseconds."""
    return head + "".join([f', "{name}": {_us(ns)}' for name, ns in times.items()]) + "},\n"


def _us(ns: int) -> str:
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def _named(facts: Facts, idle: IdleLedger | None, findings: Sequence[Finding]) -> Iterator[Event]:
    """Names and order of the tracks."""
    rank = facts.capture.rank
    yield _meta("process_name", 0, name=f"trace-doctor: rank {rank}")
    yield _meta("process_sort_index", 0, sort_index=-1)
    names = {_STEPS: "steps", _FINDINGS: "findings"}
    for device in idle.devices if idle is not None else ():
        what = "waiting, by cause" if device < 0 else "idle, by cause"
        names[_IDLE + 1 + device] = f"{device_name(device)}: {what}"
    names |= {tid: f"{finding.id} {finding.name}" for tid, finding in _lanes(findings)}
    for order, (tid, name) in enumerate(names.items()):
        yield _meta("thread_name", tid, name=name)
        yield _meta("thread_sort_index", tid, sort_index=order)


def _meta(kind: str, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": PROCESS, "tid": tid, "args": args}


def _slice(tid: int, start: int, end: int, name: str, args: dict[str, Any]) -> Event:
    return {
        "ph": "X", "cat": _CATEGORY, "name": name, "pid": PROCESS, "tid": tid, "ts": start, "dur": end - start,
        "args": args,
    }  # fmt: skip


def _idle(run: Run, idle: IdleLedger) -> Iterator[bytes]:
    """Every piece of idle time with its cause and the host event that owns it."""
    labels = [IDLE[cause].label for cause in IDLE_CAUSES]
    owners = np.where(idle.row >= 0, run.name[np.maximum(idle.row, 0)], -1)
    waits = np.where(idle.sync_row >= 0, run.name[np.maximum(idle.sync_row, 0)], -1)

    @cache  # a few kinds of piece, each of them thousands of times
    def head(device: int, cause: int, owner: int, wait: int) -> str:
        kind = _slice(_IDLE + 1 + device, 0, 0, labels[cause], _owned(run, owner, wait))
        return _head({k: v for k, v in kind.items() if k not in ("ts", "dur")})

    for first in range(0, len(idle.start), _BATCH):
        part = slice(first, first + _BATCH)
        columns = (idle.start, idle.end, idle.device, idle.cause, owners, waits)
        lines = [
            _at(head(*kind), ts=start, dur=end - start)
            for start, end, *kind in zip(*(c[part].tolist() for c in columns), strict=True)
        ]
        yield "".join(lines).encode()


def _owned(run: Run, owner: int, wait: int) -> dict[str, str]:
    named = {"host was in": owner, "charged to": wait}
    return {said: visible(run.names[name]) for said, name in named.items() if name >= 0}


def _lanes(findings: Sequence[Finding]) -> Iterator[tuple[int, Finding]]:
    """A track for each finding that has spans."""
    return ((_SPANS + n, finding) for n, finding in enumerate(findings) if finding.spans)


def _findings(findings: Sequence[Finding], window: tuple[int, int]) -> Iterator[Event]:
    """An instant for each finding where it is first seen, and its spans on a track of its own."""
    for finding in findings:
        places = [finding.location.ts_us, *(s.ts_us for s in finding.spans)]
        at = min((round(p * 1e3) for p in places if p is not None), default=window[0])
        yield {
            "ph": "i", "s": "p", "cat": _CATEGORY, "name": f"{finding.id} {finding.title or finding.name}", "pid": PROCESS,
            "tid": _FINDINGS, "ts": min(max(at, window[0]), window[1]), "args": _args(finding),
        }  # fmt: skip
    for tid, finding in _lanes(findings):
        end = 0
        for span in sorted(finding.spans, key=lambda s: s.ts_us):
            start = max(round(span.ts_us * 1e3), end)  # slices of a track may not overlap
            end = max(round((span.ts_us + span.dur_us) * 1e3), start)
            yield _slice(tid, start, end, visible(span.label) or finding.name, _args(finding))


def _args(finding: Finding) -> dict[str, str]:
    said = {
        "rule": f"{finding.code} {finding.name}",
        "message": finding.message,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "saving": saving_words(finding.saving),
        "script": where(finding.location),
        "fix": "; ".join(f.title for f in finding.fixes),
    }
    return {name: visible(text) for name, text in said.items() if text}


def _memory(run: Run) -> Iterator[bytes]:
    """The allocator's totals as counters, a device each."""
    memory = run.memory
    for device in np.unique(memory.device).tolist():
        for what, column in (("allocated", memory.total_allocated), ("reserved", memory.total_reserved)):
            rows = np.flatnonzero((memory.device == device) & (column >= 0))
            for first in range(0, len(rows), _BATCH):
                yield _counters(
                    f"{what}, {device_name(device)}", memory.ts, column, rows[first : first + _BATCH]
                )


def _counters(name: str, ts: I64, column: I64, rows: I64) -> bytes:
    head = _head({"ph": "C", "cat": _CATEGORY, "name": name, "pid": PROCESS})
    times = zip(ts[rows].tolist(), column[rows].tolist(), strict=True)
    return "".join([_at(f'{head}, "args": {{"bytes": {value}}}', ts=at) for at, value in times]).encode()
