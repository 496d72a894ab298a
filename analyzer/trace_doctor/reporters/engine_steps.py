"""The steps of an inference engine by kind: rows for tables, and one sentence."""

from __future__ import annotations

from trace_doctor.model import Column, EngineRow, Result
from trace_doctor.reporters.units import duration, plural, share

COLUMNS: tuple[str | Column, ...] = (
    "Steps", Column("Count", "count"), Column("Requests", "count"), Column("Tokens", "count"), Column("Median", "us"),
    Column("Of the window", "share"), Column("GPU busy", "share"), Column("With CUDA graph", "count"),
)  # fmt: skip
_NAMES = {
    "mixed": "prefill with decode",
    "running": "running requests",
    "waiting": "waiting for requests",
    "dummy": "dummy steps and graph captures",
}
NO_STEPS = ("waiting", "dummy")
_MOST_IN_SENTENCE, _MOST_ROWS = 3, 8


def engine_rows(result: Result) -> list[EngineRow]:
    """Of the first capture that has any: ranks of an engine make the same steps."""
    rows = result.engine_steps or []
    return [row for row in rows if row.input == rows[0].input][:_MOST_ROWS]


def kinds_words(result: Result) -> str:
    """` of 2 kinds` where the steps of an engine are of several, and what is said per step is a mean over them; "" otherwise."""
    kinds = sum(row.kind not in NO_STEPS for row in engine_rows(result))
    return f" of {kinds} kinds" if kinds > 1 else ""


def name_of(row: EngineRow) -> str:
    """The kind as people read it."""
    return _NAMES.get(row.kind, row.kind)


def cells(row: EngineRow) -> list[str | float | None]:
    """The values of a row, in the order of COLUMNS; None where a figure was not recorded or does not apply."""
    graphs = None if row.kind in NO_STEPS else row.with_graph
    return [
        name_of(row),
        row.count,
        row.requests,
        row.tokens,
        row.median_us,
        row.share,
        row.busy_share,
        graphs,
    ]


def sentence(result: Result) -> str:
    """Which steps take the window; empty for other programs."""
    parts = []
    for row in [r for r in engine_rows(result) if r.share >= 0.01][:_MOST_IN_SENTENCE]:
        if row.kind in NO_STEPS:
            parts.append(f"{name_of(row)} {share(row.share, 0)}")
        else:
            parts.append(
                f"{plural(row.count, f'{name_of(row)} step')} (median {duration(row.median_us)}) {share(row.share, 0)}"
            )
    return f"Of the window: {', '.join(parts)}" if parts else ""
