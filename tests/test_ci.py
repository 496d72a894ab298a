"""The examples of docs/ci.md, the action and the hook, tried with the commands that they run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm_commands import warm

from trace_doctor.config import load_config
from trace_doctor.gate.decision import terms_of
from trace_doctor.gate.suppressions import Suppressions

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text()
SAMPLE = ROOT / "sample_traces" / "host_sync"
BLOCKS = {lang: re.findall(rf"```{lang}\n(.+?)```", PAGE, re.S) for lang in ("sh", "yaml", "toml", "python")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose `train.py` records; `pip` does nothing there, and environments that the action makes hold the program."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.trace-doctor]\nfail-on = "warning"\n')
    shutil.copy(SAMPLE / "fault.py", tmp_path)
    capture = SAMPLE / "simulated" / "healthy" / "trace.json.gz"
    (tmp_path / "train.py").write_text(
        f"import shutil, os\nos.makedirs('logs', exist_ok=True)\nshutil.copy({str(capture)!r}, 'logs')\n"
    )
    (tmp_path / "trace-doctor-baseline.json").write_text(
        '{"baseline_version": 1, "ranks": 1, "devices": [], "decided": [], "findings": [], "figures": {}}'
    )
    tools = tmp_path / ".tools"
    tools.mkdir()
    python = f'exec "{sys.executable}" "$@"'
    for name, does in {
        "pip": "exit 0",
        "python": f'''case "$1 $2 $3" in
"-I -m pip") exit 0;;
"-I -m venv") mkdir -p "$5/bin"; ln -sf "{tools}/trace-doctor" "$5/bin/trace-doctor"; exit 0;;
esac
{python}''',
        "trace-doctor": f'exec {shlex.join(warm())} "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{does}\n")
        (tools / name).chmod(0o755)
    return tmp_path


def bash(project: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As a runner does: stop at the first command that fails."""
    path = f"{project / '.tools'}:{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR_")}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=project, env={**clean, "PATH": path, **env}, text=True,
        capture_output=True,
    )  # fmt: skip


def plant(project: Path) -> None:
    """The branch: what is recorded from now on has the fault."""
    script = project / "train.py"
    script.write_text(script.read_text().replace("/healthy/", "/fault/"))


def scripts_of(document: dict[str, Any]) -> list[str]:
    """The commands of a workflow or of a pipeline."""
    if "jobs" in document:
        return [s["run"] for s in document["jobs"]["performance"]["steps"] if "run" in s]
    if "performance" in document:
        return list(document["performance"]["script"])
    return []


def test_the_plain_commands(project: Path) -> None:
    bash(project, "python train.py")
    for command in BLOCKS["sh"]:
        done = bash(project, command)
        assert done.returncode == 0, done.stderr


PIPELINES = [
    (n, scripts_of(yaml.safe_load(block)))
    for n, block in enumerate(BLOCKS["yaml"])
    if any("check" in s for s in scripts_of(yaml.safe_load(block)))
]


@pytest.mark.parametrize("scripts", [s for _, s in PIPELINES], ids=["GitHub", "GitLab"])
def test_a_pipeline_passes_on_main_and_fails_on_the_branch(project: Path, scripts: list[str]) -> None:
    summary = project / "summary"
    summary.write_text("")
    env = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert [bash(project, s, **env).returncode for s in scripts] == [0] * len(scripts)
    plant(project)
    codes = [bash(project, s, **env).returncode for s in scripts]
    assert codes == [0] * (len(scripts) - 1) + [1]
    assert (project / "trace-doctor.html").exists()
    if (project / "trace-doctor.sarif").exists():
        assert summary.read_text().startswith("## ✖ check failed")
    else:
        assert "<failure" in (project / "trace-doctor.xml").read_text()


@pytest.mark.parametrize("block", BLOCKS["toml"])
def test_the_configuration_is_accepted(project: Path, block: str) -> None:
    file = project / "pyproject.toml"
    file.write_text(block)
    settings = load_config(file=file).settings
    assert settings.budgets or settings.suppress
    terms_of(settings)
    Suppressions.of(settings.suppress, None)


