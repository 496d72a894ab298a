"""How many digits a measured figure has: as many wherever it stands, in a sentence, a table or a picture."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from math import floor, log10

BYTE_UNITS = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))


def fixed(value: float, decimals: int) -> str:
    """With so many decimals and separators of thousands. A tie is rounded up, as a browser does: bytes make many (8.125 MiB)."""
    try:
        return f"{Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,}"
    except InvalidOperation:  # more digits than the context has, or no number
        return f"{value:,.{decimals}f}"


def size(count: float) -> str:
    """Measured bytes with three figures: `12.7 GiB`, `614 MiB`."""
    return sizes_alike(count)[0]


def sizes_alike(*counts: float) -> list[str]:
    """Bytes that are to be compared, in the unit that suits the largest: `0.879 GiB`, `2.34 GiB`."""
    largest = max(map(abs, counts))
    unit, name = next((u for u in BYTE_UNITS if largest >= u[0]), BYTE_UNITS[-1])
    return [f"{fixed(c / unit, 0 if name == 'B' else _decimals(c / unit))} {name}" for c in counts]


def _decimals(value: float) -> int:
    """For three figures, of the rounded value too: 9.996 is 10.0."""
    decimals = max(0, 2 - floor(log10(abs(value)))) if abs(value) > 1e-9 else 0
    carried = decimals > 0 and Decimal(abs(value)).quantize(
        Decimal(1).scaleb(-decimals), ROUND_HALF_UP
    ) >= 10 ** (3 - decimals)
    return decimals - carried
