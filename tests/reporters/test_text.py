from __future__ import annotations

import re
import shlex

import msgspec
import pytest
from msgspec.structs import replace

from trace_doctor.errors import UsageError
from trace_doctor.model import (
    NOT_PATCHED,
    Column,
    Finding,
    Fix,
    IdleNs,
    Location,
    MemoryHeldRow,
    Outcome,
    Result,
    Saving,
    SavingUpTo,
    Suppressed,
    Table,
)
from trace_doctor.reporters import render
from trace_doctor.reporters.diagnosis import verdict
from trace_doctor.reporters.units import columns

SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [80, 60, 120])
def test_every_line_fits(result: Result, width: int) -> None:
    for ascii in (False, True):
        text = render(
            result, "text", width=width, ascii=ascii, show_skipped=True, report="trace-doctor-report.html"
        )
        assert [line for line in text.splitlines() if columns(line) > width] == []


def test_colour_changes_no_layout(result: Result) -> None:
    plain = render(result, "text")
    colored = render(result, "text", color=True)
    assert "\x1b" not in plain
    assert SGR.sub("", colored) == plain


def test_ascii_is_ascii(result: Result) -> None:
    assert render(result, "text", ascii=True).isascii()


def test_hostile_text_reaches_no_terminal(hostile_result: Result) -> None:
    text = render(hostile_result, "text", show_skipped=True)
    assert not set(text) & set("\x1b\u202e\u2028\r\t")
    assert "\\x1b[31mred" in text


def test_a_finding_says_what_where_how_much_and_what_to_do(rich_result: Result) -> None:
    lines = render(rich_result, "text", width=100).splitlines()
    head = lines.index(
        "✖ TD101 dataloader-starvation  saves up to 33% of step (178 → 119 ms, simulated)  train.py:41"
    )
    assert lines[head + 1].strip().startswith("critical · high confidence")
    assert any(line == "  fix: Load in worker processes [unsafe]" for line in lines)
    assert any(", needs --source]" in line for line in lines)


def test_an_estimate_says_its_interval(rich_result: Result) -> None:
    first = rich_result.findings[0]
    assert first.saving is not None
    about = replace(first, saving=first.saving.about(0.6, 9.0))
    text = render(replace(rich_result, findings=[about]), "text")
    assert "about 33% of step (20–100%, 178 → 119 ms, simulated)" in text  # no more than the step
    summary = replace(
        rich_result.summary,
        saving_up_to=SavingUpTo(share_of_step=0.33, time_us_per_step=59e3, known="about", low=0.5, high=2.0),
    )
    assert "combined: about 33% of step" in render(replace(rich_result, summary=summary), "text")


def test_of_a_fix_that_a_look_at_the_script_left_open_the_reason_is_said(rich_result: Result) -> None:
    fix = rich_result.findings[0].fixes[0]
    looked = replace(fix, diff=None, text=f"{fix.text}\n{NOT_PATCHED} train.py:45 sets its workers already")
    found = replace(rich_result.findings[0], fixes=[looked])
    text = render(
        replace(rich_result, findings=[found], source_root=""), "text", given=("logs",), source=".", width=100
    )
    assert "no patch: train.py:45 sets its workers already" in text
    assert text.endswith("No patch: the next command says why\nNext: trace-doctor fix logs --source .\n")


def test_a_command_longer_than_a_line_goes_on_as_a_shell_reads_it(rich_result: Result) -> None:
    given = ("a" * 50, "b c", "d" * 100)
    lines = render(rich_result, "text", given=given, source="e" * 30).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Next:"))
    assert lines[at:] == [
        f"Next: trace-doctor fix {given[0]} \\",
        "      'b c' \\",
        f"      {given[2]} \\",
        f"      --source {'e' * 30}",
    ]
    assert shlex.split("\n".join(lines[at:]).replace("\\\n", ""))[3:] == [*given, "--source", "e" * 30]


def test_the_next_command_has_no_placeholder(rich_result: Result) -> None:
    """What it needs is known, or another command is named, that works as it stands."""
    missing = "1 finding has an edit if the code is found: name the script's folder with --source"
    without = replace(rich_result, findings=rich_result.findings[1:])
    for result, said in ((without, missing), (rich_result, "1 patch ready")):
        ends = " ".join(render(result, "text", given=("logs",)).split())
        assert said in ends and ends.endswith(f"Next: trace-doctor rule {result.findings[0].code}")
    known = render(rich_result, "text", given=("logs",), source="src", report="page.html")
    assert known.endswith("\n1 patch ready\nNext: trace-doctor fix page.html --source src\n")
    unseen = render(rich_result, "text", given=("lo\ngs",), source="src")
    assert unseen.endswith(f"Next: trace-doctor rule {rich_result.findings[0].code}\n")


