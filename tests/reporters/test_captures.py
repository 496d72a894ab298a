"""Pages of several captures: a verdict for each, and no two of one name."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

import trace_doctor
from trace_doctor import model as m
from trace_doctor.reporters import render
from trace_doctor.reporters.labels import Names
from trace_doctor.testing import RunBuilder


def _rows(page: str) -> list[str]:
    table = page[page.index('class="scroll captures"') :].split("</table>", 1)[0]
    return [re.sub("<[^>]*>", " ", row) for row in re.findall("<tr>.*?</tr>", table, re.DOTALL)[1:]]


def test_a_page_of_several_captures_begins_with_a_verdict_for_each(many_ranks: m.Result) -> None:
    shared = m.Table(
        title="The same in other captures",
        columns=[m.Column("file"), m.Column("rank", "count")],
        rows=[[many_ranks.inputs[2].path, 2]],
    )
    first = msgspec.structs.replace(many_ranks.findings[0], evidence=[shared])
    result = msgspec.structs.replace(many_ranks, findings=[first, *many_ranks.findings[1:]])
    page = render(result, "html", zoom=False)
    assert page.index('class="scroll captures"') < page.index('class="tiles"')
    rows = _rows(page)
    assert "rank 0" in rows[0] and "critical" in rows[0] and "2 more findings" in rows[0]
    assert "saves up to 33% of step" in rows[0]
    assert "rank 2" in rows[1] and "critical" in rows[1], "a finding of another capture that names this one"
    assert "rank 1" in rows[2] and "no finding of its own" in rows[2]


def test_many_captures_are_folded_with_the_gravest_first(many_ranks: m.Result) -> None:
    last = max(row.input for row in many_ranks.time_ledger)
    grave = [msgspec.structs.replace(f, input=last) for f in many_ranks.findings]
    page = render(msgspec.structs.replace(many_ranks, findings=grave), "html", zoom=False)
    assert f"rank {last} " in _rows(page)[0]
    assert "<span>Show all 24</span>" in page and "showing 24 of 40" in page
    few = msgspec.structs.replace(many_ranks, **{
        name: [row for row in getattr(many_ranks, name) if row.input < 6]
        for name in ("time_ledger", "timeline", "memory_ledger", "memory_timeline", "findings")
    })  # fmt: skip
    assert "<span>Show all" not in render(few, "html", zoom=False)


def test_of_a_capture_that_no_rule_could_judge_it_is_said(many_ranks: m.Result) -> None:
    outcomes = [msgspec.structs.replace(o, inputs=[0]) for o in many_ranks.outcomes]
    rows = _rows(
        render(msgspec.structs.replace(many_ranks, outcomes=outcomes, findings=[]), "html", zoom=False)
    )
    assert "2 rules ran" not in rows[1] and "no rule could run" in rows[1]
    assert "no finding of its own: 3 rules ran" in rows[0]


def test_a_single_capture_has_no_such_table(rich_result: m.Result, snapshot_result: m.Result) -> None:
    assert 'class="scroll captures"' not in render(snapshot_result, "html", zoom=False)


def _names(*paths: str) -> list[str]:
    row = m.TimeLedgerRow(
        rank=0, device=0, phase="steady", steps=1, window_ns=1, compute_ns=1, exposed_comm_ns=0, exposed_copy_ns=0,
        idle_ns=m.IdleNs(), step_us=1.0,
    )  # fmt: skip
    result = m.Result(
        inputs=[m.Input(path=path, kind="trace") for path in paths],
        time_ledger=[msgspec.structs.replace(row, input=n) for n in range(len(paths))],
    )
    return [Names(result).of(n) for n in range(len(paths))]


def test_long_names_that_begin_and_end_alike_are_told_apart() -> None:
    """The first nine letters and the last sixteen are the same."""
    names = _names(
        "profiler-batch-size-16-workers-0-of-a-run.pt.trace.json.gz",
        "profiler-batch-size-16-workers-4-of-a-run.pt.trace.json.gz",
    )
    assert len(set(names)) == 2
    assert "workers-0" in names[0] and "workers-4" in names[1]
    assert all(len(name) <= 26 for name in names)


def test_one_path_twice_is_told_apart_by_number() -> None:
    assert _names("a/trace.json", "a/trace.json") == ["a #1", "a #2"]


def test_bars_of_ranks_stand_in_no_box_that_scrolls_and_have_their_names_as_text(
    many_ranks: m.Result,
) -> None:
    page = render(many_ranks, "html", zoom=False)
    bars = page[page.index('class="bars"') :].split("</section>", 1)[0]
    before = page[page.index('<section id="time"') : page.index('class="bars"')]
    assert 'class="scroll' not in before
    assert '<bdi class="bar-name">rank 1 · GPU 0</bdi>' in bars
    assert 'aria-labelledby="time-chart-t time-chart-d"' in bars
    assert "rank 1 · GPU 0: compute " in bars, "the description for who cannot see it"


def test_the_events_of_an_input_are_those_that_the_finding_on_its_damage_counts(tmp_path: Path) -> None:
    """Allocations of the profiler are events that were read, too."""
    builder = RunBuilder(memory=True)
    for step in range(3):
        with builder.step(step):
            builder.memory(1 << 20)
            builder.launch(100.0)
            builder.memory(-(1 << 20))
    path = builder.write(tmp_path / "trace.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * 0.9)])
    result = trace_doctor.analyze(path)
    finding = next(f for f in result.findings if f.code == "TD002")
    count = f"{result.inputs[0].events:,}"
    assert f"{count} events were read" in finding.message
    about = render(result, "html", zoom=False).split('<section id="about"', 1)[1]
    assert f">{count}</td>" in about and "allocations included" in about
