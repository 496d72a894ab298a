"""Makes a large trace out of a small real one: the recorded window, again and again.

    python bench/amplify.py small.json.gz big.json --size 1GB

Every copy is the text of the original events, byte for byte, with only these numbers raised, so that the copies are
one long capture and not the same one many times: `ts`; `correlation`, `External id` and flow ids (together, since one
refers to the other); `Python id` and its parent; `Ev Idx`; `Sequence number`; `Seq`; the number in `ProfilerStep#`.
What describes the capture as a whole (metadata events, the profiler's own span) is written once, and spans are
stretched. Only the original is held in memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

BLOCK = 2000
"""events written at once"""
DAY_US = 86_400_000_000

# One group of numbers is raised by one amount: what refers to each other must stay together.
_GROUPS = {
    "ts": "time",
    "correlation": "link",
    "External id": "link",
    "external id": "link",
    "wait_on_cuda_event_record_corr_id": "link",
    "Python id": "python",
    "Python parent id": "python",
    "Ev Idx": "event",
    "Record function id": "record",
    "Sequence number": "sequence",
    "Seq": "collective",
}
_NUMBER = re.compile(
    r'"(?:(?P<key>' + "|".join(map(re.escape, _GROUPS)) + r')"\s*:\s*"?'
    r'|(?P<flow>id)"\s*:\s*"?|name"\s*:\s*"(?P<step>ProfilerStep#))(?P<number>\d+)'
)
_START = re.compile(r'("ts"\s*:\s*"?)(\d+)')
_DURATION = re.compile(r'("dur"\s*:\s*"?)(\d+)')
_STEP = re.compile(r'"name"\s*:\s*"ProfilerStep#')
_NONE = (0, 2**32 - 1, 2**64 - 1)
"""numbers that say "there is none" """
_FLOWS = ("s", "t", "f")
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[\s,]*")


@dataclass
class Event:
    """One event of the original: its text, and what decides where it goes."""

    text: str
    between: str
    """what stands between the previous event and this one: a comma and white space"""
    ph: str
    ts: float
    dur: float
    whole_capture: bool
    """says something about the capture, not about a moment of it"""
    ends: bool
    """marks the end of the whole capture"""


@dataclass
class Source:
    """A trace in memory: what stands before its events, the events, and what stands behind them."""

    head: str
    events: list[Event]
    tail: str


@dataclass
class Template:
    """Consecutive events with places for numbers: `text % numbers`. The k-th copy adds k times `steps`."""

    text: str = ""
    numbers: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def copy(self, k: int) -> str:
        return self.text % tuple(n + k * step for n, step in zip(self.numbers, self.steps, strict=True))


def read(path: Path) -> Source:
    """Splits a sound trace into its events. Raises ValueError when it is none."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "surrogateescape")
    found = _LIST.search(text)
    at = found.end() if found else text.index("[") + 1
    head, events, decode = text[:at], [], json.JSONDecoder(strict=False).raw_decode
    while True:
        space = _SPACE.match(text, at)
        start = space.end() if space else at
        if text[start] == "]":
            return Source(head, events, text[at:].lstrip(","))
        raw, end = decode(text, start)
        events.append(_event(raw, text[start:end], text[at:start]))
        at = end


def _event(raw: dict[str, Any], text: str, between: str) -> Event:
    ph, name = raw.get("ph", ""), str(raw.get("name", ""))
    ends = raw.get("cat") == "Trace" or name == "Record Window End"
    whole = ends or ph == "M" or name.startswith("Iteration Start:")
    return Event(text, between, ph, float(raw.get("ts") or 0), float(raw.get("dur") or 0), whole, ends)


