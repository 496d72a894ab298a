"""Writing into somebody's scripts: what is kept, what is refused, and that nothing is ever written twice or half."""

from __future__ import annotations

import ast
import codecs
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from access_lists import set_list
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from repositories import committed, git

from trace_doctor.errors import UsageError
from trace_doctor.fixes import Plan, plan
from trace_doctor.fixes.apply import apply
from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.diffs import unified_diff
from trace_doctor.fixes.exchange import exchange
from trace_doctor.git.work_tree import uncommitted
from trace_doctor.model import Finding, Fix, Input, Location, Result, TorchVersion

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader([1, 2, 3], batch_size=8)
optimizer = torch.optim.SGD(params, lr=0.1)


def train():
    total = 0
    for x in loader:
        loss = model(x).sum()
        if x is not None:
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
        loss.backward()
        optimizer.step()
        total += loss
"""
FIXES: dict[str, tuple[str, dict[str, Any]]] = {
    "workers": ("dataloader-args", {"num_workers": 4, "persistent_workers": True}),
    "other workers": ("dataloader-args", {"num_workers": 8}),
    "pin": ("dataloader-args", {"pin_memory": True}),
    "zero": ("zero-grad", {"mode": "add"}),
    "allocator": ("allocator-setting", {"key": "expandable_segments", "value": "True"}),
    "other allocator": ("allocator-setting", {"key": "expandable_segments", "value": "False"}),
    "detach": ("detach-accumulation", {}),
    "cache": ("remove-call", {"call": "torch.cuda.empty_cache"}),
    "sync": ("remove-call", {"call": "torch.cuda.synchronize"}),
}


@pytest.mark.parametrize("name", sorted(FIXES))
def test_each_of_these_fixes_can_be_made_alone(name: str, script: Path) -> None:
    assert [i.status for i in plan(result(name), script).items] == ["ready"]


def result(*names: str, title: str = "Do it") -> Result:
    """One finding of a rule of its own for each fix, so that none is an alternative of another."""
    return Result(
        findings=[
            Finding(
                id=f"TD{900 + n}-1", code=f"TD{900 + n}", name=f"rule-{n}", title="t", severity="info",
                confidence="high", message="m", fingerprint=name,
                fixes=[Fix(title=title, kind="patch", safety="unsafe", codemod=FIXES[name][0], params=FIXES[name][1])],
            )
            for n, name in enumerate(names)
        ],
        inputs=[Input(path="t", kind="snapshot", torch_version=TorchVersion(min="2.1", max="2.1"))],
    )  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def two_files(script: Path) -> Plan:
    """The same fix for the script and for a second one beside it."""
    other = script.with_name("other.py")
    other.write_text(SCRIPT, encoding="utf-8")
    places = [Location(file=name, line=15, function="train") for name in (script.name, other.name)]
    found = [
        replace(finding, location=place)
        for finding, place in zip(result("zero", "zero").findings, places, strict=True)
    ]
    made = plan(Result(findings=found), script.parent, torch_version="2.1")
    assert len(made.outputs) == 2
    return made


def files_of(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in folder.iterdir() if p.is_file()}


# ---------------------------------------------------------------------- what is kept

SEVERAL_SPELLINGS = {
    "cp932": b"\x87\x90 \x81\xe0 \xed\x40 \xfa\x5c",
    "big5": b"\xa1\xc3 \xa2\xcc \xa1\x5a",
    "iso2022_jp": b"\x1b$B\x1b(B\x1b(Jabc\x1b(B",
    "hz": b"~~ ~{~} x",
    "utf-7": b"+ACM- x",
    "raw_unicode_escape": rb"\u0041",
}
NO_ENCODINGS_OF_FILES = ("undefined", "punycode", "IDNA", "rot13", "base64", "utf-16", "mbcs", "no-such")


@pytest.mark.parametrize("encoding", [*SEVERAL_SPELLINGS, *NO_ENCODINGS_OF_FILES])
def test_a_script_whose_bytes_would_change_elsewhere_is_left_alone(encoding: str, script: Path) -> None:
    head = b"# coding: %s\n# %s\n" % (encoding.encode(), SEVERAL_SPELLINGS.get(encoding, b""))
    data = head + SCRIPT.replace("+=", "+=" if encoding != "utf-7" else "+-=").encode()
    script.write_bytes(data)
    made = plan(result("zero"), script)
    assert (made.outputs, made.patch()) == ({}, b"")
    said = [note for note in (*made.notes, *(i.why for i in made.items)) if "left alone" in note]
    assert said and all(note.startswith("train.py: ") and "\n" not in note for note in said)
    assert apply(made, allow_dirty=True) == []
    assert script.read_bytes() == data


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp932", "日本 ①"),
        ("big5", "中文"),
        ("iso2022_jp", "日本"),
        ("hz", "中文"),
        ("utf-7", "日本"),
        ("cp037", ""),
    ],
)
def test_lines_that_no_edit_is_about_keep_their_bytes_in_any_encoding(
    encoding: str, text: str, script: Path
) -> None:
    head = f"# coding: {encoding}\n# {text}\n"
    if encoding == "cp037":  # no superset of ASCII: nobody could read the declaration
        script.write_bytes(head.encode("ascii") + SCRIPT.encode(encoding))
        assert plan(result("zero"), script).outputs == {}
        return
    before = (head + SCRIPT + f"# {text}\n").encode(encoding)
    script.write_bytes(before)
    assert apply(plan(result("zero"), script), allow_dirty=True) == ["train.py"]
    kept = script.read_bytes().splitlines(keepends=True)
    assert [line for line in kept if b"zero_grad" not in line] == before.splitlines(keepends=True)


def dressed(text: str, style: str) -> bytes:
    if style == "crlf":
        return text.replace("\n", "\r\n").encode()
    if style == "bom":
        return codecs.BOM_UTF8 + text.encode()
    if style == "latin-1":
        return ("# -*- coding: latin-1 -*-\n# für später\n" + text).encode("latin-1")
    if style == "tabs":
        return re.sub(r"(?m)^((?: {4})+)", lambda m: "\t" * (len(m[0]) // 4), text).encode()
    if style == "no final newline":
        return text.rstrip("\n").encode()
    return (text + "\x0c\nname = 'λ\u2028'  # 日本\n").encode()


STYLES = ("plain", "crlf", "bom", "latin-1", "tabs", "no final newline")
unhurried = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)  # fmt: skip


@unhurried
@given(st.permutations(sorted(FIXES)), st.integers(1, len(FIXES)), st.sampled_from(STYLES))
def test_any_fixes_in_any_order_on_any_file(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], count: int, style: str
) -> None:
    """What is ready goes together, parses, is what `git apply` makes of the patch, touches no line that no edit is
    about, and is not made again."""
    folder = tmp_path_factory.mktemp("source")
    path, before = folder / "train.py", dressed(SCRIPT, style)
    path.write_bytes(before)
    asked = result(*names[:count])
    made = plan(asked, path)
    for item in made.of("conflict"):
        assert len(made.of("conflict")) > 1, item.why
    patch = made.patch()
    touched = edited_lines(made)
    apply(made, allow_dirty=True)
    after = path.read_bytes()
    ast.parse(after)
    assert removed_lines(patch) <= {before.split(b"\n")[n - 1] for n in touched}
    assert [p.name for p in folder.iterdir()] == ["train.py"]
    again = plan(asked, path)
    assert again.patch() == b"" or again.of("conflict") != made.of("conflict")

    path.write_bytes(before)
    if patch:
        (folder / "fix.patch").write_bytes(patch)
        git(folder, "init", "-q")
        git(folder, "apply", "fix.patch")
    assert path.read_bytes() == after


def edited_lines(made: Plan) -> set[int]:
    """1-based numbers of the lines that the edits stand on; an insertion at the end of a file is on the last one."""
    found: set[int] = set()
    for item in made.of("ready"):
        assert item.change is not None
        for owner, edits in item.change.files:
            for edit in edits:
                found |= set(range(owner.line_of(edit.start), owner.line_of(max(edit.end, edit.start)) + 1))
                if edit.start:
                    found.add(owner.line_of(edit.start - 1))
    return found


def removed_lines(patch: bytes) -> set[bytes]:
    return {line[1:] for line in patch.split(b"\n") if line.startswith(b"-") and not line.startswith(b"--- ")}


def test_permissions_owner_and_attributes_are_kept(script: Path) -> None:
    os.chmod(script, 0o4750)
    if os.getuid() == 0:
        os.chown(script, 1234, 4321)
        os.chmod(script, 0o4750)  # a change of owner takes the set-user bit away
    try:
        os.setxattr(script, "user.label", b"kept")
        labelled = True
    except (AttributeError, OSError):
        labelled = False
    before = script.stat()
    assert apply(plan(result("zero"), script.parent), allow_dirty=True) == ["train.py"]
    after = script.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    if labelled:
        assert os.getxattr(script, "user.label") == b"kept"


def test_a_list_that_the_folder_gives_to_new_files_lets_nobody_into_the_script(script: Path) -> None:
    script.chmod(0o660)
    set_list(script.parent, "default")
    assert apply(plan(result("zero"), script.parent), allow_dirty=True) == ["train.py"]
    assert "system.posix_acl_access" not in os.listxattr(script)
    assert stat.S_IMODE(script.stat().st_mode) == 0o660


def test_the_list_of_a_script_is_kept(script: Path) -> None:
    set_list(script, "access")
    before = os.getxattr(script, "system.posix_acl_access")
    apply(plan(result("zero"), script.parent), allow_dirty=True)
    assert os.getxattr(script, "system.posix_acl_access") == before


def test_the_project_that_was_planned_is_edited_from_any_folder(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(script.parent, other)
    monkeypatch.chdir(script.parent)
    planned, before = plan(result("zero"), Path(".")), script.read_bytes()
    monkeypatch.chdir(other)
    assert apply(planned, allow_dirty=True) == ["train.py"]
    assert (other / "train.py").read_bytes() == before != script.read_bytes()


@pytest.mark.parametrize("gone", ["script", "folder"])
def test_what_is_gone_is_refused_in_one_line(script: Path, gone: str) -> None:
    planned = plan(result("zero"), script.parent)
    shutil.rmtree(script.parent) if gone == "folder" else script.unlink()
    with pytest.raises(UsageError, match="nothing was written"):
        apply(planned, allow_dirty=True)


# ---------------------------------------------------------------------- what is refused


def test_a_read_only_file_is_left_alone(script: Path) -> None:
    script.chmod(0o444)
    with pytest.raises(UsageError, match="read-only"):
        apply(plan(result("zero"), script.parent), allow_dirty=True)
    assert script.read_text() == SCRIPT


def test_a_file_with_a_second_name_is_left_alone(script: Path) -> None:
    """A replacement would part the two, and the other may lie outside of the source."""
    other = script.parent.parent / "elsewhere.py"
    os.link(script, other)
    with pytest.raises(UsageError, match="2 names"):
        apply(plan(result("zero"), script.parent), allow_dirty=True)
    assert script.read_text() == other.read_text() == SCRIPT
    assert script.samefile(other)


def test_a_link_put_in_place_after_planning_is_not_followed(script: Path) -> None:
    made = plan(result("zero"), script.parent)
    outside = script.parent.parent / "outside.py"
    script.rename(outside)
    script.symlink_to(outside)
    with pytest.raises(UsageError, match="link"):
        apply(made)
    assert outside.read_text() == SCRIPT


def test_a_folder_turned_link_after_planning_is_not_followed(tmp_path: Path) -> None:
    inner, outside = tmp_path / "source" / "job", tmp_path / "outside"
    inner.mkdir(parents=True)
    (inner / "train.py").write_text(SCRIPT)
    made = plan(result("zero"), tmp_path / "source")
    inner.rename(outside)
    inner.symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError, match="behind one"):
        apply(made)
    assert (outside / "train.py").read_text() == SCRIPT


def test_a_source_that_is_itself_a_link_is_the_folder_it_names(script: Path) -> None:
    link = script.parent.parent / "link"
    link.symlink_to(script.parent, target_is_directory=True)
    assert apply(plan(result("zero"), link), allow_dirty=True) == ["train.py"]
    assert "zero_grad" in script.read_text()


def test_what_git_does_not_know_yet_is_refused_without_force(script: Path) -> None:
    committed(script.parent)
    script.write_text(SCRIPT + "# mine\n")
    made = plan(result("zero"), script.parent)
    with pytest.raises(UsageError, match="uncommitted"):
        apply(made)
    assert script.read_text() == SCRIPT + "# mine\n"
    assert apply(made, allow_dirty=True) == ["train.py"]
    git(script.parent, "commit", "-q", "-a", "-m", "fixed")
    new = script.parent / "other" / "new.py"
    new.parent.mkdir()
    new.write_text(SCRIPT)
    with pytest.raises(UsageError, match="not committed"):
        apply(plan(result("zero"), new.parent))


def test_a_file_that_changed_meanwhile_is_not_overwritten(script: Path) -> None:
    made = plan(result("zero"), script)
    assert made.outputs
    script.write_text("# new\n")
    with pytest.raises(UsageError, match="changed while"):
        apply(made, allow_dirty=True)
    assert script.read_text() == "# new\n"


def test_git_variables_of_a_surrounding_hook_are_not_believed(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = script.parent.parent / "clean"
    clean.mkdir()
    for folder in (script.parent, clean):
        git(folder, "init", "-q")
        git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    git(script.parent, "add", "-A")
    monkeypatch.setenv("GIT_DIR", str(clean / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(clean))
    assert "uncommitted" in (uncommitted(script.parent, [script]) or "")


def test_outside_of_git_there_is_no_way_back(script: Path) -> None:
    with pytest.raises(UsageError, match="no undo"):
        apply(plan(result("zero"), script.parent))
    assert script.read_text() == SCRIPT
    assert apply(plan(result("zero"), script.parent), allow_dirty=True) == ["train.py"]


def test_a_broken_repository_is_not_taken_for_a_clean_one(script: Path) -> None:
    (script.parent / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(UsageError, match="cannot be read: fatal: not a git repository"):
        apply(plan(result("zero"), script.parent))


# ---------------------------------------------------------------------- several fixes, several processes


def test_edits_that_leave_no_valid_file_together_are_refused_together(script: Path) -> None:
    """Each removes one of a block's only two statements."""
    made = plan(result("cache", "sync", "zero"), script.parent)
    assert [i.status for i in made.items] == ["conflict", "conflict", "ready"]
    assert "TD901-1" in made.items[0].why and "TD900-1" in made.items[1].why
    for name in ("cache", "sync"):
        assert [i.status for i in plan(result(name), script.parent).items] == ["ready"]


