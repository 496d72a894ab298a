"""docs/notebook.ipynb: its cells run in their order, and give what its text says. No Jupyter is needed."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import trace_doctor

DOCS = Path(__file__).resolve().parent.parent / "docs"
CELLS = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def shown(cell: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last line, where that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture(scope="module")
def run() -> tuple[dict[str, Any], list[Any]]:
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(DOCS)
        return names, [shown(cell, names) for cell in CODE]


def test_every_cell_shows_something(run: tuple[dict[str, Any], list[Any]]) -> None:
    assert len(CODE) >= 8
    assert not [cell for cell, value in zip(CODE, run[1], strict=True) if value is None]


def test_a_result_shows_itself_as_the_report(run: tuple[dict[str, Any], list[Any]]) -> None:
    page = run[0]["result"]._repr_html_()
    assert page.startswith("<iframe ")
    assert "Steps stall on data loading" in page


def test_tables_hold_what_was_found(run: tuple[dict[str, Any], list[Any]]) -> None:
    names, _ = run
    found = dict(names["all_findings"][["capture", "code"]].drop_duplicates("capture").values.tolist())
    assert found == {
        "dataloader_starvation": "TD101",
        "host_sync": "TD201",
        "launch_bound": "TD202",
        "pageable_copies": "TD102",
        "layout_conversions": "TD306",
    }
    assert names["kernels"]["kind"].tolist() == ["compute", "copy"]
    assert names["breakdown"]["window_ns"].gt(0).all()
    assert [followed.fate for followed in names["verification"].findings] == ["gone"]


def test_plots_have_a_bar_for_each_capture(run: tuple[dict[str, Any], list[Any]]) -> None:
    figures = [value for value in run[1] if type(value).__name__ == "Figure"]
    assert len(figures) == 3
    for figure in figures[:2]:
        assert {name for bar in figure.data for name in bar.y} == set(run[0]["names"])


def test_outputs_are_not_saved() -> None:
    assert not [cell for cell in CELLS if cell.get("outputs") or cell.get("execution_count")]


def test_figures_show_what_the_capture_has(run: tuple[dict[str, Any], list[Any]]) -> None:
    figures = run[0]["result"].figures()
    assert set(figures) == {"breakdown", "kernels", "savings"}
    [row] = run[0]["result"].time_ledger
    parts = {bar.name: float(bar.x[0]) for bar in figures["breakdown"].data}
    assert sum(parts.values()) == pytest.approx(row.window_ns / row.steps / 1e6)
    assert parts["data loading"] == pytest.approx(row.idle_ns.data_loading / row.steps / 1e6)
    other = trace_doctor.analyze(DOCS.parent / "sample_traces" / "activation_bound" / "simulated" / "fault")
    gib = sum(float(bar.x[0]) for bar in other.figures()["memory"].data)
    assert gib == pytest.approx(other.memory_ledger[0].peak_bytes / 2**30)
