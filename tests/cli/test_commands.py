"""The commands as a user runs them: exit codes, what goes to stdout, what is written and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warm_commands import warm

from trace_doctor.cli.options import format_words, rule_words
from trace_doctor.model import Result
from trace_doctor.testing import RunBuilder


def run(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR") and k != "FORCE_COLOR"}
    return subprocess.run(
        [*warm(), *map(str, args)],
        cwd=cwd,
        env={**clean, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def starved(loader_us: float = 400.0) -> RunBuilder:
    b = RunBuilder()
    for _ in range(8):
        with b.step():
            b.loader(loader_us)
            with b.op("aten::mm"):
                b.launch(300, "bf16_gemm")
            b.idle_until_done()
    return b


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    starved().write(folder / "rank0.pt.trace.json")
    return tmp_path


def test_analyze_prints_the_diagnosis_and_writes_the_report(logs: Path) -> None:
    done = run("analyze", "logs", cwd=logs)
    assert done.returncode == 0, done.stderr
    assert "TD101" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert (logs / "trace-doctor-report.html").exists()
    again = run("analyze", "logs", cwd=logs)
    assert again.returncode == 0, "our own report is replaced"


def test_what_to_do_next_can_be_copied(logs: Path) -> None:
    sample = Path(__file__).parents[2] / "sample_traces" / "dataloader_starvation"
    shutil.copytree(sample / "cpu" / "fault", logs / "logs" / "first")
    shutil.copy(sample / "fault.py", logs)
    (logs / "train.py").write_text("import torch\n")
    done = run("analyze", "logs/first", "--source", ".", cwd=logs)
    assert done.stdout.endswith("1 patch ready\nNext: trace-doctor fix trace-doctor-report.html --source .\n")
    assert done.stdout.count("Report: trace-doctor-report.html") == 1
    assert done.stderr == ""
    for given in ("lgos", "train.py"):  # nothing there yet, or a script in place of its recording
        done = run("analyze", given, cwd=logs)
        assert "trace-doctor record -- python train.py" in done.stderr
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "record --" not in run("analyze", "logs/first", "--rank", "7", cwd=logs).stderr


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        (["--source", "."], "1 patch ready"),
        ([], "2 findings have an edit if the code is found"),
        (["--source", ".", "--no-source"], "2 findings have a patch, left out with the source lines"),
    ],
)
def test_the_next_command_runs_as_it_stands_and_fixes_as_many(
    source: list[str], ends: str, logs: Path
) -> None:
    """Two of the three edits are alternatives. Without a source the traced script is looked for where the command runs."""
    sample = Path(__file__).parents[2] / "sample_traces" / "activation_bound"
    shutil.copytree(sample / "simulated" / "fault", logs / "a b")
    shutil.copy(sample / "fault.py", logs)
    for output in ([], ["-o", "text"]):
        said = run("analyze", "a b", *source, *output, cwd=logs).stdout
        before, command = said.replace(" \\\n", " ").rstrip("\n").split("\nNext: trace-doctor ")
        assert before.endswith(f"\n{ends}")
        done = run(*shlex.split(command), cwd=logs)
        assert done.returncode == 0 and "\n1 fix: not applied" in done.stderr


def test_two_recordings_below_one_folder_are_told_apart(tmp_path: Path) -> None:
    for name, wait in (("2026-11-21T20-15-00Z", 400.0), ("2026-11-21T20-35-00Z", 1.0)):
        (tmp_path / "logs" / name).mkdir(parents=True)
        starved(wait).write(tmp_path / "logs" / name / "rank0.light.json")
    said = run("analyze", "logs", "-o", "text", cwd=tmp_path).stdout
    assert "  2026-11-21T20-35-00Z · GPU 0  " in said
    assert "confidence · 2026-11-21T20-15-00Z, rank 0" in said
    assert "(slowest of 2 captures)" in " ".join(said.split())
    changed = run("diff", "logs/2026-11-21T20-15-00Z", "logs/2026-11-21T20-35-00Z", cwd=tmp_path).stdout
    assert "before   2026-11-21T20-15-00Z/rank0.light.json" in changed
    assert "after    2026-11-21T20-35-00Z/rank0.light.json" in changed


def test_a_file_that_is_no_report_of_ours_is_not_replaced(logs: Path) -> None:
    theirs = logs / "trace-doctor-report.html"
    theirs.write_text("<p>mine</p>")
    done = run("analyze", "logs", cwd=logs)
    assert done.returncode == 2
    assert theirs.read_text() == "<p>mine</p>"
    assert len(done.stderr.strip().splitlines()) == 1


def test_outputs(logs: Path) -> None:
    done = run("analyze", "logs", "-o", "json=-", "-o", "html=r.html", "-o", "text=r.txt", cwd=logs)
    assert done.returncode == 0, done.stderr
    result = Result.from_json(done.stdout)
    assert result.findings[0].code == "TD101"
    assert (logs / "r.html").exists()
    assert "TD101" in (logs / "r.txt").read_text()
    assert not (logs / "trace-doctor-report.html").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("analyze", "logs", "-o", "json", "-o", "text"), "only one format"),
        (("analyze", "logs", "-o", "pdf"), "unknown format"),
        (("analyze", "logs", "-o", "out.json"), "did you mean json=out.json?"),
        (("analyze", "logs", "-o", "json="), "no path"),
        (("analyze", "logs", "-o", "json=nowhere/r.json"), "cannot write"),
        (("analyze", "nothing-here"), "nothing-here"),
        (("analyze", "logs", "--select", "TD999"), "no rule"),
        (("analyze", "logs", "--steps", "8:5"), "selects no step"),
        (("check", "logs", "--steps", "800:900"), "the trace has steps 0 to 7"),
        (("check", "logs", "--device", "7"), "the captures have 0"),
        (("analyze", "logs", "--rank", "7"), "rank 7"),
        (("analyze", "logs", "--torch-version", "banana"), "like 2.9"),
        (("analyze", "logs", "--color", "blue"), "not auto"),
        (("analyze", "logs", "--config", "no.toml"), "no configuration file"),
        (("check", "logs", "--fail-on", "high"), "must be one of"),
        (("rule", "dataloader-starvatoin"), "did you mean dataloader-starvation"),
        (("rule",), "name a rule"),
        (("report", "logs/rank0.pt.trace.json"), "rank0.pt.trace.json"),
    ],
)
def test_mistakes_end_with_2_and_one_line(logs: Path, args: tuple[str, ...], says: str) -> None:
    done = run(*args, cwd=logs)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("explain", "TD101"), "that is `trace-doctor rule CODE`"),
        (("./",), "`trace-doctor analyze ./` diagnoses it"),
        (("analyze", "logs", "--json"), "-o json=PATH"),
    ],
)
def test_what_other_tools_call_it(tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("bad", ["##vso[task.complete]", "a\n::error::b", "\u202e", "\x1b[2J"])
@pytest.mark.parametrize(
    "args",
    [("check", "--{}"), ("{}",), ("--{}",), ("check", "x", "--fail-on", "{}"), ("analyze", "-v", "{}")],
)
def test_nothing_that_was_typed_is_obeyed(tmp_path: Path, args: tuple[str, ...], bad: str) -> None:
    done = run(*(a.format(bad) for a in args), cwd=tmp_path)
    assert done.returncode == 2
    assert bad not in done.stderr


def test_the_shell_completes_rules_and_formats() -> None:
    assert [w for w, _ in rule_words("td10")] == ["TD101", "TD102", "TD103", "TD104"]
    assert [w for w, _ in rule_words("TD1,datal")] == ["TD1,dataloader-starvation"]
    assert format_words("js") == ["json"]


def test_a_shell_that_asks_for_words_of_nothing_is_told(tmp_path: Path) -> None:
    for more in ({}, {"COMP_WORDS": "trace-doctor", "COMP_CWORD": "x"}):
        done = run(cwd=tmp_path, _TRACE_DOCTOR_COMPLETE="complete_bash", **more)
        assert done.returncode == 2
        assert (
            done.stderr
            == "trace-doctor: _TRACE_DOCTOR_COMPLETE is for the shell, which sets more with it that is not there: unset it\n"
        )


def test_an_empty_folder_says_what_was_looked_for_and_how_to_record(tmp_path: Path) -> None:
    done = run("analyze", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "capture" in done.stderr


def test_check_exit_codes(logs: Path) -> None:
    assert run("check", "logs", cwd=logs).returncode == 1
    assert run("check", "logs", "--exit-zero", cwd=logs).returncode == 0
    assert run("check", "logs", "--fail-on", "never", cwd=logs).returncode == 0
    assert run("check", "logs", "--select", "TD201", cwd=logs).returncode == 0
    assert run("check", "logs", "--select", "TD403", "--require", "TD403", cwd=logs).returncode == 3
    assert run("check", "logs", "--require", "TD403", cwd=logs).returncode == 1
    assert run("check", "elsewhere", cwd=logs).returncode == 2
    assert not (logs / "trace-doctor-report.html").exists()


@pytest.mark.parametrize("fmt", ["text", "json", "html"])
def test_the_format_never_changes_the_exit_code(logs: Path, fmt: str) -> None:
    assert run("check", "logs", "-o", fmt, cwd=logs).returncode == 1


@pytest.mark.parametrize("fmt", ["text", "json", "html"])
def test_same_input_same_bytes(logs: Path, fmt: str) -> None:
    first, second = (run("analyze", "logs", "-o", fmt, cwd=logs, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout
    assert str(logs) not in first.stdout, "no absolute path in any output"


def test_a_trace_from_stdin(logs: Path) -> None:
    data = (logs / "logs" / "rank0.pt.trace.json").read_bytes()
    for piped in (data, gzip.compress(data)):
        done = subprocess.run(
            [*warm(), "check", "-", "-o", "json"], cwd=logs, input=piped, capture_output=True, check=False
        )
        assert done.returncode == 1, done.stderr
        result = Result.from_json(done.stdout)
        assert (result.inputs[0].path, result.findings[0].code) == ("stdin", "TD101")
    assert (
        subprocess.run([*warm(), "check", "-"], input=b"", capture_output=True, check=False).returncode == 2
    )


def test_what_the_filters_leave_out_is_said(logs: Path) -> None:
    done = run("analyze", "logs", "--min-saving", "99%", "-o", "json", cwd=logs)
    result = Result.from_json(done.stdout)
    assert not result.findings
    assert result.limits == ["1 finding below min-confidence or min-saving left out"]
    assert "min-saving" in result.summary.verdict


def test_a_terminal_that_lacks_a_character_is_no_reason_to_fail(logs: Path) -> None:
    (logs / "logs" / "rank0.pt.trace.json").rename(logs / "logs" / "spår.json")
    for args in (("rule", "TD101"), ("analyze", "logs", "-o", "text")):
        assert run(*args, cwd=logs, PYTHONIOENCODING="ascii").returncode == 0
    shown = run("analyze", "logs", "-o", "json", cwd=logs, PYTHONIOENCODING="ascii").stdout
    assert Result.from_json(shown).inputs[0].path == "spår.json"


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder in which nobody can write: /proc/self"
)
def test_a_folder_that_cannot_be_written_costs_the_report_only(logs: Path) -> None:
    done = run("analyze", logs / "logs", cwd=Path("/proc/self"))
    assert done.returncode == 0, done.stderr
    assert "TD101" in done.stdout
    assert "no report" in done.stderr


def test_quiet(logs: Path) -> None:
    silent = run("check", "logs", "-qq", cwd=logs)
    assert (silent.returncode, silent.stdout, silent.stderr) == (1, "", "")
    asked = run("check", "logs", "-qq", "-o", "json=-", cwd=logs)
    assert (asked.returncode, asked.stderr) == (1, "")
    assert Result.from_json(asked.stdout).gate is not None, "it was asked for"
    brief, whole = (run("analyze", "logs", *quiet, cwd=logs) for quiet in (["-q"], []))
    assert brief.stderr == ""
    assert "TD101" in brief.stdout
    assert "fix:" not in brief.stdout
    assert "fix:" in whole.stdout


def test_quiet_says_what_was_not_read(logs: Path) -> None:
    (logs / "logs" / "rank1.pt.trace.json").write_text("{")
    assert "rank1.pt.trace.json" in run("analyze", "logs", "-q", cwd=logs).stdout


def test_a_damaged_neighbour_does_not_stop_the_others(logs: Path) -> None:
    (logs / "logs" / "broken.pickle").write_bytes(b"\x80\x04garbage")
    (logs / "logs" / "notes.txt").write_text("hello")
    done = run("analyze", "logs", "-o", "json", cwd=logs)
    assert done.returncode == 0, done.stderr
    assert any(i["path"].endswith("broken.pickle") for i in json.loads(done.stdout)["ignored"])


def test_config_shows_the_origin(logs: Path) -> None:
    (logs / "trace-doctor.toml").write_text('fail-on = "critical"\n')
    done = run("config", cwd=logs)
    assert done.returncode == 0
    line = next(row for row in done.stdout.splitlines() if row.startswith("fail-on"))
    assert '"critical"' in line
    assert "trace-doctor.toml" in line


def test_a_saved_result_renders_again_to_the_same_bytes(logs: Path) -> None:
    run("analyze", "logs", "-o", "json=r.json", "-o", "html=r.html", cwd=logs)
    done = run("report", "r.html", "-o", "html=again.html", cwd=logs)
    assert done.returncode == 0, done.stderr
    assert (logs / "again.html").read_bytes() == (logs / "r.html").read_bytes()


def test_rules_and_rule(tmp_path: Path) -> None:
    listed = run("rules", cwd=tmp_path).stdout
    assert "TD101  dataloader-starvation" in listed
    shown = run("rule", "TD101", cwd=tmp_path).stdout
    assert "Why is this bad" in shown
    assert "min_share" in shown
    assert len(json.loads(run("rule", "--all", "-o", "json", cwd=tmp_path).stdout)) == len(
        listed.splitlines()
    )


@pytest.mark.torch
def test_the_capture_snippet_records_what_the_rules_need(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch, to run the snippet")
    folder = 'my "logs"'
    snippet = run("capture", "--steps", "3", "--folder", folder, cwd=tmp_path).stdout
    assert snippet.endswith(f"trace-doctor analyze '{folder}' --source .\n")
    assert "training" not in snippet, "it is for inference too"
    model = "x = torch.nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()"
    program = f"import torch\nloader = range(20)\n{snippet}".replace("...  # your step", model)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = Result.from_json(run("analyze", folder, "-o", "json", cwd=tmp_path).stdout)
    seen = result.inputs[0]
    assert (seen.steps, seen.recorded.shapes, seen.recorded.stacks, seen.recorded.memory) == (
        3,
        True,
        True,
        True,
    )
    assert torch.__version__


def test_what_was_skipped_is_printed_beside_files_too(logs: Path) -> None:
    done = run("analyze", "logs", "-o", "json=out.json", "--show-skipped", cwd=logs)
    assert "rules skipped (" in done.stdout
    assert "record: " in done.stdout
    assert not run("analyze", "logs", "-o", "json=out.json", cwd=logs).stdout


def test_selection_of_a_rank_steps_and_a_device(logs: Path) -> None:
    """What is selected is all that is looked at, and what is said of it."""
    other = logs / "logs" / "rank3.pt.trace.json"
    other.write_bytes((logs / "logs" / "rank0.pt.trace.json").read_bytes())

    def selected(*options: str) -> dict[str, Any]:
        done = run("analyze", "logs", "-o", "json", "-q", *options, cwd=logs)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    everything = selected()
    assert {i["rank"] for i in everything["inputs"]} == {0, 3}
    assert {i["rank"] for i in selected("--rank", "3")["inputs"]} == {3}
    some = selected("--rank", "3", "--steps", "5:8", "--device", "0")
    assert [s["index"] for s in some["steps"]] == [5, 6, 7]
    assert {r["device"] for r in some["time_ledger"]} == {0}
    window = sum(r["window_ns"] for r in some["time_ledger"])
    assert window < 0.5 * sum(r["window_ns"] for r in everything["time_ledger"] if r["rank"] == 3)
    one = selected("--rank", "0", "--steps", "5")
    assert [s["index"] for s in one["steps"]] == [5]
    assert one["summary"]["step_us"] is not None


def test_a_recorded_script_has_the_environment_that_it_would_have(tmp_path: Path) -> None:
    said = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'THREADS' in k}))"
    done = run("record", "--", sys.executable, "-c", said, cwd=tmp_path, MKL_NUM_THREADS="3")
    assert json.loads(done.stdout.splitlines()[0]) == {
        k: v for k, v in {**os.environ, "MKL_NUM_THREADS": "3"}.items() if "THREADS" in k
    }
