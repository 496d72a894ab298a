"""Numbers as people read them. Times in: microseconds; memory in: bytes; shares in: 0..1.

`duration` and `size` show what was measured; `estimate_*` show what is estimated, with two significant figures.
`Scale` picks one unit for a whole column.
"""

from __future__ import annotations

import statistics
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

from trace_doctor.digits import BYTE_UNITS, fixed
from trace_doctor.digits import size as size
from trace_doctor.errors import no_commands
from trace_doctor.model import Cell, Unit

_TIME = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((u for u in units if abs(value) >= u[0]), units[-1])


def _figures(value: float, figures: int) -> float:
    """`value` rounded to so many significant figures; 0 for what Python can't round."""
    if abs(value) < 1e-300:
        return 0.0
    return round(value, figures - 1 - floor(log10(abs(value))))


def _decimals(value: float, figures: int) -> int:
    return 0 if abs(value) < 1e-300 else max(0, figures - 1 - floor(log10(abs(value))))


def _estimate(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, name = _unit(_figures(value, 2), units)
    scaled = _figures(value / size, 2)
    return f"{scaled:,.{_decimals(scaled, 2)}f} {name}"


def duration(us: float) -> str:
    """A measured time, three significant figures: `178 ms`, `59.3 ms`, `5.93 µs`."""
    size, name = _unit(_figures(us, 3), _TIME)
    decimals = _decimals(_figures(us / size, 3), 3)
    return f"{fixed(us / size, decimals)} {name}" if round(us, 3) else "0 ms"


def estimate_duration(us: float) -> str:
    """An estimated time, two significant figures: `59 ms`."""
    return _estimate(us, _TIME) if us else "0 ms"


def step_change(before_us: float, saved_us: float) -> str:
    """`178 → 119 ms`: the step before and after, in one unit and as exactly as the first is written."""
    scale, name = _unit(_figures(before_us, 3), _TIME)
    decimals = _decimals(_figures(before_us / scale, 3), 3)
    after_us = max(before_us - saved_us, 0.0)
    return f"{fixed(before_us / scale, decimals)} → {fixed(after_us / scale, decimals)} {name}"


def estimate_size(count: float) -> str:
    """A size in bytes with as many figures as an estimate has."""
    return _estimate(count, BYTE_UNITS) if count else "0 B"


def share(value: float, decimals: int = 1) -> str:
    """A measured share: `56.6%`; what is there but rounds to nothing is `<0.1%`."""
    least = 10.0**-decimals
    if 0 < value * 100 < least / 2:
        return f"<{least:.{decimals}f}%"
    return f"{fixed(value * 100, decimals)}%" if value else "0%"


def estimate_share(value: float) -> str:
    """An estimated share, two significant figures: `33%`, `3.4%`, `0.5%`."""
    if 0 < value < 0.0005:
        return "<0.1%"
    percent = value * 100
    return f"{percent:.{0 if percent >= 9.95 or percent == 0 else 1}f}%"


def number(value: float) -> str:
    """A plain number with thousands separators."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{max(1, min(6, _decimals(value, 3)))}f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True)
class Scale:
    """How one column of numbers is written: one unit and one number of decimals for all of its cells."""

    kind: Unit
    factor: float = 1.0
    unit: str = ""
    decimals: int = 0

    @classmethod
    def of(cls, kind: Unit, values: Iterable[Cell]) -> Scale:
        """The unit that suits the middle of the column, so that neither end of it is lost."""
        numbers = [abs(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v]
        if not numbers or kind not in ("us", "bytes", "share", "count"):
            return cls(kind, unit={"us": "ms", "bytes": "MiB", "share": "%"}.get(kind, ""))
        middle = statistics.median_low(sorted(numbers))
        if kind == "share":
            return cls(kind, 0.01, "%", 1)
        if kind == "count":
            return cls(kind, 1.0, "", 0 if all(float(n).is_integer() for n in numbers) else 1)
        factor, unit = _unit(middle, _TIME if kind == "us" else BYTE_UNITS)
        largest = max(numbers) / factor
        # of what fills a device the hundredth of a GiB decides whether a request fits
        two = 100 if kind == "bytes" else 10
        most = 0 if unit == "B" or largest >= 1000 else 1 if largest >= two else 2
        decimals = min(most, _decimals(middle / factor, 4))
        return cls(kind, factor, unit, decimals)

    @property
    def numeric(self) -> bool:
        """Whether its cells are right-aligned figures."""
        return self.kind in ("us", "bytes", "share", "count")

    def cell(self, value: Cell) -> str:
        """The cell without its unit (which the heading names). Empty where nothing is known."""
        if value is None:
            return ""
        if not self.numeric or isinstance(value, str):
            return str(value)
        scaled = value / self.factor
        if value and abs(scaled) < 0.5 * 10**-self.decimals:
            return f"<{10**-self.decimals:.{self.decimals}f}"
        return fixed(scaled, self.decimals)

    def with_unit(self, value: Cell) -> str:
        """One value with its unit, for places without a heading."""
        text = self.cell(value)
        if not text or not self.unit or isinstance(value, str):
            return text
        return f"{text}%" if self.unit == "%" else f"{text} {self.unit}"


def exact(value: Cell, kind: Unit) -> str:
    """The unrounded value with its base unit, for a tooltip: `59300.2 µs`."""
    if not isinstance(value, int | float):
        return ""
    base = {"us": " µs", "bytes": " bytes"}.get(kind, "")
    return f"{round(value, 6)!r}{base}"


_INVISIBLE = {*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5}
_INVISIBLE |= {*range(0x180B, 0x1810), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070)}
_INVISIBLE |= {0x3164, *range(0xD800, 0xE000), *range(0xFE00, 0xFE0E), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFFC)}
_INVISIBLE |= {*range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)}
"""Characters that do not show, or reorder what does: controls, and those that Unicode has renderers ignore, tags and fillers
that can hold whole sentences among them. Not the two that choose how an emoji is drawn."""
_ESCAPES = {code: ascii(chr(code))[1:-1] if code > 0xFF else f"\\x{code:02x}" for code in _INVISIBLE}
_ESCAPES_IN_BLOCK = {code: text for code, text in _ESCAPES.items() if code not in (0x09, 0x0A)}


def visible(text: str, *, block: bool = False) -> str:
    """Foreign text made harmless for the eye and for logs: control characters, terminal escapes and marks that reorder
    text are written out (`\\x1b`, `\\u202e`), commands to a CI server are parted. A line break is kept only in a `block`;
    elsewhere it becomes a space."""
    if block:
        return no_commands(text.replace("\r\n", "\n").translate(_ESCAPES_IN_BLOCK))
    return no_commands(text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ").translate(_ESCAPES))


def columns(text: str) -> int:
    """Terminal columns that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
