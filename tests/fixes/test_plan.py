"""From a result and a folder of scripts to patches: places, conflicts, what git takes, what is written."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import msgspec
import pytest
from repositories import committed, git

from trace_doctor.errors import UsageError
from trace_doctor.fixes import plan, with_diffs
from trace_doctor.fixes.apply import apply
from trace_doctor.model import (
    Finding,
    Fix,
    IdleNs,
    Input,
    Location,
    Result,
    Safety,
    Target,
    TimeLedgerRow,
    TorchVersion,
)
from trace_doctor.program.script import Script

LOOP = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader([1, 2], batch_size=1)
optimizer = torch.optim.SGD(params, lr=0.1)


def train():
    total = 0
    for x in loader:
        loss = f(x)
        loss.backward()
        optimizer.step()
        total += loss
"""


def fix(codemod: str | None, safety: Safety = "unsafe", target: Target | None = None, **params: Any) -> Fix:
    kind = "patch" if codemod else "advice"
    return Fix(
        title=f"do {codemod}",
        kind=kind,
        safety=safety,
        codemod=codemod,
        params=params,
        target=target,
        text="snippet",
    )


def finding(number: int, *fixes: Fix, code: str = "TD101", name: str = "a-rule", **location: Any) -> Finding:
    return Finding(
        id=f"{code}-{number}", code=code, name=name, title="t", severity="info", confidence="high", message="m",
        fingerprint="f", location=Location(**location), fixes=list(fixes),
    )  # fmt: skip


def result(*findings: Finding) -> Result:
    of_capture = TorchVersion(min="2.1", max="2.1")
    return Result(
        findings=list(findings), inputs=[Input(path="t", kind="snapshot", torch_version=of_capture)]
    )


WORKERS = fix("dataloader-args", num_workers=4, persistent_workers=True)
PIN = fix("dataloader-args", pin_memory=True)
ZERO = fix("zero-grad", mode="add")
ALLOCATOR = fix("allocator-setting", key="expandable_segments", value="True")
DETACH = fix("detach-accumulation")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(LOOP)
    return committed(tmp_path)


# ---------------------------------------------------------------------- patches that git takes


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("train.py", LOOP.encode()),
        ("train.py", LOOP.replace("\n", "\r\n").encode()),
        ("train.py", codecs.BOM_UTF8 + LOOP.encode()),
        ("train.py", ("# coding: latin-1\n# für\n" + LOOP + "s = 'ü'").encode("latin-1")),
        ("train.py", LOOP.rstrip().encode()),
        ("a folder/my train.py", LOOP.encode()),
        ("übung/train.py", LOOP.encode()),
        ('od"d\\/train.py', LOOP.encode()),
    ],
)
def test_patch_applies_with_git_and_equals_apply(tmp_path: Path, name: str, data: bytes) -> None:
    git(tmp_path, "init", "-q")
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_bytes(data)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "x")
    made = plan(
        result(finding(1, WORKERS), finding(2, ZERO), finding(3, ALLOCATOR), finding(4, DETACH)), tmp_path
    )
    assert [i.status for i in made.items] == ["ready"] * 4
    (tmp_path / "p.patch").write_bytes(made.patch())
    git(tmp_path, "apply", "--whitespace=nowarn", "p.patch")
    patched = script.read_bytes()
    assert patched == made.outputs[name][1]
    assert b"num_workers=4" in patched
    assert b"zero_grad" in patched
    script.write_bytes(data)
    apply(made)
    assert script.read_bytes() == patched


@pytest.mark.parametrize("start", [".", "jobs"])
def test_patch_of_a_folder_inside_a_work_tree_applies_from_its_top_and_from_below(
    tmp_path: Path, start: str
) -> None:
    (tmp_path / "jobs" / "a").mkdir(parents=True)
    script = tmp_path / "jobs" / "a" / "train.py"
    script.write_text(LOOP)
    git(tmp_path, "init", "-q")
    made = plan(result(finding(1, ZERO)), script.parent)
    (tmp_path / "p.patch").write_bytes(made.patch())
    git(tmp_path / start, "apply", str(tmp_path / "p.patch"))
    assert "zero_grad" in script.read_text()


def test_each_diff_of_a_result_applies_alone(repo: Path) -> None:
    told = with_diffs(result(finding(1, WORKERS), finding(2, ALLOCATOR), finding(3, ZERO)), repo)
    for one in told.findings:
        assert one.fixes[0].diff
        (repo / "p.patch").write_text(one.fixes[0].diff)
        git(repo, "apply", "--check", "p.patch")


