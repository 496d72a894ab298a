"""Summaries of ranks as bytes: small, and safe to read whoever wrote them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.engine import judge, summary_kinds
from trace_doctor.engine.examine import Sizes, examine
from trace_doctor.evidence import packed
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed import summary_format
from trace_doctor.evidence.distributed.collectives import Collectives
from trace_doctor.evidence.distributed.summary_format import FORMAT, MAGIC, MOST_WRITTEN, decode, encode
from trace_doctor.evidence.packed import UnusableSummary, pack, restored, unpack
from trace_doctor.evidence.rank_summary import RankSummary, Refusal
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.registry import all_rules
from trace_doctor.testing import captures_of

RULES = [rule() for rule in all_rules()]
KINDS = summary_kinds(RULES)
CASE = next(case for rule in RULES if rule.code == "TD602" for case in rule.INVALID)
SUMMARIES = [
    examine(Facts(capture), RULES, Sizes.among(8, 8)).summary for capture in captures_of(CASE.build())
]
DATA = encode(SUMMARIES[0])


def _body(data: bytes) -> bytes:
    return data[packed._HEAD.size :]


def _sealed(body: bytes, version: int = FORMAT) -> bytes:
    """With the checksum that a stranger can make as well."""
    return packed._HEAD.pack(MAGIC, version, packed._checksum(body)) + body


def _changed(change: Any) -> bytes:
    raw = msgspec.msgpack.decode(zlib.decompress(_body(DATA)))
    change(raw)
    return _sealed(zlib.compress(msgspec.msgpack.encode(raw)))


def _set_ledger(raw: Any) -> None:
    raw["evidence"]["TimeLedger"]["rows"][0]["compute_ns"] += 1


def test_a_summary_comes_back_whole() -> None:
    again = decode(DATA, KINDS)
    assert again[Steps] == SUMMARIES[0][Steps]
    assert all(
        np.array_equal(getattr(again[Collectives], name), getattr(SUMMARIES[0][Collectives], name))
        for name in ("rows", "start", "end", "alone", "lasting", "set_up", "gaps")
    )
    assert encode(again) == DATA and not again.coarse


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no summary"),
        (b"PK\x03\x04" + bytes(60), "no summary"),
        (DATA[:-1] + bytes([DATA[-1] ^ 1]), "checksum"),
        (DATA[:60], "checksum"),
        (_sealed(_body(DATA), version=7), "version 7: this trace-doctor reads version 3"),
        (DATA + bytes(1 << 20), "at most 1,048,576"),
        (_sealed(zlib.compress(bytes(17 << 20), 9)), "more than 16 MiB"),
        (_sealed(_body(DATA)[:-20]), "cut"),
        (_sealed(_body(DATA) + b"more"), "something follows"),
        (_sealed(zlib.compress(b"\xdd\xff\xff\xff\xff")), "damaged"),
        (_sealed(zlib.compress(b"\x91" * 100_000)), "damaged"),
        (_changed(_set_ledger), "TimeLedger contradict"),
        (_changed(lambda raw: raw["evidence"].pop("Steps")), "other evidence than is asked for: Steps"),
        (_changed(lambda raw: raw["evidence"].update(Spy={})), "other evidence than is asked for: Spy"),
        (_changed(lambda raw: raw.update(rank=-1)), "no rank"),
        (_changed(lambda raw: raw.update(begin=1 << 63)), "no rank and no clock"),
        (_changed(lambda raw: raw.update(waited_for_cpu=float("nan"))), "a share"),
        (_changed(lambda raw: raw.update(extra=1)), "extra"),
        (_changed(lambda raw: raw["evidence"]["Collectives"].update(rows=[1, 2])), "column"),
    ],
)  # fmt: skip
def test_what_is_no_sound_summary_is_refused_in_one_line(data: bytes, says: str) -> None:
    with pytest.raises(UnusableSummary, match=says) as refused:
        decode(data, KINDS)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


def test_columns_of_different_lengths_are_refused() -> None:
    own = SUMMARIES[0][Collectives]
    shorter = msgspec.structs.replace(own, end=own.end[:-1])
    evidence = {**SUMMARIES[0].evidence, "Collectives": shorter}
    with pytest.raises(UnusableSummary, match="Collectives contradict"):
        decode(encode(msgspec.structs.replace(SUMMARIES[0], evidence=evidence)), KINDS)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=12), st.booleans()
)
def test_damage_anywhere_is_a_summary_or_one_line(changes: list[tuple[int, int]], plain: bool) -> None:
    body = bytearray(zlib.decompress(_body(DATA)) if plain else _body(DATA))
    for at, value in changes:
        body[at % len(body)] = value
    try:
        read = decode(_sealed(zlib.compress(bytes(body)) if plain else bytes(body)), KINDS)
    except UnusableSummary as refused:
        assert "\n" not in str(refused)
    else:
        assert isinstance(read, RankSummary)


@given(st.binary(max_size=400))
def test_bytes_of_any_kind_are_one_line(body: bytes) -> None:
    for data in (body, _sealed(body), _sealed(zlib.compress(body))):
        with pytest.raises(UnusableSummary):
            decode(data, KINDS)


# -- size ----------------------------------------------------------------------------------------------------------


def _with_collectives(count: int, seed: int = 0) -> RankSummary:
    random = np.random.default_rng(seed)
    start = np.cumsum(random.integers(1, 1_000_003, count, dtype=np.int64))
    end = start + random.integers(1, 900_001, count, dtype=np.int64)
    spans = np.sort(np.concatenate([start, end])).reshape(-1, 2)
    own = msgspec.structs.replace(
        SUMMARIES[0][Collectives], rows=np.arange(count), keys=(("all-reduce", "0"),) * count,
        sequence=np.arange(count), elements=np.full(count, 7), group_size=np.full(count, 8), start=start, end=end,
        alone=spans, lasting=spans, gaps=spans, set_up=np.zeros(count, dtype=bool),
    )  # fmt: skip
    return msgspec.structs.replace(SUMMARIES[0], evidence={**SUMMARIES[0].evidence, "Collectives": own})


@pytest.mark.parametrize(
    ("count", "coarse"), [(100, ()), (6_500, ("collectives to",)), (50_000, ("without Collectives",))]
)
def test_a_summary_is_coarsened_until_it_fits_and_says_how(count: int, coarse: tuple[str, ...]) -> None:
    data = encode(_with_collectives(count))
    assert len(data) <= MOST_WRITTEN
    read = decode(data, KINDS)
    assert [c for c in coarse if not any(c in how for how in read.coarse)] == []
    assert bool(read.coarse) == bool(coarse)
    if count == 50_000:
        assert isinstance(read.evidence["Collectives"], Refusal), "not captured, and never clean"


def test_rounded_times_are_near_those_recorded() -> None:
    own = _with_collectives(1_000)[Collectives]
    coarse = summary_format.rounded(own, 1000)
    assert (own.start - coarse.start).min() >= 0 and (own.start - coarse.start).max() < 1000


# -- values --------------------------------------------------------------------------------------------------------


@dataclass
class Value:
    numbers: np.typing.NDArray[np.int64]
    pairs: tuple[tuple[int, int], ...]
    texts: tuple[str, ...]


@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1)),
    st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 5))),
    st.lists(st.sampled_from(["a", "b", "c"])),
)
def test_columns_come_back_as_they_were(
    numbers: list[int], pairs: list[tuple[int, int]], texts: list[str]
) -> None:
    value = Value(np.array(numbers, dtype=np.int64), tuple(pairs), tuple(texts))
    again = restored(unpack(pack(value, b"TEST", 1), b"TEST", 1, 1 << 20), Value)
    assert (again.numbers.tolist(), again.pairs, again.texts) == (numbers, tuple(pairs), tuple(texts))


def test_rules_end_in_an_outcome_whatever_a_sound_summary_holds() -> None:
    """Typed and consistent, and yet of no capture: collectives that no step of it holds."""
    examinations = [examine(Facts(c), RULES, Sizes.among(8, 8)) for c in captures_of(CASE.build())]
    strange = []
    for n, e in enumerate(examinations):
        evidence = {**e.summary.evidence, "Collectives": _with_collectives(40, n)[Collectives]}
        strange.append(replace(e, summary=msgspec.structs.replace(e.summary, evidence=evidence)))
    verdicts = [v for e in judge(strange, RULES) for v in e.verdicts if v.rule.over_ranks()]
    assert {v.outcome for v in verdicts} <= {"fired", "passed", "skipped"}
