"""The timeline to zoom into: where its panel goes, and the links from findings and gaps to their moment in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files

from msgspec import UNSET

from trace_doctor.model import Finding, Gap, Lane, Result
from trace_doctor.model.events import Events
from trace_doctor.reporters.html.dom import Child, Html, el, join
from trace_doctor.reporters.html.parts import showing
from trace_doctor.reporters.labels import Names

WORDS = {
    "compute": "kernel",
    "comm": "communication",
    "copy": "copy or memset",
    "operator": "operator",
    "call": "runtime call",
    "annotation": "annotation",
    "python": "Python function",
    "profiler": "profiler",
}
"""Kinds of events, as the panel names them"""
_LEAST_OWNED = 0.5
"""of a gap, in spans of a finding that is to own it"""


def script() -> str:
    """The panel's script."""
    parts = ("timeline_sums.js", "timeline.js")
    return "".join(files(__package__).joinpath(part).read_text(encoding="utf-8") for part in parts)


def events_of(result: Result) -> dict[int, Events]:
    """The events of each capture that the page holds, by its number among the inputs."""
    return (
        {} if result.detail is UNSET else {d.input: d.events for d in result.detail if d.events is not None}
    )


def panel(result: Result, lanes: Sequence[tuple[int, str]]) -> Html:
    """Where the panel goes. `lanes`: positions in `Result.timeline`, with their names."""
    events, names = events_of(result), Names(result)
    captures = dict.fromkeys([*(result.timeline[n].input for n, _ in lanes), *events])
    epochs, clock = _epochs(result)
    together = len(captures) > 1 and len(events) == len(captures) and _together(result, epochs)
    given = {
        "lanes": lanes,
        "captures": [(n, names.of(n), epochs.get(n)) for n in captures],
        "together": f"all ranks, on {clock}" if together else "",
    }
    shown, of = sum(e.shown for e in events.values()), sum(e.of for e in events.values())
    return join(
        [
            el("div", data_timeline=json.dumps(given, ensure_ascii=False)),
            showing(shown, of, "events in the timeline; elsewhere than in moments of findings, the longest"),
        ]
    )


def begins(result: Result, numbers: Iterable[int]) -> tuple[dict[int, float], str]:
    """When the window of each of these captures begins on the clock that they share, us from the first of them, and which clock
    that is. Empty where the page knows of none."""
    (epochs, clock), captures = _epochs(result), set(numbers)
    if not captures or not captures <= set(epochs) or not _together(result, epochs):
        return {}, ""
    first = min(epochs[n] for n in captures)
    return {n: epochs[n] - first for n in captures}, clock


def _epochs(result: Result) -> tuple[dict[int, float], str]:
    """Where the window of each capture starts, us, and the clock that this is by."""
    events = events_of(result)
    by_collectives = all(e.clock_us is not None for e in events.values())
    epochs = {n: e.epoch_us - ((e.clock_us or 0) if by_collectives else 0) for n, e in events.items()}
    return epochs, "one clock (by collectives)" if by_collectives else "the clock of the host"


def _together(result: Result, epochs: dict[int, float]) -> bool:
    """Whether the captures are of one job, and their windows overlap. `epochs`: where each window starts, us."""
    if len({result.inputs[n].job for n in epochs if n < len(result.inputs)}) != 1 or not Names(result).ranked:
        return False
    windows = [(epochs[n], epochs[n] + e.dur_us) for n, e in events_of(result).items()]
    return max(start for start, _ in windows) < min(end for _, end in windows)


def moment(finding: Finding, result: Result) -> Html | None:
    """The link from a finding to its first moment; None where the page does not hold it."""
    if not finding.spans or finding.input not in events_of(result):
        return None
    return el("p", _to("Show in the timeline", f"finding={finding.id}&span=0"))


def to_gap(text: str, result: Result, lane: Lane, gap: Gap) -> Html | str:
    """The text as a link to a gap; the text alone where the page has no events of it."""
    if lane.input not in events_of(result):
        return text
    return _to(text, f"lane={result.timeline.index(lane)}&gap={lane.gaps.index(gap)}")


def _to(text: Child, moment: str) -> Html:
    return el("a", text, href=f"#panel=timeline&{moment}")


def owner(result: Result, lane: Lane, gap: Gap) -> Finding | None:
    """The first finding whose spans cover most of a gap; None where none does, and where the page does not know the clock."""
    events = events_of(result).get(lane.input)
    if events is None:
        return None
    end = gap.start_us + gap.dur_us
    for finding in result.findings:
        if finding.input != lane.input:
            continue
        covered = sum(
            max(
                0.0,
                min(span.ts_us - events.start_us + span.dur_us, end)
                - max(span.ts_us - events.start_us, gap.start_us),
            )
            for span in finding.spans
            if span.device in (None, lane.device)
        )
        if covered >= _LEAST_OWNED * gap.dur_us:
            return finding
    return None
