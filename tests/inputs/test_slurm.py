"""`analyze --executor slurm`: the script that it prints, run with a stand-in for Slurm's own command."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from warm_commands import warm

SBATCH = """#!/usr/bin/env bash
# Runs a job at once, as far as its script and its options are ours: an array as its tasks, the last one first.
set -eu
unset SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT
for word in "$@"; do case "$word" in
  --chdir=*) cd "${word#*=}" ;;
  --array=*) last="${word##*-}" ;;
  --dependency=*) [ "$word" = --dependency=afterany:17 ] ;;
  --parsable|--job-name=*) ;;
  *) echo "what is $word?" >&2; exit 9 ;;
esac; done
script=$(mktemp)
cat > "$script"
if [ -n "${last:-}" ]; then
  export SLURM_ARRAY_TASK_COUNT=$((last + 1))
  for ((id = last; id >= 0; id--)); do SLURM_ARRAY_TASK_ID=$id sh "$script" >&2 || true; done
  echo "17;cluster"
else
  sh "$script"
fi
"""
FOLDER = "a 'job' $(touch PWNED) {0}"


@pytest.fixture
def here(job: Path, tmp_path: Path) -> Path:
    shutil.copytree(job, tmp_path / FOLDER)
    return tmp_path


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    programs = tmp_path_factory.mktemp("bin")
    (programs / "sbatch").write_text(SBATCH)
    (programs / "trace-doctor").write_text(f'#!/bin/sh\nexec {shlex.join(warm())} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def _run(*words: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload, no-any-return]


def _script(folder: Path, *words: str) -> str:
    done = _run(*warm(), "analyze", *words, "--executor", "slurm", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="the stand-in for sbatch is a Bash script")
def test_the_script_makes_the_result_of_one_machine(
    here: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rules = ("--select", "TD6,TD0", "--select=TD1", "--min-saving", "1%", "--no-source")
    script = _script(here, FOLDER, *rules, "--summaries", "the store", "-o", "json=slurm.json")
    assert not (here / "the store").exists(), "nothing is done before it is submitted"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = _run("sh", "-c", script, folder=elsewhere, env=environment)
    assert done.returncode == 0, done.stderr
    plain = _run(*warm(), "analyze", FOLDER, *rules, "-o", "json=plain.json", folder=here)
    assert plain.returncode == 0, plain.stderr
    assert (here / "slurm.json").read_bytes() == (here / "plain.json").read_bytes()
    assert len(list((here / "the store").glob("*.done"))) == 8
    assert not list(here.rglob("PWNED")) and not list(elsewhere.rglob("PWNED"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="the stand-in for sbatch is a Bash script")
def test_a_range_that_was_edited_reads_all_ranks_and_a_failed_task_is_named(
    here: Path, environment: dict[str, str]
) -> None:
    script = _script(here, FOLDER, "--summaries", "store", "-o", "json=slurm.json")
    three = script.replace("--array=0-7", "--array=0-2")
    assert _run("sh", "-c", three, folder=here, env=environment).returncode == 0
    assert len(list((here / "store").glob("shard-?-of-3.done"))) == 3
    failing = script.replace(
        "#!/bin/sh\nexec", '#!/bin/sh\n[ "$SLURM_ARRAY_TASK_ID" != 5 ] || exit 1\nexec', 1
    )
    shutil.rmtree(here / "store")
    done = _run("sh", "-c", failing, folder=here, env=environment)
    assert "1 of 8 shards not done: 5" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((FOLDER,), "needs --summaries"),
        ((FOLDER, "--summaries", "s", "--shard", "0/2"), "--shard is one part"),
        (("-", "--summaries", "s"), "stdin"),
        ((FOLDER, "--summaries", "s\nMERGE\ntouch PWNED"), "line break"),
        ((FOLDER, "--summaries", "s", "-o", "perfetto=p.json"), "need the captures themselves"),
        (("gone", "--summaries", "s"), "gone"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_no_array_can_do_is_refused_in_one_line(here: Path, words: tuple[str, ...], why: str) -> None:
    done = _run(*warm(), "analyze", *words, "--executor", "slurm", folder=here)
    assert done.returncode == 2 and not done.stdout
    assert why in done.stderr and done.stderr.count("\n") == 1
