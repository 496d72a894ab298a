"""The capture again, with causes and findings as tracks beside its own: Chrome's JSON, which Perfetto's UI opens.

The only output that needs the capture's bytes and not the result alone. The file is copied byte for byte, with the tracks
put in before its first event, so that nothing is held in memory and nothing of the original is lost. Idle time is a
device's: no stream of it worked.

Format: "Trace Event Format" of Chromium (phases X, i, C and M; times in microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from zlib_ng import gzip_ng

from trace_doctor.exporters.tracks import CounterTrack, SliceTrack, Tracks
from trace_doctor.model import Finding
from trace_doctor.reporters.labels import saving_words, where
from trace_doctor.reporters.units import visible

PROCESS = 1_900_000_000
"""pid of the tracks: no process has one that high"""
LABEL = "trace-doctor: rank "
"""of the process of the tracks, before its number"""
_FINDINGS, _SLICES, _SPANS = 2, 10, 1000
"""tids: of the findings, of the first track of slices, of the first finding with spans"""
_CATEGORY = "trace_doctor"
_BATCH = 20_000
Event = dict[str, Any]
"""of the format; `ts` and `dur` in ns"""


def targets(path: Path, ranks: Sequence[int]) -> list[Path]:
    """The file of each trace: `path` itself for one, else with the rank (or its number) before the suffix."""
    if len(ranks) == 1:
        return [path]
    numbers = [f"rank{r}" for r in ranks] if len(set(ranks)) == len(ranks) else range(len(ranks))
    return [named(path, number) for number in numbers]


def named(path: Path, number: object) -> Path:
    """The file of one trace of several."""
    stem, dot, suffix = path.name.partition(".")
    return path.with_name(f"{stem}-{number}{dot}{suffix}")


def write(
    file: IO[bytes],
    pieces: Iterable[bytes],
    first_event: int,
    tracks: Tracks,
    findings: Sequence[Finding],
    *,
    packed: bool,
) -> None:
    """One trace with its tracks. `pieces` are its bytes, unpacked, in any lengths; `first_event` is where in them the first
    event begins; `findings` those of this trace; `packed`: gzip."""
    with ExitStack() as stack:
        out = file
        if packed:
            packing = gzip_ng.GzipNGFile("", "wb", 2, file, mtime=0)  # type: ignore[no-untyped-call]
            out = cast(IO[bytes], stack.enter_context(packing))
        at, done = 0, False
        for piece in pieces:
            if not done and at + len(piece) > first_event:
                out.write(piece[: first_event - at])
                for lines in _events(tracks, findings):
                    out.write(lines)
                out.write(piece[first_event - at :])
                done = True
            else:
                out.write(piece)
            at += len(piece)


def _events(tracks: Tracks, findings: Sequence[Finding]) -> Iterator[bytes]:
    """All events of ours, each with a comma behind it."""
    yield _lines(_named(tracks, findings))
    for tid, track in enumerate(tracks.slices, _SLICES):
        yield from _slices(tid, track)
    yield _lines(_findings(findings, tracks.window))
    for counter in tracks.counters:
        yield from _counters(counter)


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


def _named(tracks: Tracks, findings: Sequence[Finding]) -> Iterator[Event]:
    """Names and order of the tracks."""
    yield _meta("process_name", 0, name=f"{LABEL}{tracks.rank}")
    yield _meta("process_sort_index", 0, sort_index=-1)
    names = {_FINDINGS: "findings"}
    names |= {tid: track.name for tid, track in enumerate(tracks.slices, _SLICES)}
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


def _slices(tid: int, track: SliceTrack) -> Iterator[bytes]:
    heads = []
    for kind in track.kinds:
        args = {name: visible(text) for name, text in kind.args.items()}
        event = _slice(tid, 0, 0, kind.name, args)
        heads.append(_head({k: v for k, v in event.items() if k not in ("ts", "dur")}))
    for first in range(0, len(track.start), _BATCH):
        part = slice(first, first + _BATCH)
        rows = zip(
            track.kind[part].tolist(), track.start[part].tolist(), track.end[part].tolist(), strict=True
        )
        yield "".join([_at(heads[kind], ts=start, dur=end - start) for kind, start, end in rows]).encode()


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
    arguments = {
        "rule": f"{finding.code} {finding.name}",
        "message": finding.message,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "saving": saving_words(finding.saving),
        "script": where(finding.location),
        "fix": "; ".join(f.title for f in finding.fixes),
    }
    return {name: visible(text) for name, text in arguments.items() if text}


def _counters(track: CounterTrack) -> Iterator[bytes]:
    head = _head({"ph": "C", "cat": _CATEGORY, "name": track.name, "pid": PROCESS})
    for first in range(0, len(track.ts), _BATCH):
        part = slice(first, first + _BATCH)
        rows = zip(track.ts[part].tolist(), track.value[part].tolist(), strict=True)
        yield "".join([_at(f'{head}, "args": {{"bytes": {value}}}', ts=ts) for ts, value in rows]).encode()