# ---------------------------------------------------------------------- several fixes


def test_same_edit_of_two_fixes_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    both = fix("dataloader-args", num_workers=4, pin_memory=True)
    made = plan(result(finding(1, both), finding(2, PIN, code="TD102")), tmp_path)
    assert [i.status for i in made.items] == ["ready", "covered"]
    assert made.outputs["train.py"][1].decode().count("pin_memory") == 1


def test_two_fixes_add_arguments_to_one_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, WORKERS), finding(2, PIN, code="TD102")), tmp_path)
    assert [i.status for i in made.items] == ["ready", "ready"]
    assert b"batch_size=1, num_workers=4, persistent_workers=True, pin_memory=True\n" in made.patch()


def test_contradicting_fixes_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    more = fix("dataloader-args", num_workers=8)
    made = plan(result(finding(1, WORKERS), finding(2, more, code="TD103"), finding(3, DETACH)), tmp_path)
    assert [i.status for i in made.items] == ["conflict", "conflict", "ready"]
    assert "TD103-2" in made.items[0].why
    assert b"num_workers" not in made.patch()


def test_ranks_that_ask_for_different_counts_are_one_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, WORKERS), finding(2, fix("dataloader-args", num_workers=5))), tmp_path)
    assert [i.status for i in made.items] == ["ready", "covered"]


def test_findings_of_many_ranks_take_no_more_looks_at_the_script_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look parses it; what becomes of every finding is told all the same."""
    (tmp_path / "train.py").write_text(LOOP)
    parsed: list[str] = []
    made = Script.__init__

    def counted(self: Script, data: bytes, name: str, path: Path) -> None:
        parsed.append(name)
        made(self, data, name, path)

    monkeypatch.setattr(Script, "__init__", counted)
    looks = {}
    for ranks in (1, 50):
        parsed.clear()
        asked = [finding(n, WORKERS, file="train.py", line=10, rank=n) for n in range(ranks)]
        planned = plan(result(*asked), tmp_path)
        looks[ranks] = len(parsed)
        assert [item.label for item in planned.items] == [f"TD101-{n}" for n in range(ranks)]
        assert [item.why for item in planned.items] == ["", *["TD101-0 does this already"] * (ranks - 1)]
    assert looks[1] == looks[50] > 0


def test_second_fix_of_a_finding_is_an_alternative_where_they_contradict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, WORKERS, fix("dataloader-args", num_workers=8), fix(None))), tmp_path)
    assert [(i.label, i.status) for i in made.items] == [
        ("TD101-1.1", "ready"), ("TD101-1.2", "covered"), ("TD101-1.3", "advice"),
    ]  # fmt: skip


def test_unsafe_fixes_are_held_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, WORKERS), finding(2, ALLOCATOR)), tmp_path, unsafe=False)
    assert [i.status for i in made.items] == ["held", "held"]


def test_what_people_decide_on_is_made_only_where_they_name_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("SGD", "AdamW"))
    asked = result(finding(1, WORKERS, fix("replace-optimizer", "display", to="adafactor")))
    for select in ([], ["TD101"], ["TD101-1"]):
        made = plan(asked, tmp_path, select=select, torch_version="2.9")
        assert [i.status for i in made.items] == ["ready", "display"]
        assert made.items[1].why == "for you to decide: --select TD101-1.2"
        assert (
            "+ optimizer = torch.optim.Adafactor(params, lr=0.1, weight_decay=0.01)" in made.items[1].sketch
        )
        assert b"Adafactor" not in made.patch()
    one = plan(asked, tmp_path, select=["td101-1.2"], torch_version="2.9")
    assert [(i.label, i.status, i.safety) for i in one.items] == [("TD101-1.2", "ready", "unsafe")]
    assert b"+optimizer = torch.optim.Adafactor(" in one.patch() and b"num_workers" not in one.patch()
    held = plan(asked, tmp_path, unsafe=False, select=["TD101-1.2"], torch_version="2.9")
    assert [i.status for i in held.items] == ["held"]
    alone = result(finding(1, fix("replace-optimizer", "display", to="adafactor")))
    by_id = plan(alone, tmp_path, select=["TD101-1"], torch_version="2.9")
    assert [i.status for i in by_id.items] == ["ready"], "the label of an only fix is the id of its finding"


@pytest.mark.parametrize(("asked", "ready"), [("TD1", 1), ("td101-1", 1), ("a-rule", 1), ("TD4", 0)])
def test_select_by_code_id_and_name(tmp_path: Path, asked: str, ready: int) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    assert len(plan(result(finding(1, WORKERS)), tmp_path, select=[asked]).of("ready")) == ready


# ---------------------------------------------------------------------- finding the place


def test_path_of_another_machine_is_matched_by_its_longest_suffix(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(LOOP)
    made = plan(result(finding(1, ZERO, file="/mnt/u/job/b/train.py", line=13, function="train")), tmp_path)
    assert list(made.outputs) == ["b/train.py"]


def test_bare_name_that_two_files_bear_is_no_answer(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(LOOP)
    item = plan(result(finding(1, ZERO, file="train.py", line=13, function="train")), tmp_path).items[0]
    assert item.status == "ambiguous"
    assert [c.file for c in item.candidates] == ["a/train.py", "b/train.py"]


def test_a_script_of_the_folder_that_did_not_run_is_no_place(tmp_path: Path) -> None:
    """A collection of scripts, and a capture that names no line of them: what ran is known all the same."""
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(LOOP)
    assert plan(result(finding(1, ZERO)), tmp_path).items[0].status == "ambiguous"
    [item] = plan(result(finding(1, ZERO)), tmp_path, ran=["b.py"]).items
    assert item.status == "ready" and item.change is not None
    assert [f.name for f, _ in item.change.files] == ["b.py"]


def test_function_name_tells_two_files_apart(tmp_path: Path) -> None:
    for folder, name in (("a", "other"), ("b", "train")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(LOOP.replace("def train", f"def {name}"))
    made = plan(result(finding(1, ZERO, file="train.py", line=13, function="train")), tmp_path)
    assert list(made.outputs) == ["b/train.py"]


def test_script_that_changed_since_the_capture_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    broken = fix("graph-break-line")
    item = plan(result(finding(1, broken, file="train.py", line=4, function="forward")), tmp_path).items[0]
    assert item.status == "unresolved"
    assert "has changed" in item.why


FORWARD = """import torch


