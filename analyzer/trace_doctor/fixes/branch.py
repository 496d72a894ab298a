"""A branch with one commit for each fix, made of git objects alone.

HEAD, the index and the work tree have no part in it: the trees are those of HEAD with other blobs in them, and what is written besides
objects is the branch itself. No hook, filter, monitor or signing program of the repository runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trace_doctor.errors import UsageError, one_line
from trace_doctor.fixes.plan import Plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.git import GitFailed, git, top
from trace_doctor.program.text_file import TextFile

_OWN_IDENTITY = ("-c", "user.useConfigOnly=true")
"""git would make an address of the machine's name where none is set"""


_LONGEST_NAME = 200
"""bytes: the name of a branch is that of a file, and git writes one more beside it"""


class _Entry(NamedTuple):
    mode: bytes
    kind: bytes
    digest: bytes


def check_branch(folder: Path, name: str) -> None:
    """Raises UsageError where no branch of that name can be made, which is known before an hour of trials."""
    try:
        root = top(folder)
        git(root, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
    except GitFailed:
        raise UsageError(f"--branch: {folder} is in no git work tree with a commit") from None
    try:
        said = git(root, "check-ref-format", "--branch", name).decode("utf-8", "replace").rstrip("\n")
    except GitFailed:
        said = ""
    # git understands @{-1} as the name of another branch, and a branch named refs/heads/x is taken for the ref of x
    odd = name in ("", "@", "HEAD") or name.startswith("refs/") or len(name.encode()) > _LONGEST_NAME
    if odd or said != name or not name.isprintable():
        raise UsageError(f"--branch: {one_line(name)!r} is no name for a branch")
    if taken := _taken(root, name):
        raise UsageError(f"--branch: there is a branch {one_line(taken)} already")
    for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
        try:
            git(root, *_OWN_IDENTITY, "var", who)
        except GitFailed:
            raise UsageError(
                "--branch: git does not know who commits: set user.name and user.email"
            ) from None


def _taken(root: Path, name: str) -> str:
    """A branch that stands in the way: of that name, below it, or above it."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        ref = "refs/heads/" + "/".join(parts[:end])
        listed = git(root, "for-each-ref", "--count=1", "--format=%(refname)", ref).decode().strip()
        if listed and (end == len(parts) or listed == ref):
            return listed.removeprefix("refs/heads/")
    return ""


def check_files(plan: Plan, files: Iterable[TextFile]) -> None:
    """Raises UsageError where a file that is to be edited is not what HEAD has: a commit of it would hold the other changes too."""
    try:
        root = top(plan.tree.root)
        _check(root, _tree_of(root, "HEAD"), plan, files)
    except GitFailed as why:
        raise UsageError(f"--branch: git cannot tell: {one_line(str(why))}") from None


def make_branch(plan: Plan, name: str, messages: Sequence[tuple[PlannedFix, str]]) -> list[str]:
    """The commits, oldest first, each of one fix (with its message) on top of those before it; the first is on HEAD. A fix that edits
    nothing has none, and without any there is no branch. Raises UsageError, with no branch made, as `check_branch` and `check_files`."""
    root = plan.tree.root
    check_branch(root, name)
    try:
        root = top(root)
        parent = git(root, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
        tree = base = _tree_of(root, parent)
        _check(root, base, plan, [file for file, _ in plan.outputs.values()])
        commits = []
        for count, (_, message) in enumerate(messages, 1):
            outputs = plan.only([item for item, _ in messages[:count]]).outputs
            blobs = {
                _parts(plan, file): git(root, "hash-object", "-w", "--stdin", input_bytes=data).strip()
                for file, (_, data) in outputs.items()
            }
            if (after := _tree_with(root, base, blobs) if blobs else base) == tree:
                continue
            tree = after
            command = ("-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree.decode(), "-p", parent)
            parent = git(root, *_OWN_IDENTITY, *command, input_bytes=message.encode()).decode().strip()
            commits.append(parent)
        if commits:
            git(
                root,
                "update-ref",
                "-m",
                "trace-doctor treat",
                f"refs/heads/{name}",
                parent,
                "0" * len(parent),
            )
    except GitFailed as why:
        raise UsageError(f"--branch: git cannot make it: {one_line(str(why))}") from None
    return commits


def _check(root: Path, tree: bytes, plan: Plan, files: Iterable[TextFile]) -> None:
    for file in files:
        entry, name = _found(root, tree, _parts(plan, file.name)), one_line(file.name)
        if entry is None or not entry.mode.startswith(b"100"):
            raise UsageError(f"--branch: {name} is not committed to git: commit it first")
        if git(root, "hash-object", "--stdin", input_bytes=file.data).strip() != entry.digest:
            raise UsageError(f"--branch: {name} differs from HEAD: commit or stash first")


def _parts(plan: Plan, name: str) -> tuple[bytes, ...]:
    """The path of a file from the top of the work tree."""
    return tuple(os.fsencode(plan.prefix + name).split(b"/"))


def _tree_of(root: Path, commit: str) -> bytes:
    return git(root, "rev-parse", "--verify", f"{commit}^{{tree}}").strip()


def _entries(root: Path, tree: bytes) -> dict[bytes, _Entry]:
    lines = git(root, "ls-tree", "-z", tree.decode()).split(b"\0")
    return {
        name: _Entry(*head.split()) for head, _, name in (line.partition(b"\t") for line in lines) if head
    }


def _found(root: Path, tree: bytes, parts: Sequence[bytes]) -> _Entry | None:
    entry = _entries(root, tree).get(parts[0])
    if len(parts) == 1 or entry is None:
        return entry if len(parts) == 1 else None
    return _found(root, entry.digest, parts[1:]) if entry.kind == b"tree" else None


def _tree_with(root: Path, tree: bytes, blobs: Mapping[tuple[bytes, ...], bytes]) -> bytes:
    """The tree with other contents of files that it has; their modes stay."""
    entries = _entries(root, tree)
    below: dict[bytes, dict[tuple[bytes, ...], bytes]] = {}
    for (name, *rest), blob in blobs.items():
        if rest:
            below.setdefault(name, {})[tuple(rest)] = blob
        else:
            entries[name] = entries[name]._replace(digest=blob)
    for name, contents in below.items():
        entries[name] = entries[name]._replace(digest=_tree_with(root, entries[name].digest, contents))
    lines = (b"%s %s %s\t%s\0" % (*entry, name) for name, entry in entries.items())
    return git(root, "mktree", "-z", "--missing", input_bytes=b"".join(lines)).strip()
