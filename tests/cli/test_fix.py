"""`trace-doctor fix` as a user runs it: what is printed and refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fix_commands import OF_CAPTURE, SCRIPT, finding, run, script
from repositories import committed
from warm_commands import warm

from trace_doctor.model import Fix, Result, Target


def test_prints_a_patch_and_changes_nothing(job: Path) -> None:
    done = run("fix", "result.json", "--source", "job", cwd=job)
    assert done.returncode == 0, done.stderr
    assert script(job) == SCRIPT
    said, _, diff = done.stdout.partition("diff --git a/train.py b/train.py\n")
    assert said.splitlines() == [
        "# unsafe: TD101-1 rule-TD101: Load in workers",
        "# unsafe: TD401-1 rule-TD401: Expandable segments",
        "# unsafe: TD404-1 rule-TD404: Free gradients",
    ]
    assert diff.startswith("--- a/train.py\n")
    assert "+    optimizer.zero_grad(set_to_none=True)" in done.stdout
    assert "[safe]" not in done.stderr
    assert "risk:" not in done.stderr and "Lightning" not in done.stderr
    in_full = run("fix", "result.json", "--source", "job", "--verbose", cwd=job).stderr
    assert "verify: look again" in in_full and "risk: Linux only" in in_full
    assert "total += loss.item()" in in_full


def test_patch_file_is_taken_by_git(job: Path) -> None:
    done = run("fix", "result.json", "--script", "job/train.py", "--patch", "p.patch", cwd=job)
    assert (done.returncode, done.stdout) == (0, "")
    applied = subprocess.run(
        ["git", "apply", "../p.patch"], cwd=job / "job", capture_output=True, text=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    assert "num_workers=4" in script(job)


@pytest.mark.parametrize("under_git", [True, False])
@pytest.mark.parametrize("where", ["", "job", "beside it", "job/below"])
def test_the_command_that_applies_a_patch_works_as_pasted(job: Path, where: str, under_git: bool) -> None:
    """git says nothing of what it leaves out as it lies beside the current folder."""
    if under_git:
        committed(job)
    here = job / where
    here.mkdir(exist_ok=True)
    done = run(
        "fix",
        str(job / "result.json"),
        "--script",
        str(job / "job" / "train.py"),
        "--patch",
        "p .patch",
        cwd=here,
    )
    command = done.stderr.rpartition("apply with `")[2].partition("`")[0]
    pasted = subprocess.run(command, shell=True, cwd=here, capture_output=True, text=True, check=False)
    assert (pasted.returncode, pasted.stderr) == (0, "")
    assert "num_workers=4" in script(job)


@pytest.mark.parametrize("kind", ["pipe", "form feed"])
def test_what_cannot_be_read_holds_nothing_for_sure(job: Path, kind: str) -> None:
    script = job / "job" / "train.py"
    if kind == "pipe":
        script.unlink()
        os.mkfifo(script)
    else:
        script.write_text(f"def f():\n\tif x:\n\t\ty()\n\f{SCRIPT}")
    said = run("fix", "result.json", "--source", "job", cwd=job).stderr
    assert "no script of the program that could be read holds DataLoader" in said
    assert re.search(r"(?m)^train.py: .*it is left alone$", said)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--script", "job"], "--script job: a folder; --source takes one"),
        (["--script", os.devnull], f"--script {os.devnull}: not a regular file"),
        (["--script", "none.py"], "--script none.py: no such file"),
        (["--source", "job", "--torch-version", "two"], "torch-version: 'two' is no version, as 2.9"),
        (["--source", "job", "--patch", "job"], "cannot write job: it is a folder"),
        (
            ["--source", "job", "--patch", "job/.git/config"],
            "job/.git/config is a file of git's own: it is not overwritten",
        ),
        (["--source", "job", "-i", "--diff"], "leave it out with --apply, -i or --patch"),
    ],
)
def test_what_fix_cannot_do_is_one_line(job: Path, options: list[str], why: str) -> None:
    committed(job / "job")
    done = run("fix", "result.json", *options, cwd=job)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert why in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 elsewhere")
def test_a_folder_whose_name_is_not_utf8_is_left_alone(job: Path) -> None:
    folder = os.fsencode(job) + b"/d\xff"
    os.rename(job / "job", folder)
    done = run(
        "fix",
        "../result.json",
        "--source",
        ".",
        "--apply",
        "--unsafe-fixes",
        "--allow-dirty",
        cwd=Path(os.fsdecode(folder)),
    )
    assert (done.returncode, "internal error" in done.stderr) == (2, False)
    assert "not UTF-8" in done.stderr
    assert Path(os.fsdecode(folder), "train.py").read_text() == SCRIPT


def test_a_printed_patch_holds_no_command_to_a_ci_server_and_still_applies(job: Path) -> None:
    (job / "job" / "train.py").rename(job / "job" / "##vso[task.complete]train.py")
    done = run("fix", "result.json", "--source", "job", cwd=job)
    assert (done.returncode, "##vso[" in done.stdout + done.stderr) == (0, False)
    subprocess.run(["git", "apply", "-"], input=done.stdout, cwd=job / "job", text=True, check=True)
    assert "num_workers=4" in (job / "job" / "##vso[task.complete]train.py").read_text()


@pytest.mark.parametrize("comment", ["##vso[task.complete]", "\n::add-mask::a\n"])
def test_a_patch_with_a_command_in_its_lines_goes_into_a_file_alone(job: Path, comment: str) -> None:
    (job / "job" / "train.py").write_text(f'import torch\n"""{comment}"""\n' + SCRIPT)
    fix = ("fix", "result.json", "--source", "job")
    done = run(*fix, cwd=job)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--patch FILE" in done.stderr
    assert run(*fix, "--patch", "p", cwd=job).returncode == 0
    with (job / "printed").open("w") as file:
        subprocess.run([*warm(), *fix], cwd=job, stdout=file, check=True)
    assert (job / "printed").read_bytes() == (job / "p").read_bytes()


def test_select(job: Path) -> None:
    done = run("fix", "result.json", "--source", "job", "--select", "TD1,rule-TD404", cwd=job)
    assert "num_workers" in done.stdout
    assert "zero_grad" in done.stdout
    assert "expandable" not in done.stdout


def test_every_fix_says_in_full_how_to_verify_it_and_what_could_go_wrong(job: Path) -> None:
    done = run("fix", "result.json", "--source", "job", "--verbose", cwd=job)
    assert done.stderr.count("    verify: ") == done.stderr.count("    risk: ") == 4
    assert "`trace-doctor verify BEFORE AFTER`" in done.stderr


@pytest.mark.parametrize("name", ["R", "saved.txt"])
def test_a_saved_result_is_known_by_its_content(job: Path, name: str) -> None:
    (job / "result.json").rename(job / name)
    done = run("fix", name, "--source", "job", cwd=job)
    assert (done.returncode, "num_workers" in done.stdout) == (0, True), done.stderr


def test_a_script_that_is_a_link_is_named(job: Path) -> None:
    (job / "job" / "train.py").rename(job / "job" / "real.py")
    (job / "job" / "train.py").symlink_to("real.py")
    found = finding(
        "TD101", Fix(title="Load", kind="patch", codemod="dataloader-args", params={"num_workers": 4},
                     target=Target(file="train.py", line=5)),
    )  # fmt: skip
    (job / "result.json").write_bytes(Result(findings=[found]).to_json())
    done = run("fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty", cwd=job)
    assert (done.returncode, done.stdout) == (0, "")
    assert "train.py is a link: it is left alone" in done.stderr


def test_the_place_in_a_launch_script_is_found_again(job: Path) -> None:
    """A result made with the source names the launch script that its edit is for."""
    launch = "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128\npython train.py\n"
    (job / "job" / "run.sh").write_text(launch)
    setting = Fix(
        title="Expandable segments", kind="patch", safety="unsafe", codemod="allocator-setting",
        params={"key": "expandable_segments", "value": "True"}, target=Target(file="run.sh", line=1),
    )  # fmt: skip
    (job / "result.json").write_bytes(
        Result(findings=[finding("TD401", setting)], inputs=[OF_CAPTURE]).to_json()
    )
    done = run("fix", "result.json", "--source", "job", cwd=job)
    assert "+export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True" in done.stdout, (
        done.stderr
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--source", "nowhere"],
        ["--script", "job"],
        ["--source", "job", "--script", "job/train.py"],
        ["--source", "job", "--apply", "--patch", "p"],
        ["--source", "job", "--diff", "--apply"],
        ["--source", "job", "--select", "TD999"],
        ["--source", "job", "--select", "TD101-9"],
        ["--source", "job", "--select", "TD101-1.9"],
        ["--source", "job", "--select", "*"],
    ],
)
def test_usage_errors_exit_2_in_one_line(job: Path, arguments: list[str]) -> None:
    done = run("fix", "result.json", *arguments, cwd=job)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_finding_without_a_patch_says_what_is_missing_where_and_sketches_the_edit(job: Path) -> None:
    (job / "job" / "train.py").write_text(SCRIPT.replace("DataLoader([1, 2]", "DataLoader(samples"))
    done = run("fix", "result.json", "--source", "job", "--select", "TD101", cwd=job)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        "TD101-1 rule-TD101: Load in workers  [manual]: train.py:4: cannot see whether samples is an IterableDataset, "
        "whose data workers would repeat",
        "    sketch, not applied:",
        "    train.py:4",
        "    - loader = DataLoader(samples, batch_size=1)",
        "    + loader = DataLoader(samples, batch_size=1, num_workers=4)",
    ]
    (job / "job" / "train.py").write_text("import torch\n")
    nowhere = run("fix", "result.json", "--source", "job", "--select", "TD101", cwd=job)
    assert nowhere.stderr.splitlines() == [
        "TD101-1 rule-TD101: Load in workers  [no match]: no script of the program holds DataLoader"
    ]


def test_a_fix_that_people_decide_on_is_made_by_its_name_and_says_what_it_needs(job: Path) -> None:
    text = SCRIPT.replace("for x", "optimizer = torch.optim.AdamW(model.parameters())\nfor x")
    (job / "job" / "train.py").write_text(text)
    eight_bit = Fix(title="8-bit", kind="patch", safety="display", codemod="replace-optimizer")
    (job / "result.json").write_bytes(Result(findings=[finding("TD407", eight_bit)]).to_json())
    command = ("fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty")
    unasked = run(*command, cwd=job)
    assert "--select TD407-1" in unasked.stderr and script(job) == text
    asked = run(*command, "--select", "TD407-1", cwd=job)
    assert "    the package bitsandbytes has to be installed" in asked.stderr.splitlines()
    assert "optimizer = AdamW8bit(model.parameters())" in script(job)


def test_nothing_to_fix_is_no_failure(job: Path) -> None:
    (job / "result.json").write_bytes(Result().to_json())
    done = run("fix", "result.json", "--source", "job", cwd=job)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no fixes available" in done.stderr


def test_no_patch_file_where_there_is_nothing_to_patch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "result.json").write_bytes(Result().to_json())
    done = run("fix", "result.json", "--script", "train.py", "--patch", "fix.patch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "fix.patch").exists()
    assert "not written" in done.stderr
