"""The events of a page's timeline: counted right, thinned where no finding points, and never larger than a page has room for."""

from __future__ import annotations

import zlib
from itertools import accumulate

import msgspec
import pytest

from trace_doctor.capture import Capture
from trace_doctor.engine.detail.events import events_of
from trace_doctor.evidence.base import Facts
from trace_doctor.model import Span
from trace_doctor.model.events import Events
from trace_doctor.testing import RunBuilder

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def facts() -> Facts:
    made = RunBuilder(stacks=True)
    for number in range(40):
        with made.step(), made.python("train.py", 12, "train"):
            for layer in range(20):
                with made.op(f"aten::mm_{number}_{layer}"):
                    made.launch(5 + layer, name=f"gemm_{number}_{layer}{HOSTILE}")
    return Facts(Capture(0, made.run()))


def starts(events: Events) -> list[tuple[int, int]]:
    """(start, end) of every shown event, ns from the start of the window."""
    return [
        (start, start + dur)
        for track in events.tracks
        for start, dur in zip(accumulate(track.start), track.dur, strict=True)
    ]


def test_all_is_shown_where_there_is_room(facts: Facts) -> None:
    events = events_of(facts, [], 10_000_000)
    assert events.shown == events.of == sum(t.of for t in events.tracks) == len(starts(events))
    assert [t.device for t in events.tracks] == [0, -1]
    gpu = next(t for t in events.tracks if t.device == 0)
    assert len(gpu.start) == 800
    names = [events.names[n] for n in gpu.name]
    assert names[0] == f"gemm_0_0{HOSTILE}"
    assert events.names[gpu.operator[0]] == "aten::mm_0_0"
    calls = [events.names[n] for t in events.tracks for n in t.name]
    assert calls[gpu.launch[0]] == "cudaLaunchKernel"
    assert [events.names[n] for n in events.stacks[gpu.stack[0]]] == ["train.py(12): train"]
    run = facts.run
    first = int(run.gpu[0])
    assert gpu.start[0] == int(run.ts[first]) - round(events.start_us * 1e3) - run.base_ns


def test_python_of_libraries_has_rows_of_its_own() -> None:
    made = RunBuilder(stacks=True)
    with (
        made.step(),
        made.python("train.py", 12, "train"),
        made.python("site-packages/scipy/ndimage.py", 3, "zoom"),
        made.op("aten::mm"),
    ):
        made.launch(5)
    events = events_of(Facts(Capture(0, made.run())), [], 10_000_000)
    tracks = {t.label: [events.names[n] for n in t.name] for t in events.tracks}
    [own] = [label for label in tracks if label.endswith(", library Python")]
    assert tracks[own] == ["site-packages/scipy/ndimage.py(3): zoom"]
    thread = next(t for t in events.tracks if t.label == own.removesuffix(", library Python"))
    depths = dict(zip(tracks[thread.label], thread.depth, strict=True))
    assert depths["aten::mm"] == depths["train.py(12): train"] + 1


def test_what_a_finding_points_at_is_kept_and_the_rest_thinned(facts: Facts) -> None:
    whole = events_of(facts, [], 10_000_000)
    span = Span(ts_us=whole.start_us + whole.dur_us / 2, dur_us=whole.dur_us / 20)
    room = 12_000
    events = events_of(facts, [span], room)
    assert events.shown < events.of == whole.of
    assert len(zlib.compress(msgspec.json.encode(events), 6)) * 4 // 3 <= room
    begin = whole.dur_us * 500
    inside = [x for x in starts(whole) if x[0] < begin + whole.dur_us * 50 and x[1] > begin]
    assert events.accused_shown == events.accused_of == len(inside) > 20
    assert set(inside) <= set(starts(events))
    elsewhere = sorted((e - s for s, e in set(starts(whole)) - set(inside)), reverse=True)
    kept = sorted((e - s for s, e in set(starts(events)) - set(inside)), reverse=True)
    assert kept == elsewhere[: len(kept)]


def test_a_page_with_no_room_says_that_nothing_is_shown(facts: Facts) -> None:
    events = events_of(facts, [], 100)
    assert (events.shown, events.tracks) == (0, [])
    assert events.of > 800


def test_columns_that_do_not_fit_together_are_refused(facts: Facts) -> None:
    encoded = msgspec.to_builtins(events_of(facts, [], 10_000_000))
    encoded["tracks"][0]["name"][0] = 1 << 40
    with pytest.raises(msgspec.ValidationError, match="do not fit"):
        msgspec.convert(encoded, Events)