@torch.compile
def forward(x):
    x = x * 2
    print(x)
    print(x.mean())
    return x
"""


def test_the_next_line_of_the_kind_is_not_taken_for_the_one_that_went(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORWARD)
    broken = result(finding(1, fix("graph-break-line"), file="train.py", line=7, function="forward"))
    unknown = plan(broken, tmp_path).items[0]
    assert (unknown.status, unknown.candidates[0].code) == ("display", "print(x)")
    made = plan(broken, tmp_path, torch_version="2.6")
    (tmp_path / "train.py").write_bytes(made.outputs["train.py"][1])
    assert plan(broken, tmp_path, torch_version="2.6").items[0].status == "already"


def test_lines_of_a_saved_result_are_found_where_they_are_by_now(tmp_path: Path) -> None:
    from trace_doctor.fixes import with_diffs

    script = tmp_path / "train.py"
    script.write_text(FORWARD)
    broken = finding(1, fix("graph-break-line"), file="train.py", line=8, function="forward")
    saved = with_diffs(result(broken), tmp_path)
    script.write_text("import os\n\n" + FORWARD)
    assert b"-    print(x.mean())" in plan(saved, tmp_path).patch()
    script.write_text(FORWARD.replace("    print(x.mean())\n", "    print(x.max())\n"))
    assert plan(saved, tmp_path).items[0].why == "train.py:8 changed since the capture"


def test_file_that_is_not_below_the_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    item = plan(result(finding(1, ZERO, file="/home/someone/job/other.py", line=3)), tmp_path).items[0]
    assert (item.status, "job/other.py" in item.why, "/home" in item.why) == ("unresolved", True, False)


@pytest.mark.parametrize(
    "name", ["<stdin>", "<ipython-input-3-a>", "train.pyc", "train.py:12", "lib/train.so", "??"]
)
def test_what_is_no_script_leads_to_none(tmp_path: Path, name: str) -> None:
    """The one script of the folder that holds what is looked for is not meant by it."""
    (tmp_path / "train.py").write_text(LOOP)
    for made in (WORKERS, ALLOCATOR):
        for one in (
            finding(1, made, file=name),
            finding(1, msgspec.structs.replace(made, target=Target(file=name))),
        ):
            item = plan(result(one), tmp_path).items[0]
            assert (item.status, "no script" in item.why) == ("unresolved", True)
            named = plan(result(one), tmp_path / "train.py")
            assert named.items[0].status == "ready", "who names the script knows"


def test_a_folder_of_more_scripts_than_are_looked_at_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_doctor.program.source_tree.MAX_FILES", 2)
    for name in ("a", "b", "train"):
        (tmp_path / f"{name}.py").write_text(LOOP if name == "train" else "x = 1\n")
    made = plan(result(finding(1, ZERO, file="train.py", line=8)), tmp_path)
    assert (made.items[0].status, "not among the scripts" in made.items[0].why) == ("unresolved", True)
    assert ["1 script is left alone" in note for note in made.notes] == [True]


def test_files_of_one_name_are_not_all_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        (tmp_path / f"p{number}").mkdir()
        (tmp_path / f"p{number}" / "train.py").write_text(LOOP)
    monkeypatch.setattr(Script, "__init__", lambda *_: pytest.fail("parsed"))
    item = plan(result(finding(1, ZERO, file="train.py", line=8, function="train")), tmp_path).items[0]
    assert (item.status, "60 files" in item.why) == ("ambiguous", True)


def test_loader_made_in_another_file_than_the_loop(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("def train(loader):\n    for x in loader:\n        step(x)\n")
    (tmp_path / "data.py").write_text("from torch.utils.data import DataLoader\nloader = DataLoader([1])\n")
    made = plan(result(finding(1, WORKERS, file="engine.py", line=2, function="train")), tmp_path)
    assert list(made.outputs) == ["data.py"]


def test_library_frames_are_not_taken_for_the_users_files(tmp_path: Path) -> None:
    (tmp_path / "dataloader.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, WORKERS, file="torch/utils/data/dataloader.py", line=1)), tmp_path)
    assert list(made.outputs) == ["train.py"]


def test_environments_and_hidden_folders_are_not_sources(tmp_path: Path) -> None:
    for folder in ("env3", ".venv", "lib/site-packages/x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.py").write_text(LOOP)
    (tmp_path / "env3" / "pyvenv.cfg").write_text("")
    assert plan(result(finding(1, WORKERS)), tmp_path).items[0].status == "unresolved"


def test_allocator_setting_goes_into_the_script_that_is_started(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "train.py").write_text(LOOP + '\n\nif __name__ == "__main__":\n    train()\n')
    (tmp_path / "requirements.txt").write_text("numpy\ntorch==2.13.0\n")
    made = plan(Result(findings=[finding(1, ALLOCATOR, file="model.py", line=1)]), tmp_path)
    assert list(made.outputs) == ["train.py"]
    assert b'"PYTORCH_ALLOC_CONF"' in made.patch()


def test_what_the_folders_around_a_recipe_require_counts_up_to_the_top_of_the_work_tree(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "project/recipes/small"
    recipe.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("pytorch-lightning==1.8.0\n")
    (tmp_path / "project/.git").mkdir()
    (tmp_path / "project/requirements.txt").write_text("pytorch-lightning>=2.0.0\n")
    (recipe / "train.py").write_text("import pytorch_lightning as pl\n\npl.Trainer().fit(model, loader)\n")
    made = plan(result(finding(1, fix("autocast", dtype="bfloat16"))), recipe)
    assert b'precision="bf16-mixed"' in made.patch()


def test_file_that_does_not_parse_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nDataLoader((\n")
    made = plan(result(finding(1, WORKERS)), tmp_path)
    assert made.items[0].status == "unresolved"
    assert len(made.notes) == 1
    assert made.notes[0].startswith("train.py: cannot be parsed")


# ---------------------------------------------------------------------- the result with a source


def test_result_carries_diff_target_lines_and_names_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    given = result(finding(1, WORKERS, fix(None), file="/home/me/x/train.py", line=10, function="train"))
    told = with_diffs(given, tmp_path)
    one = told.findings[0]
    assert one.location.file == "train.py"
    assert one.fixes[0].target == Target(file="train.py", line=4, function=None)
    assert one.fixes[1] == given.findings[0].fixes[1]
    lines = dict(told.source_excerpts["train.py"])
    assert lines[4] == "loader = DataLoader([1, 2], batch_size=1)"
    assert set(lines) == set(range(1, 14))
    assert str(tmp_path) not in told.to_json().decode()


def test_without_lines_nothing_of_the_text_of_the_script_is_told(tmp_path: Path) -> None:
    undecided = LOOP.replace("for x in loader", "for x in y") + "other = DataLoader([3])\n"
    given = result(finding(1, WORKERS, file="/home/me/x/train.py", line=10, function="train"))
    for name, script in (("edited", LOOP), ("undecided", undecided)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(script)
        for lines in (True, False):
            told = with_diffs(given, tmp_path / name, lines=lines)
            shown = told.findings[0].fixes[0]
            assert ("DataLoader(" in told.to_json().decode()) == lines
            assert shown.target == Target(file="train.py", line=4) or "train.py:4" in shown.text


def test_unresolved_fix_becomes_display_and_shows_both_places(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        LOOP.replace("for x in loader", "for x in y") + "other = DataLoader([3])\n"
    )
    told = with_diffs(result(finding(1, WORKERS)), tmp_path)
    shown = told.findings[0].fixes[0]
    assert (shown.safety, shown.diff) == ("display", None)
    assert "train.py:4:" in shown.text
    assert "train.py:15:" in shown.text
    assert ": train.py:4, train.py:15\n" in shown.text, "in the one line of the reason"
    assert shown.sketch.split("\n") == [
        "train.py:4",
        "- loader = DataLoader([1, 2], batch_size=1)",
        "+ loader = DataLoader([1, 2], batch_size=1, num_workers=4, persistent_workers=True)",
        "train.py:15",
        "- other = DataLoader([3])",
        "+ other = DataLoader([3], num_workers=4, persistent_workers=True)",
    ]
    assert with_diffs(told, tmp_path) == told
    (tmp_path / "train.py").write_text(LOOP)
    assert with_diffs(told, tmp_path).findings[0].fixes[0].sketch == "", "of the script as it was"


def test_advice_names_the_line_that_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, fix(None), file="/home/me/train.py", line=11, function="train")), tmp_path)
    assert made.items[0].missing == "train.py:11: no codemod makes this edit"
    assert made.items[0].candidates[0].code == "loss = f(x)"


def test_saved_result_with_diffs_gives_the_same_patch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    given = result(
        finding(1, WORKERS),
        finding(2, ZERO, line=13, file="train.py", function="train"),
        finding(3, ALLOCATOR),
    )
    saved = Result.from_json(with_diffs(given, tmp_path).to_json())
    assert plan(saved, tmp_path).patch() == plan(given, tmp_path).patch()


# ---------------------------------------------------------------------- files outside of the source


def test_links_are_neither_read_nor_written(tmp_path: Path) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    outside.mkdir()
    source.mkdir()
    (outside / "train.py").write_text(LOOP)
    (source / "train.py").symlink_to(outside / "train.py")
    (source / "folder").symlink_to(outside, target_is_directory=True)
    assert plan(result(finding(1, ZERO, file="folder/train.py", line=13)), source).outputs == {}
    made = plan(result(finding(1, ZERO)), source / "train.py")  # named by hand, yet a link
    with pytest.raises(UsageError, match="link"):
        apply(made, allow_dirty=True)
    assert (outside / "train.py").read_text() == LOOP


def test_path_of_a_capture_cannot_climb_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "train.py").write_text(LOOP)
    made = plan(result(finding(1, ZERO, file="../train.py", line=13)), tmp_path / "source")
    assert made.items[0].status == "unresolved"


def test_advice_for_a_framework_that_the_scripts_do_not_use_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    ours, others = (msgspec.structs.replace(fix(None), framework=f) for f in ("torch", "lightning"))
    told = with_diffs(result(finding(1, WORKERS, ours, others)), tmp_path)
    assert told.findings[0].fixes[1:] == [ours]


# ---------------------------------------------------------------------- on how many GPUs a process ran

REPLICATED = """\
import torch