def test_what_fix_leaves_out_is_no_patch_that_is_ready(rich_result: Result) -> None:
    first = rich_result.findings[0]
    other = replace(first.fixes[0], left_out="an alternative to TD101-1.1")
    made = replace(rich_result, findings=[replace(first, fixes=[first.fixes[0], other])])
    assert "\n1 patch ready\n" in render(made, "text")


def test_a_snapshot_without_a_history_shows_what_it_holds_and_claims_no_peak() -> None:
    row = MemoryHeldRow(
        rank=0, device=0, held_bytes=11 << 30, reserved_bytes=12 << 30, blocks=3, by_frame=[("a.py:7 in f", 11 << 30)]
    )  # fmt: skip
    skipped = Outcome(code="TD410", name="out-of-memory", outcome="skipped", reason="no history")
    made = Result(memory_held=[row], outcomes=[skipped])
    text = render(made, "text")
    assert "No rule could run: the snapshot has no usable allocation history" in text
    assert "11.0 GiB allocated when the snapshot was written, 12.0 GiB reserved" in text
    assert "11.0 GiB: a.py:7 in f" in text
    page = render(made, "html")
    assert "a.py:7 in f" in page and "peak 11.0 GiB" not in text + page


def test_the_header_and_the_ledger(rich_result: Result) -> None:
    text = render(rich_result, "text")
    assert "178 ms/step · GPU busy 56.6%" in text
    assert "idle 42.2% (data loading 33.4%" in text


def test_a_busy_gpu_that_only_copies_is_said(rich_result: Result) -> None:
    """The busy share counts copies and communication: beside a finding on idle compute, it alone would contradict it."""
    row = rich_result.time_ledger[0]
    assert "only copying" not in render(rich_result, "text"), "1% of the time is not worth the words"
    copies = replace(
        row, compute_ns=746, exposed_copy_ns=253, exposed_comm_ns=0, idle_ns=IdleNs(launch=1), window_ns=1000
    )
    for other, more in ((0, ""), (200, "only communicating 16.7%, ")):
        made = replace(
            rich_result, time_ledger=[replace(copies, exposed_comm_ns=other, window_ns=1000 + other)]
        )
        split = f"compute {74.6 if not other else 62.2}%, {more}only copying {25.3 if not other else 21.1}%"
        assert f"GPU busy 56.6% ({split})" in " ".join(render(made, "text", width=200).split())
        assert f"{split}, idle 43.4%" in render(made, "html")
        assert split in render(made, "agent")


def test_rules_that_no_capture_could_serve_are_counted_apart(rich_result: Result) -> None:
    """A job of one process has no collectives to record: telling its user to record better would be wrong."""
    none = Outcome(code="TD605", name="one-fsdp-unit", outcome="skipped", reason="no FSDP in the trace")
    made = replace(rich_result, outcomes=[*rich_result.outcomes, none])
    split = "4 rules skipped (3 need a better capture, 1 has nothing to check in this one)"
    assert split in " ".join(render(made, "text", width=200).split())
    assert split in render(made, "html")
    assert f"- {split}\n- Nothing to check: TD605: no FSDP in the trace" in render(made, "agent")
    assert "need a better" not in render(rich_result, "text")


def test_many_ranks_are_a_line_each(many_ranks: Result) -> None:
    lines = render(many_ranks, "text").splitlines()
    head = next(n for n, line in enumerate(lines) if line.split()[:3] == ["step", "compute", "exposed"])
    assert lines[head + 1].split()[5:7] == ["178", "ms"] and "data loading" in lines[head + 1]
    assert all(lines[head + 1 + n].startswith(f"  rank {n} · GPU 0 ") for n in range(8))
    assert lines[head + 9].startswith("  … and 32 more devices")


def test_skipped_rules_are_counted_by_reason(rich_result: Result) -> None:
    text = " ".join(render(rich_result, "text").split())
    assert "3 rules skipped: needs Python stacks (with_stack=True) (2); needs a memory snapshot (1)" in text
    assert "TD502 recompile failed: ValueError: no such region" in text
    shown = render(rich_result, "text", show_skipped=True)
    assert "TD203 slow-launch-thread, TD204 tensor-indexing-loop" in shown
    assert "record: profile(..., with_stack=True)" in shown


def test_nothing_found_is_not_nothing_checked(cpu_result: Result) -> None:
    assert "✔ No problems: 2 rules passed" in render(cpu_result, "text")
    assert "No rule could run" in render(Result(), "text")


def test_what_is_suppressed_is_no_clean_bill(cpu_result: Result, rich_result: Result) -> None:
    silenced = Suppressed(finding=rich_result.findings[0], kind="config", where="TD101", reason="known")
    text = render(replace(cpu_result, suppressed=[silenced]), "text")
    assert "No problems but 1 suppressed finding: 2 rules passed" in text