def value_of(values: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: values[match[1]]


def event(head: str | None) -> dict[str, str]:
    """What the expressions of a workflow see of a pull request from a repository (None: it is gone), or, of "", of a push."""
    names = ("number", "head.repo.full_name")
    return dict(
        zip(
            (f"github.event.pull_request.{n}" for n in names),
            ("7" if head != "" else "", head or ""),
            strict=True,
        )
    )


OURS = event("octo/job")


def holds(condition: str, values: dict[str, str]) -> bool:
    """The value of an `if:` of a step."""
    names = r"'[^']*'|always\(\)|[a-z][\w.-]*"
    known = {"always()": "True"}
    python = re.sub(
        names, lambda m: m[0] if m[0][0] == "'" else known.get(m[0]) or repr(values.get(m[0], "")),
        condition.strip().removeprefix("${{").removesuffix("}}").strip(),
    )  # fmt: skip
    return bool(eval(python.replace("&&", "and").replace("||", "or").replace("\n", " ")))


def action(
    project: Path,
    captures: str = "logs\n",
    files: dict[str, str] | None = None,
    of: dict[str, str] = OURS,
    **inputs: str,
) -> tuple[int, str, dict[str, str]]:
    """Runs the steps of action.yml for an event as a runner would: exit code, what was printed, outputs."""
    document = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {k: str(v.get("default", "")) for k, v in document["inputs"].items()}
    given |= {"captures": captures} | inputs
    for name in ("summary", "output"):
        (project / name).write_text("")
    runner = {"GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(project / "temp"),
              "GITHUB_STEP_SUMMARY": str(project / "summary"), "GITHUB_OUTPUT": str(project / "output"),
              "GITHUB_REPOSITORY": "octo/job", "GITHUB_SERVER_URL": "https://ghe.example.org"}  # fmt: skip
    (project / "temp").mkdir(exist_ok=True)
    runner |= {name: str(project / path) for name, path in (files or {}).items()}
    printed, code = "", 0
    outputs: dict[str, str] = {}
    for step in document["runs"]["steps"]:
        values = {f"inputs.{k}": v for k, v in given.items()} | of
        values |= {f"steps.check.outputs.{k}": v for k, v in outputs.items()}
        values |= {"github.token": "t0ken", "github.repository": "octo/job"}
        values["steps.keep.outputs.artifact-url"] = "https://example.org/reports"
        condition = step.get("if")
        if "run" not in step or (code if condition is None else not holds(condition, values)):
            continue
        env = {
            k: re.sub(r"\$\{\{ ([\w.-]+) \}\}", value_of(values), v) for k, v in step.get("env", {}).items()
        }
        assert "${{" not in step["run"], "inputs reach a script only through its environment"
        done = bash(project, step["run"], **runner, **env)
        printed, code = printed + done.stdout + done.stderr, code or done.returncode
        outputs = dict(line.split("=", 1) for line in (project / "output").read_text().splitlines())
    return code, printed, outputs


def test_the_action(project: Path) -> None:
    bash(project, "python train.py")
    code, printed, outputs = action(project, baseline="trace-doctor-baseline.json")
    assert (code, outputs["exit-code"]) == (0, "0"), printed
    plant(project)
    bash(project, "python train.py")
    code, printed, outputs = action(project, baseline="trace-doctor-baseline.json", select="TD2\nTD101\n")
    assert (code, outputs["exit-code"]) == (1, "1")
    assert "::warning file=fault.py,line=" in printed
    files = {p.name for p in Path(outputs["reports"]).iterdir()}
    assert files == {"report.html", "result.json", "results.sarif", "junit.xml", "summary.md"}
    assert "check failed" in (project / "summary").read_text()
    assert action(project, **{"fail-on": "never", "require": "TD403"})[0] == 3
    (project / "logs" / "rank1.json").write_text("")
    assert action(project, **{"fail-on": "never"})[0] == 3
    assert action(project, **{"fail-on": "never", "allow-partial": "true"})[0] == 0
    assert (
        action(project, **{"fail-on": "never", "allow-partial": "true", "ranks": "2", "require": "TD403"})[0]
        == 3
    )
    assert action(project, captures="$(touch pwned)\n; touch pwned\n")[0] == 2
    assert not (project / "pwned").exists()


@pytest.mark.parametrize("module", ["pip.py", "pip/__init__.py", "json.py", "sitecustomize.py"])
def test_the_install_of_the_action_runs_nothing_of_the_repository(project: Path, module: str) -> None:
    python = project / ".tools" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (project / module).parent.mkdir(exist_ok=True)
    (project / module).write_text("print('of the repository')\n")
    code, printed, _ = action(project, files={"GITHUB_ACTION_PATH": "gone"})
    assert code, "there is nothing to install"
    assert "gone" in printed
    assert "of the repository" not in printed


def test_a_second_use_of_the_action_shows_nothing_of_the_first(project: Path) -> None:
    bash(project, "python train.py")
    _, _, first = action(project)
    code, _, second = action(project, captures="gone\n")
    assert (code, (project / "summary").read_text()) == (2, "")
    assert first["reports"] != second["reports"]
    assert not list(Path(second["reports"]).iterdir())
    assert (Path(first["reports"]) / "summary.md").exists()


def test_the_action_keeps_its_exit_code_where_no_summary_can_be_written(project: Path) -> None:
    bash(project, "python train.py")
    for captures, expected in (("logs\n", 0), ("gone\n", 2)):
        code, _, outputs = action(project, captures, files={"GITHUB_STEP_SUMMARY": "gone/summary"})
        assert (code, outputs["exit-code"]) == (expected, str(expected))
    plant(project)
    bash(project, "python train.py")
    assert action(project, files={"GITHUB_STEP_SUMMARY": "gone/summary"})[0] == 1


GH = """#!{python}
# Comments of a pull request in a folder, as `gh api` lists, adds and changes them.
import json, os, sys
from pathlib import Path
folder, words = Path(__file__).parent / "comments", sys.argv[2:]
path = next(w for w in words if w.startswith("repos/"))
assert path.startswith("repos/octo/job/issues/")
assert os.environ["GH_HOST"] == "ghe.example.org" and os.environ["GH_ENTERPRISE_TOKEN"] == "t0ken"
if (folder / "refused").exists():
    sys.exit("HTTP 403")
if "--jq" in words:
    assert 'github-actions[bot]' in words[words.index("--jq") + 1]
    for file in sorted(folder.iterdir()):
        login, _, body = file.read_text().partition(" ")
        if login == "github-actions[bot]" and body.startswith(os.environ["MARK"]):
            print(file.name)
else:
    new = len(list(folder.iterdir())) + 1
    name = path.rpartition("/")[2] if "PATCH" in words else str(new)
    body = Path(words[words.index("--field") + 1].removeprefix("body=@")).read_text()
    (folder / name).write_text("github-actions[bot] " + body)
"""


@pytest.fixture
def comments(project: Path) -> Path:
    """The comments of a pull request, behind a stand-in for `gh`."""
    gh, folder = project / ".tools" / "gh", project / ".tools" / "comments"
    gh.write_text(GH.replace("{python}", sys.executable))
    gh.chmod(0o755)
    folder.mkdir()
    return folder


def test_the_action_keeps_one_comment(project: Path, comments: Path) -> None:
    (comments / "1").write_text("somebody <!-- trace-doctor " + "0" * 16 + " -->\nlooks like ours")
    bash(project, "python train.py")
    baseline = {"baseline": "trace-doctor-baseline.json"}
    assert action(project, **baseline)[0] == 0
    assert len(list(comments.iterdir())) == 1, "comments are asked for"
    assert action(project, comment="true", **baseline)[0] == 0
    plant(project)
    bash(project, "python train.py")
    assert action(project, comment="true", **baseline)[0] == 1, "the exit code stays that of the check"
    assert (
        action(project, comment="true", **baseline, **{"html-artifact": "other", "fail-on": "never"})[0] == 0
    )
    one, two, three = sorted(comments.iterdir())
    assert one.read_text().endswith("looks like ours")
    assert "check failed" in two.read_text(), "the comment of the first run was updated"
    assert "new, fails" in two.read_text()
    assert "(https://example.org/reports)" in two.read_text()
    assert "check passed" in three.read_text(), "another use has its own"
    (comments / "refused").write_text("")
    code, printed, _ = action(project, comment="true", **baseline)
    assert (code, "::notice::trace-doctor: no comment was written" in printed) == (1, True)


@pytest.mark.parametrize("head", ["stranger/job", None, ""], ids=["fork", "fork that is gone", "push"])
def test_where_there_is_no_permission_the_job_summary_has_it_all(
    project: Path, comments: Path, head: str | None
) -> None:
    plant(project)
    bash(project, "python train.py")
    code, printed, _ = action(project, of=event(head), comment="true")
    assert (code, list(comments.iterdir())) == (1, []), printed
    assert "check failed" in (project / "summary").read_text()


def test_no_example_gives_a_strangers_pull_request_the_token() -> None:
    assert not any("pull_request_target" in block for block in BLOCKS["yaml"])


def test_the_hook(project: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    example = next(yaml.safe_load(b) for b in BLOCKS["yaml"] if "repos:" in b)["repos"][0]["hooks"][0]
    assert hook["id"] == example["id"]
    assert hook["pass_filenames"] is False
    bash(project, "python train.py")
    assert bash(project, f"{hook['entry']} {' '.join(example['args'])}").returncode == 0
    (project / "logs" / "rank1.json").write_text("")
    assert bash(project, f"{hook['entry']} {' '.join(example['args'])}").returncode == 3
    plant(project)
    bash(project, "python train.py")
    assert bash(project, f"{hook['entry']} {' '.join(example['args'])}").returncode == 1


def test_no_pipeline_lets_an_undecided_check_pass() -> None:
    assert not any("allow_failure" in block or "continue-on-error" in block for block in BLOCKS["yaml"])