def test_failure_half_way_leaves_no_file_changed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = two_files(script)

    def fails_on_second(new: Path, place: Path) -> None:
        if place.name == script.name and place.read_text() == SCRIPT:
            raise OSError(28, "No space left on device")
        exchange(new, place)

    monkeypatch.setattr("trace_doctor.fixes.apply.exchange", fails_on_second)
    with pytest.raises(UsageError, match=r"No space.*nothing was changed"):
        apply(made, allow_dirty=True)
    assert files_of(script.parent) == {"train.py": SCRIPT, "other.py": SCRIPT}


WRITE = """\
import sys
from pathlib import Path
from trace_doctor.errors import UsageError
from trace_doctor.fixes import plan
from trace_doctor.fixes.apply import apply
from trace_doctor.model import Result
made = plan(Result.from_json(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
made.outputs
sys.stdin.readline()
try:
    apply(made, allow_dirty=True)
except UsageError as error:
    sys.exit(str(error))
"""


def test_processes_at_once_never_undo_each_other(script: Path, tmp_path: Path) -> None:
    """All have planned when the first writes: one wins, and the others see that the file is no longer what they read."""
    marks = {"workers": "num_workers=4", "zero": "zero_grad", "allocator": "setdefault", "detach": "detach()"}
    running = {}
    for name in marks:
        (tmp_path / f"{name}.json").write_bytes(result(name).to_json())
        command = [sys.executable, "-c", WRITE, str(tmp_path / f"{name}.json"), str(script.parent)]
        running[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for process in running.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = {name: process.communicate()[1] for name, process in running.items()}
    text = script.read_text()
    for name, process in running.items():
        assert (marks[name] in text) == (process.returncode == 0), errors[name]
        assert process.returncode == 0 or "changed while" in errors[name]
    assert sum(p.returncode == 0 for p in running.values()) >= 1
    assert [p.name for p in script.parent.iterdir()] == ["train.py"]


# ---------------------------------------------------------------------- the patch


def test_the_patch_says_what_is_in_it_and_how_safe_that_is(script: Path) -> None:
    patch = plan(result("pin", "zero"), script.parent).patch().decode()
    assert patch.startswith("# unsafe: TD900-1 rule-0: Do it\n# unsafe: TD901-1 rule-1: Do it\ndiff --git ")


def test_a_title_cannot_smuggle_a_diff_in(script: Path) -> None:
    evil = "x\ndiff --git a/evil b/evil\n--- /dev/null\n+++ b/evil\n@@ -0,0 +1 @@\n+evil\r\x85\u2028"
    patch = plan(result("zero", title=evil), script.parent).patch()
    (script.parent / "fix.patch").write_bytes(patch)
    git(script.parent, "init", "-q")
    git(script.parent, "apply", "fix.patch")
    assert sorted(p.name for p in script.parent.iterdir()) == [".git", "fix.patch", "train.py"]


def test_every_codemod_says_what_it_does() -> None:
    assert all(mod.summary for mod in codemods().values())


@pytest.mark.skipif(os.name != "posix", reason="names that Windows does not take")
@pytest.mark.parametrize("name", ["a\u202eyp.py", "a\u200bb.py", "a\u2028b.py"])
def test_characters_of_a_name_that_do_not_show_are_quoted_and_git_reads_them(
    tmp_path: Path, name: str
) -> None:
    diff = unified_diff(name, b"a\n", b"b\n")
    assert diff.isascii()
    (tmp_path / name).write_text("a\n")
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert (tmp_path / name).read_text() == "b\n"
