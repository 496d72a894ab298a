"""A file is read window by window. What is made of it does not depend on where they end, however damaged it is, nor on
which decoder reads it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from piecewise import DECODERS, reading

from trace_doctor.loaders.kineto.events import EventList
from trace_doctor.run import Damage

NESTED = {"l": [{"a": 1}, {"name": 2}, {"ph": "x"}], "s": '},{"ph": "X"'}
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"correlation": 7, "External id": 3},
    NESTED,
    {"big": "x" * 1500, "q": '],"a":1}'},
]
KEYS = [("ph", "name"), ("name", "ph"), ("cat", "ph"), ("zz", "ph")]
"""the first key of an event, and another"""

events = st.tuples(
    st.sampled_from("XXXXXiM"), st.sampled_from(ARGUMENTS), st.sampled_from(KEYS), st.integers(0, 99)
)
documents = st.tuples(
    st.lists(events, min_size=1, max_size=60), st.sampled_from([None, 1]), st.sampled_from([None, (",", ":")])
)
damage = st.tuples(
    st.sampled_from(["cut", "remove", "insert", "turn", "commas"]),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(
        [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"}]", b'],"x":1', b'],[{"ph":', b"\xff", b"\0" * 50, b" " * 3000, b"NaN"]
    ),
    st.sampled_from([1, 5, 100, 2000]),
)  # fmt: skip
pieces = st.lists(st.integers(1, 5000), max_size=50)


def text_of(document: tuple[Any, ...]) -> bytes:
    found, indent, separators = document
    made = []
    for phase, args, (first, second), number in found:
        fields = {
            "ph": phase,
            "name": f"op{number}",
            "cat": "cpu_op",
            "pid": 1,
            "tid": 2,
            "ts": number,
            "dur": 1,
            "zz": 1,
        }
        order = [first, second, *(fields.keys() - {first, second})]
        made.append({key: fields[key] for key in sorted(order, key=order.index)} | {"args": args})
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0}, {"id": 1}],
        "traceEvents": made,
        "traceName": "t",
    }
    return json.dumps(whole, indent=indent, separators=separators).encode()


def damaged(text: bytes, changes: list[tuple[str, float, bytes, int]]) -> bytes:
    for kind, where, put, count in changes:
        at = int(where * len(text))
        match kind:
            case "cut":
                text = text[:at]
            case "remove":
                text = text[:at] + text[at + count :]
            case "insert":
                text = text[:at] + put + text[at:]
            case "commas":
                text = re.sub(rb"\}\s*,\s*\{", b"}" + put[:1] + b"{", text)
            case _:
                text = text[:at] + bytes(b ^ 4 for b in text[at : at + 1]) + text[at + 1 :]
    return text


@settings(max_examples=400, deadline=None)
@given(documents, st.lists(damage, max_size=6), pieces, st.sampled_from([0, 2, 9, EventList.MOST_UNREAD]))
def test_where_windows_end_is_of_no_consequence(
    document: tuple[Any, ...],
    changes: list[tuple[str, float, bytes, int]],
    sizes: list[int],
    most_unread: int,
) -> None:
    text = damaged(text_of(document), changes)
    whole = reading(text, [], "python", most_unread)
    for decoder in DECODERS:
        assert reading(text, sizes, decoder, most_unread) == whole


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_lies_between_two_remains_of_events_tells_them_apart(decoder: str) -> None:
    """The second of two is mostly a piece of the first; behind sound events it is not."""
    sound = [json.dumps({"ph": "X", "name": "op", "ts": 1, "dur": 1, "args": {"n": i}}) for i in range(60)]
    remains = '{"name": "a":"b", "ts":,,}'
    text = f'{{"traceEvents": [{", ".join([*sound, remains, *sound, remains, *sound])}]}}'.encode()
    assert reading(text, [1000] * 20, decoder)["damage"] == Damage(lost=2)
