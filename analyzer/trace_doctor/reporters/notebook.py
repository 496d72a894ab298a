"""A result in a notebook: the report in a frame of its own, its rows as DataFrames, its figures by plotly. To import this module is to
have it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from trace_doctor.model import Result, results
from trace_doctor.model.ledgers import PART_NAMES
from trace_doctor.reporters.labels import device_name

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

__all__ = ["Result"]

FRAMES = ("findings", "time_ledger", "memory_ledger", "steps", "kernels", "operators", "collectives")
_MOST_BARS = 20


class Notebook:
    """What `Result` has in a notebook."""

    def html(self, result: Result) -> str:
        """The report in a frame whose scripts see nothing of the notebook."""
        from trace_doctor.reporters import render

        page = render(result, "html", zoom=False)
        return (
            f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" title="trace-doctor report" '
            'width="100%" height="720" frameborder="0"></iframe>'
        )

    def frames(self, result: Result) -> dict[str, pandas.DataFrame]:
        """As `Result.frames`."""
        import pandas

        frames = {}
        for part in FRAMES:
            rows = getattr(result, part)
            frame = pandas.json_normalize([_row(row) for row in rows])
            if rows and part != "findings":
                frame.insert(0, "capture", [result.inputs[row.input].path for row in rows])
            frames[part] = frame
        return frames

    def figures(self, result: Result) -> dict[str, Figure]:
        """As `Result.figures`."""
        frames = self.frames(result)
        made = {"breakdown": _breakdown(frames["time_ledger"]), "kernels": _kernels(frames["kernels"]),
                "savings": _savings(frames["findings"]), "memory": _memory(frames["memory_ledger"])}  # fmt: skip
        return {name: figure for name, figure in made.items() if figure is not None}


def _row(row: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(row)
    fields.pop("input", None)
    return fields


def _devices(rows: pandas.DataFrame) -> list[str]:
    return [
        f"{capture} · {device_name(device)}"
        for capture, device in zip(rows["capture"], rows["device"], strict=True)
    ]


def _breakdown(ledger: pandas.DataFrame) -> Figure | None:
    """ms of a step by part, of each device of each capture; of the whole window where it has no steady step."""
    import plotly.express

    if ledger.empty:
        return None
    steady = ledger[ledger["phase"] == "steady"]
    rows = steady if len(steady) else ledger
    columns = {name: f"idle_ns.{name}" if f"idle_ns.{name}" in rows else f"{name}_ns" for name in PART_NAMES}
    times = rows[list(columns.values())].div(rows["steps"].clip(lower=1), axis=0) / 1e6
    times.columns = list(PART_NAMES.values())
    times.index = _devices(rows)
    times = times.loc[:, (times > 0).any()]
    return plotly.express.bar(
        times, orientation="h", labels={"value": "ms per step", "index": "", "variable": ""}
    )


def _kernels(kernels: pandas.DataFrame) -> Figure | None:
    import plotly.express

    if kernels.empty:
        return None
    total = kernels.groupby(["name", "kind"])[["total_us"]].sum().reset_index()
    total = total.sort_values("total_us").tail(_MOST_BARS)
    total["name"] = total["name"].str.slice(0, 60)
    total["ms"] = total["total_us"] / 1e3
    return plotly.express.bar(total, x="ms", y="name", color="kind", orientation="h", labels={"name": ""})


def _savings(findings: pandas.DataFrame) -> Figure | None:
    import plotly.express

    if "saving.share_of_step" not in findings:
        return None
    rows = findings.dropna(subset=["saving.share_of_step"])
    if rows.empty:
        return None
    shares = {
        "share of the step": rows["saving.share_of_step"],
        "finding": rows["id"] + " " + rows["name"],
        "known as": rows["saving.known"],
    }
    return plotly.express.bar(shares, x="share of the step", y="finding", color="known as", orientation="h")


def _memory(ledger: pandas.DataFrame) -> Figure | None:
    """GiB at the peak by class, of each device of each capture."""
    import plotly.express

    if ledger.empty:
        return None
    classes = ledger.filter(like="by_category.") / 2**30
    classes.columns = [str(name).removeprefix("by_category.").replace("_", " ") for name in classes]
    classes.index = _devices(ledger)
    classes = classes.loc[:, (classes > 0).any()]
    return plotly.express.bar(
        classes, orientation="h", labels={"value": "GiB at the peak", "index": "", "variable": ""}
    )


results.in_notebooks = Notebook()
