"""Saved results of somebody else: what they ask for is refused or shown, and none of it reaches the terminal as more than
text."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repositories import git
from warm_commands import FRESH, warm

from trace_doctor.model import Finding, Fix, Location, Result, Target
from trace_doctor.reporters import FORMATS, render

SCRIPT = """\
import torch
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __iter__(self):
        for line in open("data"):
            yield line


loader = DataLoader([1, 2], batch_size=1)
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
"""
CODE = 'True"); __import__("os").system("touch PWNED"); ("'
EVIL = "\x1b]0;PWNED\x07\x1b[2J title\n1 fix applied to train.py\r\ndiff --git a/x b/x\n+++ b/PWNED\n\u2028\u202e"


def run(*args: str, cwd: Path, answers: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        [*warm(), *args], cwd=cwd, env=env, input=answers, capture_output=True, encoding="utf-8", timeout=60
    )  # fmt: skip


NOWHERE = Location()


def result(*fixes: Fix, location: Location = NOWHERE, **texts: str) -> Result:
    said = {"id": "TD101-1", "code": "TD101", "name": "a-rule", "title": "t", "message": "m"} | texts
    return Result(
        findings=[
            Finding(severity="info", confidence="high", fingerprint="f", location=location, fixes=[fix], **said)  # type: ignore[arg-type]
            for fix in fixes
        ]
    )  # fmt: skip


def patch(codemod: str | None, params: dict[str, Any] | None = None, **more: Any) -> Fix:
    return Fix(
        **{"title": "t", "kind": "patch", "safety": "unsafe", "codemod": codemod, "params": params or {}}
        | more
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(SCRIPT)
    return tmp_path


def unchanged(job: Path) -> bool:
    return (job / "source" / "train.py").read_text() == SCRIPT and not list(job.rglob("PWNED"))


# ---------------------------------------------------------------------- what it asks for


@pytest.mark.parametrize(
    ("fix", "parameter"),
    [
        (patch("allocator-setting", {"key": "expandable_segments", "value": CODE}), "value"),
        (patch("allocator-setting", {"key": CODE, "value": "True"}), "key"),
        (patch("set-config", {"name": "torch.load", "value": "True"}), "name"),
        (patch("set-config", {"name": "torch.backends.cudnn.benchmark", "value": "exec(x)"}), "value"),
        (patch("set-call-args", {"callee": "torch.compile", "args": {"mode": "print()"}}), "args.mode"),
        (patch("set-call-args", {"callee": "os.system", "args": {}}), "callee"),
        (patch("autocast", {"dtype": "float8"}), "dtype"),
        (patch("remove-call", {"call": "print"}), "call"),
        (patch("graph-break-line", {"line": "7", "file": "train.py"}), "line"),
        (patch("zero-grad", {"mode": "add", "more": 1}), "more"),
        (patch("batch-size"), "size"),
    ],
    ids=lambda v: v.codemod if isinstance(v, Fix) else v,
)
def test_parameters_that_no_codemod_takes_are_refused(job: Path, fix: Fix, parameter: str) -> None:
    (job / "r.json").write_bytes(result(fix).to_json())
    said = refused(run("fix", "r.json", "--source", "source", "--apply", "--unsafe-fixes", cwd=job))
    assert said.startswith(f"trace-doctor: r.json: TD101-1, fix 1 ({fix.codemod}): parameter ")
    assert parameter in said
    assert unchanged(job)


@pytest.mark.parametrize(
    "command",
    [
        ["fix", "{}", "--script", "source/train.py"], ["fix", "{}", "--source", "source", "-i"],
        ["fix", "{}", "--source", "source", "--patch", "p"], ["report", "{}", "-o", "json"], ["verify", "{}", "{}"],
        ["diff", "{}", "{}"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_by_every_command_that_reads_a_result(job: Path, command: list[str]) -> None:
    made = result(patch("allocator-setting", {"key": "expandable_segments", "value": CODE}))
    for form in ("json", "html"):
        (job / f"r.{form}").write_text(render(made, form), encoding="utf-8")
        assert "parameter value" in refused(run(*(a.format(f"r.{form}") for a in command), cwd=job))


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "fix",
    [
        patch(None, diff="diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-import torch\n+PWNED\n"),
        patch("not-yet", {"code": CODE}, text="import os\nos.system('touch PWNED')"),
        patch("mark-dynamic", {"name": "x", "dim": 0}),
        patch(None, kind="env", text="PWNED=1 python train.py"),
        patch("zero-grad", {"mode": "add"}),
        patch("zero-grad", {"mode": "add"}, safety="display"),
    ],
    ids=["a diff", "a newer codemod", "an edit that is only shown", "a variable", "an unsafe edit", "what the result only shows"],
)  # fmt: skip
def test_apply_makes_only_what_the_codemod_finds_safe(job: Path, fix: Fix) -> None:
    (job / "r.json").write_bytes(result(fix).to_json())
    done = run("fix", "r.json", "--source", "source", "--apply", cwd=job)
    assert (done.returncode, unchanged(job)) == (0, True), done.stderr
    assert "[safe]" not in done.stderr
    assert "bitwise" not in done.stderr


@pytest.mark.parametrize("apply", [[], ["--apply", "--unsafe-fixes", "--allow-dirty"]], ids=["diff", "apply"])
def test_a_codemod_of_a_newer_version_is_named_and_its_fix_shown(job: Path, apply: list[str]) -> None:
    """The other fixes of the result are made all the same."""
    (job / "r.json").write_bytes(
        result(patch("not-yet", {"a": 1}, text="paste"), patch("zero-grad")).to_json()
    )
    done = run("fix", "r.json", "--source", "source", "--verbose", *apply, cwd=job)
    assert done.returncode == 0, done.stderr
    assert "[manual]: this version has no codemod named not-yet\n    paste\n" in done.stderr
    brief = run("fix", "r.json", "--source", "source", cwd=job)
    assert "[manual]: this version has no codemod named not-yet" in brief.stderr
    assert unchanged(job) is not bool(apply)
    assert ("zero_grad(" in done.stdout) is not bool(apply)


@pytest.mark.parametrize(
    "path", ["../outside.py", "{job}/outside.py", "link.py", "folder/outside.py", "source/../../outside.py"]
)
def test_no_path_of_a_result_leads_out_of_the_source(job: Path, path: str) -> None:
    outside = job / "outside.py"
    outside.write_text(SCRIPT)
    (job / "source" / "link.py").symlink_to(outside)
    (job / "source" / "folder").symlink_to(job, target_is_directory=True)
    path = path.format(job=job)
    fixes = [
        patch("zero-grad", {"mode": "add"}, target=Target(file=path, line=15)),
        patch("graph-break-line", {"file": path, "line": 13}),
        patch("zero-grad"),
    ]
    (job / "r.json").write_bytes(result(*fixes, location=Location(file=path, line=15)).to_json())
    done = run("fix", "r.json", "--source", "source", "--apply", "--unsafe-fixes", cwd=job)
    assert done.returncode == 0, done.stderr
    assert outside.read_text() == SCRIPT


# ---------------------------------------------------------------------- what it says


def test_texts_begin_no_line_and_hold_no_control_character(job: Path) -> None:
    texts = {"id": f"TD101-1{EVIL}", "name": f"a{EVIL}", "title": EVIL, "message": EVIL}
    fixes = [
        patch("dataloader-args", {"num_workers": 2}, title=EVIL, risk=EVIL, verify=EVIL, text=EVIL, framework=EVIL),
        Fix(title=EVIL, kind="command", text=EVIL, risk=EVIL, verify=EVIL),
        patch(f"new{EVIL}", text=EVIL, title=EVIL),
    ]  # fmt: skip
    (job / "r.json").write_bytes(result(*fixes, **texts).to_json())
    done = run("fix", "r.json", "--source", "source", "--patch", "p.patch", cwd=job)
    assert done.returncode == 0, done.stderr
    asked = run("fix", "r.json", "--source", "source", "-i", cwd=job, answers="n\n")
    for said in (done.stderr, asked.stderr, asked.stdout):
        assert not [c for c in said if not c.isprintable() and c not in "\n\t"]
        assert not [
            line
            for line in said.split("\n")
            if line.startswith(("1 fix applied", "diff --git a/x", "+++ b/P"))
        ]
    lines = (job / "p.patch").read_text().split("\n")
    assert [
        line for line in lines[: lines.index("diff --git a/train.py b/train.py")] if line[:1] != "#"
    ] == []
    git(job / "source", "init", "-q")
    git(job / "source", "apply", "../p.patch")
    assert "num_workers=2" in (job / "source" / "train.py").read_text()
    assert not list(job.rglob("PWNED"))


def test_a_text_of_megabytes_is_cut_and_said_to_be(job: Path) -> None:
    long = "x" * 3_000_000
    shown = Fix(title="t", kind="command", text=long, diff=f"+{long}")
    (job / "r.json").write_bytes(result(shown, message=f"m{long}", name=f"n{long}").to_json())
    for form in FORMATS:
        done = run("report", "r.json", "-o", f"{form}=out", cwd=job)
        assert done.returncode == 0, done.stderr
        assert (job / "out").stat().st_size < 1_000_000, form
    again = run("report", "r.json", "-o", "json", cwd=job).stdout
    assert "(cut: 3,000,001 characters)" in again
    assert json.loads(again)["findings"][0]["fixes"][0]["diff"] == "", "half a diff is none"
    assert "4 texts of the saved result are longer than" in run("report", "r.json", cwd=job).stdout


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are those of POSIX")
def test_a_patch_on_a_terminal_holds_nothing_that_it_obeys(job: Path) -> None:
    import pty

    (job / "source" / "train.py").write_text(SCRIPT.replace("loss = model(x)", "loss = model(x)  # \x1b[31m"))
    (job / "r.json").write_bytes(result(patch("zero-grad", {"mode": "add"})).to_json())
    command = ["fix", "r.json", "--source", "source", "-q"]
    piped = run(*command, cwd=job).stdout
    assert "# \x1b[31m" in piped, "what is piped is applied"
    master, slave = pty.openpty()
    process = subprocess.Popen([*FRESH, *command], cwd=job, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # Linux says so where the other side has ended
        pass
    finally:
        process.wait(timeout=60)
        os.close(master)
    assert b"\x1b" not in shown
    assert b"# \\x1b[31m" in shown


# ---------------------------------------------------------------------- names that are no text

ODD = os.fsdecode(b"\xff.py")


@pytest.fixture
def odd(job: Path) -> Path:
    try:
        (job / "source" / ODD).write_text(SCRIPT)
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    fix = patch("dataloader-args", {"num_workers": 2})
    (job / "r.json").write_bytes(result(fix, location=Location(file="train.py", line=12)).to_json())
    return job


def test_a_script_whose_name_is_no_text_is_left_alone_and_named(odd: Path) -> None:
    done = run("fix", "r.json", "--source", "source", "--apply", "--unsafe-fixes", "--allow-dirty", cwd=odd)
    assert done.returncode == 0, done.stderr
    assert "\ufffd.py: its name is not UTF-8; it is left alone" in done.stderr
    assert "num_workers=2" in (odd / "source" / "train.py").read_text()
    assert (odd / "source" / ODD).read_text() == SCRIPT


def test_it_cannot_be_the_one_that_is_asked_for(odd: Path) -> None:
    done = run("fix", "r.json", "--script", f"source/{ODD}", cwd=odd)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "its name is not UTF-8" in done.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_every_report_is_text_where_sources_and_captures_have_such_names(odd: Path, form: str) -> None:
    from trace_doctor.testing import RunBuilder

    folder = odd / os.fsdecode(b"logs \xfe")
    folder.mkdir()
    b = RunBuilder()
    for _ in range(10):
        with b.step(), b.op("aten::mm"):
            b.launch(1000)
    (b.write(folder / "rank0.json")).rename(folder / os.fsdecode(b"rank0 \xff.json"))
    (folder / os.fsdecode(b"other \xff.json")).write_text("{")
    for command in ("analyze", "check"):
        done = run(command, str(folder), "--source", "source", "-o", f"{form}=out", cwd=odd)
        assert done.returncode in (0, 1), done.stderr
        assert "internal error" not in done.stderr
        (odd / "out").read_bytes().decode()


def test_a_patch_below_a_folder_of_such_a_name_is_taken_by_git(odd: Path) -> None:
    folder = odd / os.fsdecode(b"job \xff")
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    git(odd, "init", "-q")
    done = run("fix", "r.json", "--source", str(folder), "--patch", "p.patch", cwd=odd)
    assert done.returncode == 0, done.stderr
    git(odd, "apply", "p.patch")
    assert "num_workers=2" in (folder / "train.py").read_text()


def test_a_result_of_such_a_name_is_read(odd: Path) -> None:
    name = os.fsdecode(b"r \xff.json")
    (odd / "r.json").rename(odd / name)
    assert run("fix", name, "--source", "source", cwd=odd).returncode == 0
    done = run("report", name, "-o", "json=again.json", cwd=odd)
    assert done.returncode == 0, done.stderr
    assert json.loads((odd / "again.json").read_bytes())["findings"]