class Amplifier:
    """Writes the original `copies` times. `marks`: at most this many ProfilerStep marks, each over several copies."""

    def __init__(self, source: Source, *, marks: int | None = None) -> None:
        self.source = source
        self.marks = marks
        body = [e for e in source.events if not e.whole_capture]
        timed = [e for e in body if e.ts > 0]
        if not timed:
            raise ValueError("the trace has no event with a time")
        self.first, last = min(e.ts for e in timed), max(e.ts + max(e.dur, 0.0) for e in timed)
        if last - self.first > DAY_US:
            raise ValueError("the events of the trace are more than a day apart")
        self.period_us = int(last - self.first) + 2
        self.raised = _ranges(body) | {"time": self.period_us}
        self.between = Counter(e.between for e in source.events if "," in e.between).most_common(1)[0][0]
        marked = [e for e in body if marks and _STEP.search(e.text)]
        kept = [e for e in body if e not in marked] if marked else body
        self.copy_bytes = sum(len(e.between) + len(e.text) for e in kept)
        self.blocks = [self._template(kept[i : i + BLOCK]) for i in range(0, len(kept), BLOCK)]
        self.mark = next((e for e in marked if e.ph == "X"), None)

    def copies(self, size: int) -> int:
        """How many copies make about `size` bytes."""
        fixed = len(self.source.head) + len(self.source.tail)
        return max(round((size - fixed) / self.copy_bytes), 1)

    def write(self, out: IO[bytes], copies: int) -> None:
        """The whole trace, one block of events after another."""
        pieces = self._pieces(copies)
        opening = self.source.head + self.source.events[0].between + _SPACE.sub("", next(pieces), count=1)
        for piece in chain([opening], pieces, [self.source.tail]):
            out.write(piece.encode("utf-8", "surrogateescape"))

    def _pieces(self, copies: int) -> Iterator[str]:
        """Texts that each begin with a comma, as if another event stood before."""
        begun = next(i for i, e in enumerate(self.source.events) if not e.whole_capture)
        for event in self.source.events[:begun]:
            yield self._separator(event) + event.text
        for k in range(copies):
            if self.mark and k % self._group(copies) == 0:
                yield self._long_mark(k, copies)
            for block in self.blocks:
                yield block.copy(k)
        for event in self.source.events[begun:]:
            if event.whole_capture:
                grown = _DURATION if event.ph == "X" else _START
                longer = (copies - 1) * self.period_us if event.ends else 0
                yield self._separator(event) + _add(grown, event.text, longer)

    def _group(self, copies: int) -> int:
        return -(-copies // self.marks) if self.marks else 1

    def _long_mark(self, k: int, copies: int) -> str:
        """The first ProfilerStep of the original, from its place in copy `k` to the next one."""
        assert self.mark is not None
        over = self._group(copies)
        longer = over * self.period_us - 1
        if k + over >= copies:  # the last ends with the capture
            longer = int((copies - k) * self.period_us - (self.mark.ts - self.first)) - 1
        return _add(_DURATION, self._template([self.mark]).copy(k), longer - int(self.mark.dur))

    def _separator(self, event: Event) -> str:
        return event.between if "," in event.between else self.between

    def _template(self, events: list[Event]) -> Template:
        made, parts = Template(), []
        for event in events:
            parts.append(self._separator(event))
            at = 0
            for group, number, start, end in _places(event):
                parts += [event.text[at:start].replace("%", "%%"), "%d"]
                made.numbers.append(number)
                made.steps.append(self.raised[group])
                at = end
            parts.append(event.text[at:].replace("%", "%%"))
        made.text = "".join(parts)
        return made


def _add(number: re.Pattern[str], text: str, more: int) -> str:
    return number.sub(lambda m: f"{m[1]}{int(m[2]) + more}", text, count=1)


def _ranges(events: list[Event]) -> dict[str, int]:
    """How wide each group's numbers lie: raised by that much, no two copies share one."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for event in events:
        for group, number, _, _ in _places(event):
            low[group] = min(low.get(group, number), number)
            high[group] = max(high.get(group, number), number)
    return {group: high[group] - low[group] + 1 for group in low}


def _places(event: Event) -> Iterator[tuple[str, int, int, int]]:
    """The numbers of an event that differ in each copy: (group, number, start, end)."""
    for found in _NUMBER.finditer(event.text):
        number = int(found["number"])
        if found["flow"] and event.ph not in _FLOWS:
            continue
        group = _GROUPS[found["key"]] if found["key"] else "link" if found["flow"] else "step"
        if group == "step" or number not in _NONE:
            yield group, number, *found.span("number")


@contextmanager
def _output(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix == ".gz":
        with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as out:
            yield out
    else:
        with path.open("wb") as out:
            yield out


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(text: str) -> int:
    """`300MB`, `1.5 GB`, `4e8` -> bytes."""
    text = text.strip().upper()
    unit = next((u for u in _UNITS if text.endswith(u)), "")
    return int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))


def amplify(
    source: Path, target: Path, *, copies: int | None = None, bytes_: int = 0, marks: int | None = None
) -> int:
    """Writes `target` (gzip when it ends in .gz) and gives the number of copies: `copies`, or what makes `bytes_`."""
    amplifier = Amplifier(read(source), marks=marks)
    count = copies or amplifier.copies(bytes_)
    with _output(target) as out:
        amplifier.write(out, count)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a large trace out of a small real one.")
    parser.add_argument("source", type=Path, help="a sound trace, .json or .json.gz")
    parser.add_argument("target", type=Path, help="the trace to write, .json or .json.gz")
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--size", type=size, help="about so many bytes before compression: 300MB, 1GB")
    amount.add_argument("--copies", type=int, help="so many copies of the recorded window")
    parser.add_argument(
        "--marks",
        type=int,
        help="keep at most so many ProfilerStep marks, each over several copies (large captures have few long steps)",
    )
    args = parser.parse_args()
    count = amplify(args.source, args.target, copies=args.copies, bytes_=args.size or 0, marks=args.marks)
    print(f"{args.target}: {count} copies, {args.target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
