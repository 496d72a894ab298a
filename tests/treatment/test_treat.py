"""`trace-doctor treat` as a user runs it, on scripts that are really run."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from repositories import committed, git
from warm_commands import FRESH, warm
from without_compiler import WITHOUT_COMPILER

from trace_doctor.model import json_schema
from trace_doctor.model.treatment import Treatment
from trace_doctor.reporters.embedded_json import extract

SCRIPT = f'''{WITHOUT_COMPILER}
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """From a disk that needs 5 ms for each of them."""

    def __len__(self):
        return 8 * 100

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((16,), index / 800), index % 3


class Model(nn.Module):
    """Uses its second branch in every third step only."""

    def __init__(self):
        super().__init__()
        self.often, self.rarely, self.calls = nn.Linear(16, 3), nn.Linear(16, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.often(x) + (self.rarely(x) if self.calls % 3 == 0 else 0)


torch.manual_seed(0)
model = Model()
loader = DataLoader(Samples(), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=1.0)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
'''
live = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="runs scripts with PyTorch, which is not installed: pip install 'trace-doctor[torch]'",
    ),
]


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRACE_DOCTOR", "GIT_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


def treat(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*warm(), "treat", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    (root / ".gitignore").write_text("trace-doctor-*\n")
    return committed(root)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeats", "3"], "--repeats"),
        (["--max-steps", "2"], "--max-steps"),
        (["--min-gain", "much"], "--min-gain"),
        (["--max-seconds", "nan"], "--max-minutes"),
        (["--max-seconds", "inf"], "--max-minutes"),
        (["--max-seconds", "-1"], "--max-minutes"),
        (["-o", "sarif"], "treat writes text, json, html, markdown"),
        (["--branch", "fixes"], "is in no git work tree"),
        (["--source", "nowhere"], "no such folder"),
        (["--max-minutes", "0"], "--max-minutes"),
        (["--resume", "nowhere.html"], "nowhere.html: No such file"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(tmp_path: Path, options: list[str], said: str) -> None:
    done = treat(*options, "--", sys.executable, "-c", "open('ran', 'w')", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(600)",
        "import os, time\n"
        "from trace_doctor.recording import process_log\n"
        "process_log.say(os.path.dirname(os.environ['TRACE_DOCTOR_RECORD']), process_log.TORCH)\n"
        "time.sleep(600)",
    ],
    ids=["before torch", "after it"],
)
def test_a_command_that_waits_for_ever_ends_with_the_time_limit(program: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    done = treat("--max-seconds", "3", "--", sys.executable, "train.py", cwd=tmp_path)
    assert (done.returncode, "no time is left for it" in done.stderr) == (2, True), done.stderr
    assert "no step in" in done.stderr


def test_to_apply_a_clean_tree_is_wanted_before_an_hour_of_trials(project: Path) -> None:
    (project / "train.py").write_text(SCRIPT + "\n")
    done = treat("--apply", "--", sys.executable, "train.py", cwd=project)
    assert done.returncode == 2
    assert "uncommitted changes" in done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('the first'); raise ValueError('the last line')", "exit code 1: ValueError: the last line"),
        ("print('no torch here')", "no step was seen"),
    ],
)
def test_a_command_that_cannot_be_treated_says_why(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "train.py").write_text(code)
    done = treat("--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "before anything was changed" in done.stderr
    assert not list(tmp_path.glob("trace-doctor-*"))


def tree(root: Path) -> dict[str, bytes | str]:
    """All that is in a project but its repository and what treat was asked to write."""
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(root.rglob("*"))
        if (p.is_symlink() or p.is_file())
        and not p.relative_to(root).parts[0].startswith((".git", "trace-doctor-"))
    }


WRITES = """\
import pathlib
import torch

