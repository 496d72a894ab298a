"""The copy of the user's project that trials run in: the same folders under another root, reset before every run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from trace_doctor.errors import UsageError
from trace_doctor.reporters.units import plural
from trace_doctor.treatment import worktree
from trace_doctor.treatment.copying import Copied, copy_file, copy_tree, looks_written, state, walk

_LEVELS_UP = 3
"""so far above the project its surroundings are there as well: `../data`, `../../shared`"""
_MANY_NEIGHBOURS = 1_000
_LONGEST_TMPDIR = 70
"""characters: the sockets that Python makes in there have room for 108"""


class Scratch:
    """A copy of the git work tree (else of the folder) that `source` lies in.

    Uncommitted changes and untracked files are copied as they are. Where the command runs (`cwd`) has the same place
    beside the copy as in the original, and what else lies around both is linked, so that relative paths lead where they
    did. Temporary files of the runs go to a folder of their own. A context manager: the copy is gone in the end, whatever happened.
    Raises UsageError where it cannot be made.
    """

    def __init__(
        self, source: Path, cwd: Path, *, link: Collection[str] = (), folder: Path | None = None
    ) -> None:
        script_folder = source if source.is_dir() else source.parent
        self._original = (worktree.top(script_folder) or script_folder).resolve()
        common = Path(os.path.commonpath([self._original, cwd.resolve()]))
        self._base = [common, *common.parents][: _LEVELS_UP + 1][-1]
        if folder is not None and folder.resolve().is_relative_to(self._original):
            raise UsageError(f"--scratch {folder}: lies in the folder that is to be copied")
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="trace-doctor-treat-", dir=folder)).resolve()
        except OSError as error:
            raise UsageError(f"cannot make a scratch folder: {error.strerror}") from None
        self._root = self._base_copy / self._original.relative_to(self._base)
        self._worktree = False
        self._around: dict[Path, set[str]] = {}
        """folders in the copy that lie around the project -> names that belong there"""
        self._source = source.resolve()
        try:
            self._root.parent.mkdir(parents=True, exist_ok=True)
            self._worktree = worktree.top(script_folder) is not None and worktree.add(
                self._original, self._root
            )
            self._root.mkdir(exist_ok=True)
            self._copied = copy_tree(self._original, self._root, link)
            self.cwd = self.inside(cwd.resolve())
            self.cwd.mkdir(parents=True, exist_ok=True)
            self._link_around(cwd.resolve())
        except BaseException:
            self.close()
            raise
        self.notes = self._said()

    @property
    def _base_copy(self) -> Path:
        return self.folder / (self._base.name or "root")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._worktree:
            worktree.remove(self._original, self._root)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def source(self) -> Path:
        """The folder or file of the scripts, in the copy."""
        return self.inside(self._source)

    def inside(self, path: Path) -> Path:
        """Where a path at or below the base lies in the copy."""
        return self._base_copy / path.relative_to(self._base)

    def _link_around(self, cwd: Path) -> None:
        """Links what lies beside the project and beside where the command runs, and the same of the folders above."""
        way = {
            folder
            for end in (self._original.parent, cwd)
            for folder in (end, *end.parents)
            if folder.is_relative_to(self._base) and not folder.is_relative_to(self._original)
        }
        for folder in sorted(way):
            names = {p.name for p in self.inside(folder).iterdir()}
            self._around[self.inside(folder)] = names
            try:
                there = sorted(set(os.listdir(folder)) - names)
            except OSError:
                continue
            if len(there) > _MANY_NEIGHBOURS:
                continue
            for name in there:
                if not self.folder.is_relative_to(folder / name) and not looks_written(name):
                    (self.inside(folder) / name).symlink_to(folder / name)
                    names.add(name)

    # ------------------------------------------------------------------ runs

    def prepare(self, files: Mapping[str, bytes]) -> None:
        """Makes the copy as it was, with `files` (names relative to the source folder) in place of its own.

        Raises UsageError where the original changed meanwhile, so that what a run overwrote cannot be brought back.
        """
        self._reset()
        folder = self.source if self._source.is_dir() else self.source.parent
        for name, data in files.items():
            (folder / name).write_bytes(data)

    def _reset(self) -> None:
        for folder, names in self._around.items():
            for path in folder.iterdir():
                if path.name in names:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
        done, seen = self._copied, set()
        for name, entry in list(walk(self._root)):
            seen.add(name)
            path = Path(entry.path)
            if name == ".git" or name.startswith(".git/"):
                continue
            if entry.is_symlink():
                if done.links.get(name) != os.readlink(path):
                    path.unlink()
                    seen.discard(name)
            elif entry.is_dir(follow_symlinks=False):
                if name not in done.folders:
                    shutil.rmtree(path, ignore_errors=True)
            elif done.files.get(name) != state(path):
                path.unlink()
                seen.discard(name)
        for name in sorted(done.folders - seen):
            (self._root / name).mkdir()
        for name in sorted(done.links.keys() - seen):
            (self._root / name).symlink_to(done.links[name])
        for name in sorted(done.files.keys() - seen):
            self._bring_back(name)

    def _bring_back(self, name: str) -> None:
        original = self._original / name
        if not original.is_file() or state(original) != self._copied.originals[name]:
            raise UsageError(f"{name} was changed while its folder was treated: start again")
        copy_file(original, self._root / name, name, self._copied)

    def touched(self) -> list[str]:
        """Linked data of the user's that is not as it was: a run wrote through the link."""
        return [n for n, was in self._copied.linked.items() if _state(self._original / n) != was]

    # ------------------------------------------------------------------ the command

    def command(self, command: Sequence[str], cwd: Path) -> list[str]:
        """The command with paths into the original led into the copy; relative ones stay, unless they lead out of it."""
        return [self._word(word, cwd) for word in command]

    def _word(self, word: str, cwd: Path) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if value and (path := self._path(value, cwd)) is not None:
            return f"{option}{equals}{path}"
        return word

    def _path(self, text: str, cwd: Path) -> str | None:
        """The path in the copy of an absolute one; absolute, of a relative one that is not in the copy. Else None."""
        path = Path(text)
        whole = Path(os.path.normpath(cwd / path))
        within = whole.is_relative_to(self._original)
        if path.is_absolute():
            return str(self.inside(whole)) if within else None
        return None if within or "/" not in text or not whole.exists() else str(whole)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The environment, with Python's search path led into the copy, and a folder for temporary files."""
        changed = {**given, "PWD": str(self.cwd)}
        temporary = self.folder / "tmp"
        if len(str(temporary)) <= _LONGEST_TMPDIR:
            temporary.mkdir(exist_ok=True)
            changed["TMPDIR"] = str(temporary)
        if "PYTHONPATH" in given:
            parts = given["PYTHONPATH"].split(os.pathsep)
            cwd = self._base / self.cwd.relative_to(self._base_copy)
            changed["PYTHONPATH"] = os.pathsep.join(p and (self._path(p, cwd) or p) for p in parts)
        return changed

    def _said(self) -> list[str]:
        done: Copied = self._copied
        kind = "git work tree" if self._worktree else "copy"
        said = [
            f"trials run in a {kind} of {plural(len(done.files), 'file')}; your own files stay as they are"
        ]
        if done.linked:
            said.append(
                f"linked, not copied: {_some(list(done.linked))}; a script that writes there changes your files"
            )
        if done.left_out:
            said.append(
                f"left out, too large for what a run writes: {_some(done.left_out)} (--link NAME to have them)"
            )
        if done.unreadable:
            said.append(f"not readable, left out: {_some(done.unreadable)}")
        return said


def _state(path: Path) -> object:
    try:
        return state(path.resolve())
    except OSError:
        return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
