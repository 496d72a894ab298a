"""Numbers of steps in tables: the trace's own, and where it has none it is said that they are counted."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.model import Finding
from trace_doctor.reporters import render
from trace_doctor.testing import MIB, RunBuilder


def loads(*, marked: bool) -> RunBuilder:
    """Steps from ProfilerStep#40 on, or without such marks."""
    b = RunBuilder()
    for n in range(40, 46):
        with b.step(n) if marked else nullcontext():
            b.loader(20_000)
            with b.op("aten::mm", us=10):
                b.compute(600)
            with b.optimizer_step():
                b.launch(50)
    return b


def keeps(*, marked: bool) -> RunBuilder:
    """The same of steps that each leave 100 MiB allocated."""
    b = RunBuilder(memory=True, stacks=True)
    with b.python("train.py", 12, "train"):
        for n in range(40, 46):
            with b.step(n) if marked else nullcontext(), b.op("aten::mm", us=20):
                b.loader(100)
                b.memory(100 * MIB, addr=n << 30)
                b.launch(10)
    return b


@pytest.mark.parametrize(("build", "code"), [(loads, "TD101"), (keeps, "TD405")])
@pytest.mark.parametrize("marked", [True, False])
def test_a_table_says_whose_numbers_of_steps_it_has(build, code: str, marked: bool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = analyze(build(marked=marked).write(tmp_path / "trace.json"), select=[code])
    finding: Finding = result.findings[0]
    table = next(t for t in finding.evidence if any("tep" in c.title for c in t.columns[:1]))
    assert table.columns[0].title == ("ProfilerStep#" if marked else "step (counted from 0)")
    assert (min(row[0] for row in table.rows) >= 40) == marked  # type: ignore[operator, type-var]


@pytest.mark.parametrize("marked", [True, False])
def test_so_does_the_page_of_gaps_and_moments(marked: bool, tmp_path: Path) -> None:
    page = render(analyze(loads(marked=marked).write(tmp_path / "trace.json"), select=["TD101"]), "html")
    gaps = page[page.index("The longest gaps") :]
    moments = page[page.index("The same moments in the capture") :]
    for part in (gaps, moments):
        table = part[: part.index("</table>")]
        assert ("ProfilerStep#4" in table, "(counted from 0)" in table) == (marked, not marked)