model = torch.nn.DataParallel(torch.nn.Linear(4, 2))
for x in loader:
    loss = model(x).mean()
    loss.backward()
"""


@pytest.mark.parametrize("codemod", ["autocast", "compile-model"])
@pytest.mark.parametrize(
    ("devices", "status"),
    [
        ([(0, 0)], "ready"),
        ([(0, 0), (1, 1)], "ready"),
        ([(0, 0), (0, 1)], "display"),
        ([(0, -1)], "display"),
        ([], "display"),
    ],
)
def test_copies_in_threads_are_refused_unless_each_process_had_one_gpu(
    tmp_path: Path, codemod: str, devices: list[tuple[int, int]], status: str
) -> None:
    """`devices`: (input, device) of each row of the time ledger."""
    (tmp_path / "train.py").write_text(REPLICATED)
    rows = [
        TimeLedgerRow(
            input=number, rank=number, device=device, phase="steady", steps=1, window_ns=1, compute_ns=1,
            exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=IdleNs(), step_us=0.0,
        )
        for number, device in devices
    ]  # fmt: skip
    made = plan(Result(findings=[finding(1, fix(codemod))], time_ledger=rows), tmp_path, torch_version="2.6")
    [item] = made.items
    assert item.status == status
    told = item.why if item.change is None else " ".join(item.change.notes)
    assert "on several GPUs the copies" in told
