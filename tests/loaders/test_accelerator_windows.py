"""What the decoder in C takes of a text, against what plain JSON says of it."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.loaders import _accelerator
from trace_doctor.loaders.kineto.decode import LATEST_US, Columns

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests" / "fuzz" / "accelerator"
CASES = sorted((FUZZ / "cases").iterdir())

LIBRARY, ABSENT = _accelerator._load()
in_c = pytest.mark.skipif(LIBRARY is None, reason=f"no decoder in C: {ABSENT}")


USUAL = b'{"ph": "X", "ts": 1},\n{"ph": "X", "ts": 2}'


class Read:
    """What the decoder in C made of one text."""

    def __init__(self, text: bytes) -> None:
        self.columns = Columns()
        scanner = _accelerator.Scanner(
            LIBRARY, self.columns._rows, (self.columns.names, self.columns.cats, self.columns.tracks)
        )
        self.window = scanner.scan(text, 0)
        if self.window is not None:
            self.columns.add_window(self.window, text)


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def row_of(event: dict[str, Any]) -> tuple[Any, ...]:
    """One event with a duration, by the words of the format and no other code of ours."""
    args = event.get("args", {})
    number = {
        key: wrapped(int(args.get(key, -1)))
        for key in ("correlation", "External id", "external id", "device", "stream")
    }
    stream = number["stream"]
    return (
        float(event.get("ts", math.nan)),
        float(event.get("dur", -1)),
        number["correlation"],
        max(number["External id"], number["external id"]),
        stream if -1 <= stream < 2**31 else -1,
        event.get("name", ""),
        event.get("cat", ""),
        (event.get("pid", ""), event.get("tid", "")),
        min(max(number["device"], -1), 2**15 - 1),
    )


def assert_as_json_says(text: bytes) -> None:
    read = Read(text)
    if read.window is None:
        return
    events = json.loads(b"[" + text[: read.window.end] + b"]", parse_float=Decimal)
    expected = [row_of(e) for e in events if e.get("ph", "") == "X"]
    rows, names, cats, tracks = (
        read.columns.rows(),
        *map(list, (read.columns.names, read.columns.cats, read.columns.tracks)),
    )
    found = [
        (ts, dur, corr, external, stream, names[name], cats[cat], tracks[track], device)
        for ts, dur, corr, external, stream, name, cat, track, device in zip(
            *(
                rows[k].tolist()
                for k in ("ts", "dur", "correlation", "external", "stream", "name", "cat", "track", "device")
            ),
            strict=True,
        )
    ]
    assert found == expected
    assert all(abs(row[0]) < LATEST_US for row in found)
    instants = [e for e in events if e.get("name") == "[memory]" and e.get("ph", "") not in ("X", "M")]
    keys = ("Addr", "Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id")
    absent = dict(zip(keys, (-1, 0, -1, -1, 0, -1), strict=True))
    assert [row[1:] for row in read.window.memory.tolist()] == [
        tuple(wrapped(int(e.get("args", {}).get(key, absent[key]))) for key in keys) for e in instants
    ]
    for start, end in read.window.labels:
        assert json.loads(text[start:end])["ph"] == "M"


@in_c
@pytest.mark.parametrize("path", CASES, ids=lambda p: p.name)
def test_what_it_takes_of_a_fuzzed_text_every_json_reader_takes(path: Path) -> None:
    text = path.read_bytes()
    assert_as_json_says(text)
    for piece in text.split(b"},"):  # most have one bad place: the others count as well, among usual events
        for end in (b"", b"}", b"}}"):
            assert_as_json_says(b",".join([USUAL, piece.strip() + end, USUAL]))


digits = st.text("0123456789", min_size=1, max_size=21)
numbers = st.one_of(
    st.integers(-(2**64), 2**65).map(str),
    st.floats(-1e16, 1e16, allow_nan=False).map(repr),
    st.tuples(st.sampled_from(["", "-"]), digits, digits).map(lambda t: f"{t[0]}{t[1]}.{t[2]}"),
    st.tuples(digits, st.sampled_from(["e", "E", "e+", "e-", "E-"]), digits).map("".join),
    # as profilers write them: microseconds with three decimals, since the epoch or since boot
    st.tuples(st.integers(10**12, 2 * 10**15), st.integers(0, 999)).map(lambda t: f"{t[0]}.{t[1]:03}"),
)
strings = st.one_of(st.text(max_size=40), st.text('\\"/\n\té漢\U0001f600x', max_size=40))


@in_c
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4))
def test_numbers_are_read_as_json_reads_them(found: list[tuple[str, str, str]]) -> None:
    events = [
        f'{{"ph": "X", "ts": {ts}, "dur": {dur}, "args": {{"correlation": {n}}}}}' for ts, dur, n in found
    ]
    text = ",".join(['{"ph": "X", "ts": 1}', *events, '{"ph": "X", "ts": 2}']).encode()
    try:
        assert_as_json_says(text)
    except json.JSONDecodeError as error:
        raise AssertionError(f"took what is no JSON: {text!r}") from error


@in_c
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(strings, strings, strings, st.booleans()), min_size=1, max_size=5))
def test_texts_are_read_as_json_reads_them(found: list[tuple[str, str, str, bool]]) -> None:
    events = [
        json.dumps(
            {"ph": "X", "name": a, "cat": b, "pid": c, "ts": 1, "args": {c: [a, {b: 1}]}}, ensure_ascii=plain
        )
        for a, b, c, plain in found
    ]
    assert_as_json_says(",".join([*events, events[0], '{"ph": "X"}']).encode("utf-8", "surrogatepass"))


# What it must leave to Python: each would be a wrong value, or is read in its own way there.
UNUSUAL = {
    "the end of the list": b"]",
    "NaN": b',{"ph": "X", "ts": NaN},{"ph": "X"}',
    "no time": b',{"ph": "X", "ts": 4e15},{"ph": "X"}',
    "a number as text": b',{"ph": "X", "ts": "1"},{"ph": "X"}',
    "an argument as text": b',{"ph": "X", "ts": 1, "args": {"stream": "7"}},{"ph": "X"}',
    "a fraction for an integer": b',{"ph": "X", "ts": 1, "args": {"stream": 7.5}},{"ph": "X"}',
    "65 bits": b',{"ph": "X", "ts": 1, "args": {"correlation": 18446744073709551616}},{"ph": "X"}',
    "a leading zero": b',{"ph": "X", "ts": 01},{"ph": "X"}',
    "bytes that are no UTF-8": b',{"ph": "X", "name": "\xff"},{"ph": "X"}',
    "an overlong form": b',{"ph": "X", "name": "\xc0\xaf"},{"ph": "X"}',
    "half a surrogate pair": b',{"ph": "X", "name": "\\ud800"},{"ph": "X"}',
    "a control byte": b',{"ph": "X", "name": "\n"},{"ph": "X"}',
    "a phase with an escape": b',{"ph": "\\u0058"},{"ph": "X"}',
    "a key with an escape": b',{"ph": "X", "t\\u0073": 5},{"ph": "X"}',
    "arguments twice": b',{"ph": "X", "args": {}, "args": {}},{"ph": "X"}',
    "a border inside an event": b',{"ph": "X", "args": {"l": [{"a": 1},{"name": 2}]}},{"ph": "X"}',
    "an event that begins otherwise": b',{"zz": 1, "ph": "X"},{"ph": "X"}',
    "61 lists in one another": b',{"ph": "X", "z": ' + b"[" * 61 + b"]" * 61 + b'},{"ph": "X"}',
    "a missing comma": b' {"ph": "X"},{"ph": "X"}',
    "two commas": b',,{"ph": "X"},{"ph": "X"}',
    "a comma too many": b',{"ph": "X",},{"ph": "X"}',
}  # fmt: skip


@in_c
@pytest.mark.parametrize("text", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_what_is_unusual_is_left_to_python(text: bytes) -> None:
    sound, window = Read(USUAL + b',{"ph": "X", "ts": 3},{"ph": "X"}').window, Read(USUAL + text).window
    assert sound is not None and sound.end > len(USUAL)
    assert window is None or window.end <= len(USUAL)