(pathlib.Path("data") / "cache.bin").write_bytes(b"of a run")
pathlib.Path("own.txt").write_text("of a run")
pathlib.Path("link.txt").write_text("of a run")
torch.save({}, "best.pt")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(12):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class TestLive:
    pytestmark = live

    def test_what_a_run_writes_through_linked_data_is_told_and_ends_with_2(self, tmp_path: Path) -> None:
        root = tmp_path / "project"
        (root / "data").mkdir(parents=True)
        (root / "data" / "cache.bin").write_bytes(b"the user's")
        (root / "train.py").write_text(WRITES)
        (root / "own.txt").write_text("the user's")
        (root / "link.txt").symlink_to(root / "own.txt")
        with (root / "best.pt").open("wb") as large:  # so that it is linked
            large.truncate(65 << 20)
        before = tree(root)
        arguments = [
            "--link",
            "data",
            "-o",
            "json=trace-doctor-t.json",
            "-o",
            "text",
            "--",
            sys.executable,
            "train.py",
        ]
        done = treat(*arguments, cwd=root)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "a run can write there: data" in done.stderr.split("recording the script")[0]
        assert f"writes to {root / 'best.pt'}: each run gets a copy of its own" in done.stderr
        assert "files of yours changed while the command ran in the copy: data/cache.bin" in done.stderr
        assert "data/cache.bin changed (behind the link data)" in " ".join(done.stdout.split())
        made = Treatment.from_json((root / "trace-doctor-t.json").read_bytes())
        assert [(c.name, c.how, c.through) for c in made.changed] == [("data/cache.bin", "changed", "data")]
        assert made.code == 2 and "1 file of yours changed" in made.verdict
        assert tree(root) == {**before, "data/cache.bin": b"of a run"}

    @pytest.mark.parametrize("option", ["html", "json", "default"])
    def test_no_output_follows_a_link_that_a_run_made_in_its_place(self, tmp_path: Path, option: str) -> None:
        root = tmp_path / "project"
        root.mkdir()
        (root / "s.py").write_text("mine")
        place = root / "trace-doctor-treat.html" if option == "default" else tmp_path / "out"
        link = f"import os\nif not os.path.lexists({str(place)!r}):\n    os.symlink({str(root / 's.py')!r}, {str(place)!r})\n"
        (root / "train.py").write_text(link + WRITES.replace('"data"', '"."'))
        chosen = [] if option == "default" else ["-o", f"{option}={place}"]
        done = treat(*chosen, "--max-steps", "8", "--", sys.executable, "train.py", cwd=root)
        assert (root / "s.py").read_text() == "mine"
        assert done.returncode or not place.is_symlink(), done.stderr

    @pytest.mark.alone
    def test_the_fix_that_helps_is_kept_and_the_one_that_changes_the_losses_is_not(
        self, project: Path
    ) -> None:
        # the command's script is a link back into the project: what runs is the copy, with the edit
        (project / "exp").mkdir()
        (project / "exp" / "train.py").symlink_to(project / "train.py")
        (project / "up").symlink_to("../project")
        git(project, "add", "-A")
        git(project, "commit", "-qm", "links")
        git(project, "config", "user.name", "Ada")
        git(project, "config", "user.email", "ada@example.org")
        before = tree(project)
        outputs = ["text", "json=trace-doctor-t.json", "html=trace-doctor-t.html"]
        done = treat(
            "--unsafe-fixes", "--branch", "fixes", "--max-steps", "12", *(o for out in outputs for o in ("-o", out)), "--",
            sys.executable, "up/exp/train.py", cwd=project,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        made = Treatment.from_json((project / "trace-doctor-t.json").read_bytes())
        jsonschema.validate(json.loads(made.to_json()), json_schema(Treatment))
        fates = {a.code: (a.fate, a.reason) for a in made.attempts}
        assert fates["TD101"][0] == "kept", done.stdout
        workers = next(a.values for a in made.attempts if a.code == "TD101")
        assert len(workers) > 1 and [v.best for v in workers].count(True) == 1, done.stdout
        assert fates["TD305"][0] == "rejected" and "losses differ" in fates["TD305"][1]
        assert made.together.time is not None and made.together.time.ratio < 0.9
        assert made.difference is not None
        assert {f.code: f.fate for f in made.difference.findings}["TD305"] == "still_there"
        page = (project / "trace-doctor-t.html").read_text()
        assert extract(page) == made.to_json()
        # until it is asked for, nothing is changed; and nothing is left behind
        assert tree(project) == before and made.changed == []
        assert (
            git(project, "status", "--porcelain") == "" and git(project, "worktree", "list").count("\n") == 1
        )
        git(project, "apply", "trace-doctor-treat.patch")
        patched = (project / "train.py").read_text()
        assert "num_workers=" in patched and "set_to_none=False" in patched
        assert git(project, "show", "fixes:train.py") == patched
        assert "measured: step" in " ".join(git(project, "log", "-1", "--format=%B", "fixes").split())
        assert "| <code>TD101-1" in (project / "trace-doctor-treat.md").read_text()

    @pytest.mark.parametrize("moment", ["[1/", " to try"], ids=["the first trial", "the timing before it"])
    def test_interrupted_it_says_what_it_knows_and_leaves_nothing(
        self, project: Path, tmp_path: Path, moment: str
    ) -> None:
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        command = [
            *FRESH,
            "treat",
            "--unsafe-fixes",
            "--max-steps",
            "16",
            "-o",
            "text",
            "--",
            sys.executable,
            "train.py",
        ]
        process = subprocess.Popen(
            command, cwd=project, env={**environment(), "TMPDIR": str(temporary)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        said: list[str] = []
        while not said or moment not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], f"ended before the first trial: {said}"
        time.sleep(0.5)  # the first run of the first trial has begun
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 130, out + err
        assert "interrupted" in out and ("not decided" in out) == (moment == "[1/")
        assert list(temporary.glob("trace-doctor-*")) == []
        assert git(project, "worktree", "list").count("\n") == 1
        assert (project / "train.py").read_text() == SCRIPT


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="runs a script with PyTorch")
def test_a_fix_of_code_that_is_imported_from_another_checkout_is_not_tried(
    project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for folder in (project, other):
        (folder / "work.py").write_text(SCRIPT)
    (project / "train.py").write_text(f"import sys\n\nsys.path.insert(0, {str(other)!r})\nimport work\n")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "second")
    done = treat("--unsafe-fixes", "-o", "json=t.json", "--", sys.executable, "train.py", cwd=project)
    treatment = Treatment.from_json((project / "t.json").read_bytes())
    assert done.stderr.count("imported from another checkout") == 1
    assert f"{other / 'work.py'} is loaded in place of work.py" in done.stderr
    assert not [a for a in treatment.attempts if a.diff]
    assert any("no run would contain the edit" in b.why for b in treatment.by_hand)
