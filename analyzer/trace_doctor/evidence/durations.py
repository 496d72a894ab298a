"""Times as the sentences of rules say them. Arguments are microseconds."""

from __future__ import annotations


def milliseconds(us: float) -> str:
    """One unit for measured times that a sentence compares: `1,211 ms`, `178 ms`, `5.93 ms`."""
    ms = us / 1e3
    return f"{ms:,.0f} ms" if ms >= 99.95 else f"{ms:#.3g} ms" if ms else "0 ms"


def two_figures(us: float) -> str:
    """A time on its own, in the unit that suits it: `1.2 s`, `59 ms`, `240 µs`."""
    size, unit = next((u for u in ((1e6, "s"), (1e3, "ms")) if us >= u[0]), (1.0, "µs"))
    value = us / size
    return f"{value:.2g} {unit}" if value < 100 else f"{round(value, -1):,.0f} {unit}"


def three_figures(us: float) -> str:
    """A measured time on its own, with three figures: `1.21 s`, `178 ms`, `5.93 ms`, `240 µs`."""
    size, unit = next((u for u in ((1e6, "s"), (1e3, "ms")) if us >= 0.9995 * u[0]), (1.0, "µs"))
    value = us / size
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
