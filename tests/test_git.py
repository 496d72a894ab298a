"""What is asked of git: the state of a work tree is told rightly, and nothing of the repository runs for it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repositories import committed, git

from trace_doctor import git as asking
from trace_doctor.git import GitFailed, GitUnanswered, in_git, top, work_tree
from trace_doctor.git import git as asked
from trace_doctor.git.work_tree import uncommitted
from trace_doctor.treatment.copy import worktree


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("a = 1\n")
    (folder / "pkg" / "model.py").write_text("b = 1\n")
    (folder / "name with \u00fcmlaut\t.py").write_text("c = 1\n")
    (folder / "link.py").symlink_to("train.py")
    committed(folder)
    settled(folder)
    return folder


def settled(folder: Path) -> None:
    """Files older than the index: git takes none of them for one that changed since."""
    old = time.time() - 100
    for path in folder.rglob("*"):
        if ".git" not in path.parts:
            os.utime(path, (old, old), follow_symlinks=False)
    git(folder, "update-index", "--refresh")


def state(folder: Path, name: str = "train.py") -> str | None:
    return uncommitted(folder, [folder / name])


def test_a_clean_work_tree_is_clean(job: Path) -> None:
    assert state(job) is None
    assert uncommitted(job / "pkg", [job / "pkg" / "model.py"]) is None
    assert top(job / "pkg") == job.resolve()


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("name", ["train.py", "pkg/model.py"])
def test_a_change_behind_a_flag_of_the_index_is_seen(job: Path, flag: str, name: str) -> None:
    git(job, "update-index", flag, name)
    assert state(job) is None
    before = (job / name).stat()
    (job / name).write_text("z = 1\n")
    os.utime(job / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert git(job, "status", "--porcelain") == ""
    assert "uncommitted changes (1 file)" in (state(job) or "")


def test_what_differs_is_counted(job: Path) -> None:
    (job / "pkg" / "model.py").unlink()
    (job / "link.py").unlink()
    (job / "link.py").symlink_to("elsewhere.py")
    (job / "new.py").write_text("staged = 1\n")
    git(job, "add", "new.py")
    assert "(3 files)" in (state(job) or "")
    assert "not committed" in (state(job, "other.py") or "")


@pytest.mark.parametrize("believed", ["default", "core.useReplaceRefs"])
@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
def test_an_object_that_replaces_another_is_not_taken_for_it(job: Path, kind: str, believed: str) -> None:
    """`git status` says clean, and a checkout of HEAD by anybody else has not what is in the work tree."""
    old = {"commit": "HEAD", "tree": "HEAD^{tree}", "blob": "HEAD:train.py"}[kind]
    old = git(job, "rev-parse", old).strip()
    (job / "train.py").write_text("a = 2\n")
    new = git(job, "hash-object", "-w", "train.py").strip()
    if kind != "blob":
        git(job, "add", "train.py")
        new = git(job, "write-tree").strip()
    if kind == "commit":
        new = git(job, "commit-tree", new, "-m", "other").strip()
    git(job, "replace", old, new)
    if believed != "default":
        git(job, "config", believed, "true")
    assert kind == "blob" or git(job, "status", "--porcelain") == ""
    assert "uncommitted changes (1 file)" in (state(job) or "")


@pytest.mark.parametrize("forged", ["graph", "split graph", "tree"])
def test_a_tree_is_not_believed_that_git_does_not_check(job: Path, forged: str) -> None:
    """`git status` says clean, and the commit names another tree."""
    name, tree = ("pkg/model.py", "pkg") if forged == "tree" else ("train.py", "")
    if forged != "tree":
        split = ["--split"] if forged == "split graph" else []
        git(job, "commit-graph", "write", "--reachable", *split)
    old = git(job, "rev-parse", f"HEAD:{tree}").strip()
    (job / name).write_text("a = 2\n")
    git(job, "add", name)
    new = git(job, "rev-parse", f"{git(job, 'write-tree').strip()}:{tree}").strip()
    objects = job / ".git" / "objects"
    if forged == "tree":
        place = objects / old[:2] / old[2:]
        place.unlink()
        shutil.copy(objects / new[:2] / new[2:], place)
    else:
        [graph] = [p for p in (objects / "info").rglob("*graph") if p.is_file()]
        data = graph.read_bytes()[:-20].replace(bytes.fromhex(old), bytes.fromhex(new))
        graph.chmod(0o644)
        graph.write_bytes(data + hashlib.sha1(data).digest())
    assert git(job, "status", "--porcelain") == ""
    assert "uncommitted changes (1 file)" in (state(job, name) or "")


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_what_git_could_not_give_back_is_not_edited(job: Path, content: bytes | None) -> None:
    digest = git(job, "rev-parse", "HEAD:train.py").strip()
    file = job / ".git" / "objects" / digest[:2] / digest[2:]
    file.chmod(0o600)
    file.unlink() if content is None else file.write_bytes(content)
    assert "git has lost what is committed of train.py" in (state(job) or "")
    assert state(job, "pkg/model.py") is None


def test_a_clone_whose_objects_were_elsewhere_and_are_gone(job: Path, tmp_path: Path) -> None:
    """Nobody is sent to commit or stash what git can do neither with."""
    git(job, "clone", "-q", "--shared", ".", str(tmp_path / "clone"))
    job.rename(tmp_path / "moved")
    assert "(git has lost what is committed of train.py)" in (state(tmp_path / "clone") or "")


@pytest.mark.parametrize("content", [None, b"damaged"])
@pytest.mark.parametrize(("tree", "name"), [("", "the top folder"), ("pkg", "pkg")])
def test_a_lost_tree_is_told_before_an_edit(job: Path, tree: str, name: str, content: bytes | None) -> None:
    """`git diff` and `git stash` fail without it: the edit could be told from nothing."""
    digest = git(job, "rev-parse", f"HEAD:{tree}").strip()
    file = job / ".git" / "objects" / digest[:2] / digest[2:]
    file.chmod(0o600)
    file.unlink() if content is None else file.write_bytes(content)
    assert f"git has lost what is committed of {name}" in (state(job, "pkg/model.py") or "")
    assert (state(job) is None) == (tree == "pkg")


def test_folders_are_compared_in_the_order_of_git(job: Path) -> None:
    """Where a folder is called as a file begins, and where it holds but folders."""
    for name in ("a/x.py", "a.py", "a-b/c/d/e.py", "a0.py", "b/c/x.py", "b.c/x.py"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(f"'{name}'\n")
    (job / "a.py").chmod(0o755)
    git(job, "add", "-A")
    git(job, "commit", "-q", "-m", "second")
    assert state(job) is None
    git(job, "rm", "-q", "--cached", "a-b/c/d/e.py")
    assert "uncommitted changes (1 file)" in (state(job) or "")


def test_a_work_tree_elsewhere_is_not_asked_for_this_one(job: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(job / "train.py", tmp_path / "other")
    committed(tmp_path / "other")
    shutil.move(job / ".git", tmp_path / "unused")
    shutil.copytree(tmp_path / "other" / ".git", job / ".git")
    git(job, "config", "core.worktree", str(tmp_path / "other"))
    (job / "train.py").write_text("a = 2\n")
    assert git(job, "status", "--porcelain") == ""
    assert f"cannot be read: the work tree of the repository around {job} is" in (uncommitted(job, []) or "")
    assert worktree.top(job) is None


def test_a_commit_of_a_submodule_that_is_staged_is_a_change(job: Path, tmp_path: Path) -> None:
    (job / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ../sub\n\tignore = all\n')
    (job / "sub").mkdir()
    (job / "sub" / "x.py").write_text("x = 1\n")
    committed(job / "sub")
    git(job, "add", "-A", "-f")
    git(job, "commit", "-q", "-m", "with a submodule")
    assert state(job) is None
    git(job / "sub", "commit", "-q", "--allow-empty", "-m", "second")
    git(job, "add", "-f", "sub")
    assert "uncommitted changes (1 file)" in (state(job) or "")


def with_submodule(job: Path) -> Path:
    submodule = job / "sub"
    (submodule / "deep").mkdir(parents=True)
    (submodule / "x.py").write_text("x = 1\n")
    (submodule / "deep" / "y.py").write_text("y = 1\n")
    committed(submodule / "deep")
    committed(submodule)
    git(job, "add", "-A", "-f")
    git(job, "commit", "-q", "-m", "with a submodule")
    return submodule


@pytest.mark.parametrize("name", ["sub/x.py", "sub/deep/y.py"])
def test_a_submodule_is_a_work_tree_of_its_own(job: Path, name: str) -> None:
    with_submodule(job)
    assert state(job, name) is None
    assert state(job) is None
    (job / name).write_text("z = 1\n")
    assert "uncommitted changes (1 file)" in (state(job, name) or "")
    assert "uncommitted changes (1 file)" in (state(job) or "")
    (job / name).with_name("new.py").write_text("n = 1\n")
    assert (
        state(job, str(Path(name).with_name("new.py"))) == "new.py is not committed to git: commit it first"
    )


def test_a_submodule_at_another_commit_is_a_change(job: Path) -> None:
    submodule = with_submodule(job)
    git(submodule, "commit", "-q", "--allow-empty", "-m", "second")
    assert "uncommitted changes (1 file)" in (state(job) or "")


def test_a_submodule_that_is_not_checked_out_is_none(job: Path) -> None:
    submodule = with_submodule(job)
    shutil.rmtree(submodule)
    submodule.mkdir()
    assert state(job) is None


def test_variables_of_another_repository_are_not_obeyed(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook has them; those of the repository that the folder lies in would have us look at its half-made index."""
    (tmp_path / "other").mkdir()
    shutil.copy(job / "train.py", tmp_path / "other")
    other = committed(tmp_path / "other") / ".git"
    (job / "train.py").write_text("a = 2\n")
    for name, value in {
        "GIT_DIR": other, "GIT_WORK_TREE": other.parent, "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / "objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": other / "objects",
        "GIT_CEILING_DIRECTORIES": tmp_path, "GIT_CONFIG_PARAMETERS": "'core.useReplaceRefs=true'",
        "GIT_REPLACE_REF_BASE": "refs/others/",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    assert "uncommitted changes (1 file)" in (state(job) or "")
    assert top(job) == job.resolve()


def test_a_sparse_checkout_is_clean(job: Path) -> None:
    git(job, "update-index", "--skip-worktree", "pkg/model.py")
    (job / "pkg" / "model.py").unlink()
    assert state(job) is None


def test_a_change_in_the_moment_of_the_index_is_seen(job: Path) -> None:
    """Same size and same time as in the index: only the content tells."""
    index = job / ".git" / "index"
    before = (job / "train.py").stat()
    (job / "train.py").write_text("a = 2\n")
    os.utime(job / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(index, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert "uncommitted" in (uncommitted(job, []) or "")


@pytest.mark.skipif(os.name != "posix", reason="inodes and times of change are those of POSIX")
@pytest.mark.parametrize("settings", ["default", "core.checkStat=minimal"])
@pytest.mark.parametrize("how", ["in place", "by a new file"])
def test_a_change_of_same_size_and_time_is_seen(job: Path, how: str, settings: str) -> None:
    if settings != "default":
        git(job, "config", "core.checkStat", "minimal")
        git(job, "config", "core.trustctime", "false")
    os.utime(job / ".git" / "index", ns=(time.time_ns() + 10**9,) * 2)  # so that its own time proves nothing
    assert uncommitted(job, []) is None
    place = job / "pkg" / "model.py"
    before = place.stat()
    if how == "by a new file":
        (job / "pkg" / "save").write_text("z = 1\n")
        os.replace(job / "pkg" / "save", place)
    else:
        place.write_text("z = 1\n")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    for files in ([], [job / "train.py"]):
        assert "uncommitted changes (1 file)" in (uncommitted(job, files) or "")


@pytest.mark.skipif(os.name != "posix", reason="Windows has no bit that makes a file executable")
@pytest.mark.parametrize("attributes", ["", "*.py text\n"])
@pytest.mark.parametrize("name", ["train.py", "pkg/model.py"])
def test_a_file_that_became_executable_is_a_change_where_git_looks_at_that(
    job: Path, name: str, attributes: str
) -> None:
    (job / ".gitattributes").write_text(attributes)
    git(job, "add", "-A")
    git(job, "commit", "-q", "-m", "attributes")
    assert state(job) is None
    (job / name).chmod(0o755)
    assert git(job, "status", "--porcelain")
    assert "uncommitted changes (1 file)" in (state(job) or "")
    git(job, "config", "core.fileMode", "false")
    assert not git(job, "status", "--porcelain")
    assert state(job) is None


def test_more_than_can_be_read_is_not_clean(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_tree, "_MAX_COMPARED", 5)
    (job / "pkg" / "model.py").touch()
    assert "cannot be told" in (uncommitted(job, []) or "")


def test_a_copy_of_a_repository_is_clean(job: Path) -> None:
    shutil.copytree(job, job.parent / "copy", symlinks=True)
    assert state(job.parent / "copy") is None


def test_a_folder_that_became_a_link_to_the_same_files_is_a_change(job: Path, tmp_path: Path) -> None:
    (job / "pkg").rename(tmp_path / "elsewhere")
    (job / "pkg").symlink_to(tmp_path / "elsewhere")
    assert state(job) == "the git work tree has uncommitted changes (1 file): commit or stash first"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize(
    "name", ["config", "HEAD", "index", "packed-refs", "shallow", "commondir", "objects/info/alternates"]
)
def test_git_that_waits_for_ever_is_not_waited_for(
    job: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(job / ".git" / name)
    monkeypatch.setattr(asking.git, "__kwdefaults__", {"input_bytes": b"", "timeout": 0.5})
    said = state(job) or ""
    assert "cannot be read" in said and "\n" not in said
    assert "does not answer within" in said


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are those of POSIX")
def test_what_git_has_started_ends_with_it(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that keeps the pipes open would be waited for as well."""
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.write_text(f'#!/bin/sh\nsleep 300 &\necho $! > "{tmp_path}/pid"\nwait\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    with pytest.raises(GitUnanswered, match="does not answer within"):
        asked(job, "status", timeout=0.5)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not _runs(pid):
            return
        time.sleep(0.05)
    pytest.fail("it runs on")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the most memory from /proc")
@pytest.mark.parametrize("stream", [1, 2])
def test_a_git_that_writes_without_end_takes_no_memory(job: Path, tmp_path: Path, stream: int) -> None:
    """To its errors it may write what it wants; an answer that is too long is none, and no setting that is not set."""
    (tmp_path / "bin").mkdir()
    talking = tmp_path / "bin" / "git"
    talking.write_text(
        f'#!/bin/sh\ncase "$*" in *core.fileMode*) head -c 600000000 /dev/zero >&{stream};; esac\n'
        f'exec "{shutil.which("git")}" "$@"\n'
    )
    talking.chmod(0o755)
    ask = (
        "import re, sys; from pathlib import Path; from trace_doctor import git; from trace_doctor.git import work_tree\n"
        "git._LONGEST_ANSWER = 1 << 20\n"
        "print(work_tree.uncommitted(Path(sys.argv[1]), [Path(sys.argv[1], 'train.py')]))\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    environment = {**os.environ, "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])}
    said = subprocess.run(
        [sys.executable, "-c", ask, str(job)], env=environment, capture_output=True, text=True, check=True
    )
    state, most = said.stdout.splitlines()
    assert state == "None" if stream == 2 else "git answers with more than 1 MB" in state
    assert int(most) < 200 << 10  # kB; `ru_maxrss` would count what the parent had at the fork


def _runs(pid: int) -> bool:
    """Whether a process is there, and no zombie that nobody waits for."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return said.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(os.name != "posix", reason="text of no other setting gets CRLF on Windows")
@pytest.mark.parametrize(
    "attributes",
    ["", "text", "text=auto", "eol=lf", "eol=crlf", "text eol=lf", "-text", "crlf", "crlf=input"],
)
@pytest.mark.parametrize("setting", ["", "core.autocrlf=true", "core.autocrlf=input", "core.eol=crlf", "core.eol=lf"])  # fmt: skip
def test_line_ends_are_no_change_where_a_checkout_gives_them(
    job: Path, attributes: str, setting: str
) -> None:
    """`git status` also takes those for clean that it would not give back."""
    if setting:
        git(job, "config", *setting.split("="))
    (job / ".git" / "info").mkdir(exist_ok=True)
    (job / ".git" / "info" / "attributes").write_text(f"*.py {attributes}\n")
    (job / "train.py").unlink()
    git(job, "checkout", "train.py")
    given = (job / "train.py").read_bytes()
    assert state(job) is None
    for content in (b"a = 1\n", b"a = 1\r\n"):
        (job / "train.py").write_bytes(content)
        assert (state(job) is None) == (content in (given, b"a = 1\n")), content
    (job / "train.py").write_bytes(b"a = 2\r\n")
    assert "uncommitted" in (state(job) or "")


def test_a_repository_of_sha256(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\n")
    try:
        git(tmp_path, "init", "-q", "--object-format=sha256")
    except AssertionError:
        pytest.skip("this git knows no sha256")
    committed(tmp_path)
    assert state(tmp_path) is None
    (tmp_path / "train.py").write_text("a = 2\n")
    assert "uncommitted" in (state(tmp_path) or "")


def test_no_commit_yet_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    assert "not committed" in (state(tmp_path) or "")
    git(tmp_path, "add", "-A")
    assert "uncommitted" in (state(tmp_path) or "")


def test_a_merge_that_is_not_ended_is_a_change(job: Path) -> None:
    git(job, "checkout", "-q", "-b", "side")
    (job / "train.py").write_text("a = 2\n")
    git(job, "commit", "-q", "-a", "-m", "side")
    git(job, "checkout", "-q", "-")
    (job / "train.py").write_text("a = 3\n")
    git(job, "commit", "-q", "-a", "-m", "main")
    subprocess.run(["git", "merge", "-q", "side"], cwd=job, capture_output=True, check=False)
    (job / "train.py").write_text("a = 3\n")
    assert "uncommitted" in (state(job) or "")


@pytest.mark.skipif(os.name != "posix", reason="the planted programs are shell scripts")
def test_nothing_of_the_repository_runs(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    planted = tmp_path / "planted.sh"
    planted.write_text(f'#!/bin/sh\necho "$0 $@" >> "{ran}"\ncat\n')
    planted.chmod(0o755)
    shutil.copy(planted, job / "git")  # found by a relative entry of PATH
    monkeypatch.setenv("PATH", os.pathsep.join([".", "", os.environ["PATH"]]))
    for hook in (
        "post-checkout",
        "post-index-change",
        "pre-commit",
        "reference-transaction",
        "fsmonitor-watchman",
    ):
        shutil.copy(planted, job / ".git" / "hooks" / hook)
    (job / ".git" / "info" / "attributes").write_text("*.py filter=planted diff=planted\n")
    for key, value in {
        "filter.planted.clean": planted, "filter.planted.smudge": planted, "filter.planted.process": planted,
        "filter.planted.required": "true", "diff.planted.textconv": planted, "diff.planted.command": planted,
        "diff.external": planted, "core.fsmonitor": planted, "core.hooksPath": job / ".git" / "hooks",
        "core.pager": planted, "core.sshCommand": planted, "core.editor": planted, "core.askPass": planted,
        "credential.helper": f"!{planted}", "pager.ls-files": planted, "alias.ls-files": f"!{planted}",
        "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{planted}", "remote.origin.uploadpack": planted, "protocol.ext.allow": "always",
        "gpg.program": planted, "core.alternateRefsCommand": planted,
    }.items():  # fmt: skip
        git(job, "config", key, str(value))
    submodule = job / "sub"
    submodule.mkdir()
    (submodule / "x.py").write_text("x = 1\n")
    committed(submodule)
    git(submodule, "config", "core.fsmonitor", str(planted))
    ran.unlink(missing_ok=True)
    assert in_git(job)
    assert uncommitted(job, [job / "train.py"]) is None
    (job / "train.py").write_text("a = 2\n")
    assert "filter is set" in (uncommitted(job, [job / "train.py"]) or "")
    scratch = tmp_path / "scratch"
    if worktree.add(job, scratch):
        worktree.remove(job, scratch)
    with pytest.raises(GitFailed):
        asked(job, "cat-file", "-p", "0123456789012345678901234567890123456789")
    assert not ran.exists(), ran.read_text()


def test_a_repository_of_somebody_else_is_not_believed(job: Path) -> None:
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root can give a repository away")
    for path in [job, *job.rglob("*")]:
        os.chown(path, 1234, 1234, follow_symlinks=False)
    why = state(job) or ""
    assert "cannot be read" in why
    assert "commit" not in why, "which would not help"


def test_files_that_are_no_files_are_not_waited_for(job: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no FIFOs here")
    (job / "pkg" / "model.py").unlink()
    os.mkfifo(job / "pkg" / "model.py")
    assert stat.S_ISFIFO((job / "pkg" / "model.py").stat().st_mode)
    assert "uncommitted" in (state(job) or "")