def test_a_bound_of_bytes_is_no_larger_than_what_it_is_a_part_of(rich_result: Result) -> None:
    """807 MiB are cached: a saving of all of it in two figures would be 810."""
    cached = 807 << 20
    first = replace(rich_result.findings[0], saving=Saving(bytes=cached, basis="bound", how="x"))
    upto = replace(rich_result.summary, saving_up_to=SavingUpTo(bytes=cached))
    made = replace(rich_result, findings=[first], summary=upto)
    for fmt in ("text", "html", "markdown"):
        assert "up to 807 MiB" in (said := render(made, fmt)) and "810 MiB" not in said


def test_an_unknown_saving_claims_nothing() -> None:
    finding = Finding(
        id="TD001-1", code="TD001", name="no-steps", title="No steps", severity="info", confidence="high",
        message="No step marks.", fingerprint="x", fixes=[Fix(title="Call prof.step()", kind="advice", safety="display")],
    )  # fmt: skip
    text = render(Result(findings=[finding]), "text")
    assert "up to" not in text
    assert "● TD001 no-steps\n" in text


def test_what_only_a_hand_can_fix_is_not_left_out_of_the_total(rich_result: Result) -> None:
    """The headline says 90 %; a total of the patches alone beside it reads as a contradiction."""
    first, *others = rich_result.findings
    assert "manual fix: up to" not in render(rich_result, "text")
    costly = msgspec.structs.replace(
        first, saving=Saving(time_us_per_step=9e4, share_of_step=0.9, basis="bound", how="x")
    )
    text = render(msgspec.structs.replace(rich_result, findings=[costly, *others]), "text", width=200)
    assert "manual fix: up to 90% of step; patches combined: up to" in text
    assert "manual fix" not in render(Result(findings=[costly]), "text")  # its own line says so
    assert "no finding claims one" not in render(Result(findings=[costly]), "html")


def test_a_patch_is_offered_only_where_there_is_one(rich_result: Result) -> None:
    assert "\n1 patch ready\n" in render(rich_result, "text")
    nothing = Result(
        outcomes=[Outcome(code="TD101", name="x", outcome="skipped", reason="no trace", capture="record")]
    )
    assert "trace-doctor capture" in render(nothing, "text")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="text, html, json"):
        render(Result(), "pdf")


def test_no_width_takes_more_than_a_terminal_has(rich_result: Result) -> None:
    assert render(rich_result, "text", width=10**9) == render(rich_result, "text", width=10**6)


def test_the_headline_of_a_job_names_the_capture_of_its_finding(rich_result: Result) -> None:
    """Where several folders hold a rank 0, jobs are told apart by the files."""
    first = rich_result.inputs[0]
    paths = {"a/rank0.json": 0, "b/rank0.json": 1, "d/snapshot.pickle": 0}
    inputs = [replace(first, path=path, job=job) for path, job in paths.items()]
    grave = next(f for f in rich_result.findings if f.severity != "info")
    made = replace(rich_result, inputs=inputs, findings=[replace(grave, input=2)])
    one, other = verdict(made)
    assert one.startswith("d/snapshot.pickle: ")
    assert other.startswith("b/rank0.json: ")


def test_an_undecided_rule_says_which_time_no_finding_explains(result: Result) -> None:
    why = "no finding explains 22% of the step: kernel launch"
    open_rules = [Outcome(code=c, name="n", outcome="undecided", reason=why) for c in ("TD201", "TD503")]
    text = render(replace(result, outcomes=open_rules), "text", width=120)
    assert f"2 rules undecided. TD201, TD503: {why}" in text


def test_a_place_in_a_table_keeps_its_file_and_line(rich_result: Result) -> None:
    [finding, *_] = rich_result.findings
    place = "forward_of_a_layer() (/home/somebody/project/with/a/long/path/models/layers/attention_of_ours.py:1047)"
    table = Table(
        title="Places",
        columns=[Column("called from", "location"), Column("time", "us"), Column("kernel", "code")],
        rows=[
            [
                place,
                12.0,
                "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
            ]
        ],
    )
    text = render(replace(rich_result, findings=[replace(finding, evidence=[table])]), "text", width=80)
    assert "_of_ours.py:1047)" in text
    assert "void at::native" in text


def test_the_first_line_names_who_delays_a_job_by_how_much_and_why(job_result: Result) -> None:
    first = "A step takes 178 ms; 7.10 ms (4.0%) for rank 37 (compute), in 5 of 5 steps"
    assert verdict(job_result)[0] == first
    assert first in render(job_result, "text")
    other = msgspec.structs.replace(job_result.findings[0], location=Location(ranks=[36]))
    assert verdict(msgspec.structs.replace(job_result, findings=[other]))[0].startswith("Straggler")
