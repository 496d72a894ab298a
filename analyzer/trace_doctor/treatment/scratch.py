"""The copy of the user's project that trials run in: the same folders under another root, reset before every run."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Self

from trace_doctor.errors import UsageError, printable
from trace_doctor.model.treatment import FileChange
from trace_doctor.recording.agent.copy_up import VARIABLE, heard
from trace_doctor.treatment.copy import worktree
from trace_doctor.treatment.copy.confined import Confined, new_root
from trace_doctor.treatment.copy.copying import RESERVE, CopyRecord, copy_file, copy_tree, looks_written
from trace_doctor.treatment.copy.imported import not_imported
from trace_doctor.treatment.copy.notes import CopyNotes, remains
from trace_doctor.treatment.copy.originals import Originals, claim
from trace_doctor.treatment.copy.removal import Leftover
from trace_doctor.treatment.copy.routes import Routes
from trace_doctor.treatment.copy.states import state
from trace_doctor.treatment.starting import Start

LEVELS_UP = 3
"""so far above the project its surroundings are there as well: `../data`, `../../shared`"""
_MANY_NEIGHBOURS = 1_000
_LONGEST_TMPDIR = 70
"""characters: the sockets that Python makes in there have room for 108"""


class Scratch:
    """A copy of the git work tree (else of the folder) that `source` lies in.

    Uncommitted changes and untracked files are copied as they are. Where the command runs (`cwd`) has the same place
    beside the copy as in the original, and what else lies around both is linked, so that relative paths lead where they
    did. Temporary files of the runs go to a folder of their own. A context manager: the copy is gone in the end, whatever
    happened, but for what runs have mounted in it. Raises UsageError where it cannot be made.
    """

    def __init__(
        self,
        source: Path,
        cwd: Path,
        *,
        link: Collection[str] = (),
        copy_data: bool = False,
        folder: Path | None = None,
        imports: Collection[str] = (),
    ) -> None:
        """`imports`: folders that the command's Python imports from because something is installed in place."""
        script_folder = source if source.is_dir() else source.parent
        self._folder = script_folder.resolve()
        self._original = (worktree.top(script_folder) or script_folder).resolve()
        self._cwd = cwd.resolve()
        common = Path(os.path.commonpath([self._original, self._cwd]))
        self._base = [common, *common.parents][: LEVELS_UP + 1][-1]
        self._single = "" if source.is_dir() else source.name
        self.folder = new_root(folder, self._original)
        self._tree = Confined(self.folder)
        way = self._way()
        self._routes = Routes(self._original, self._base, self._base_copy, way)
        for path in (source.absolute(), cwd.absolute(), Path(os.environ.get("PWD", "."))):
            self._routes.spell(path)
        self._root = self.inside(self._original)
        self._at = self._name(self._root)
        self._lock: int | None = None
        self._worktree = self._kept_writes = False
        self._worktrees_before: list[str] = []
        self._worktrees_left: list[str] = []
        self._leftovers: list[Leftover] | None = None
        """of the copy, when it was taken away; None until then"""
        self._covered = False
        """whether something else lay in the copy's place by then"""
        self._import_folders: list[str] = []
        """folders of the copy that Python is to search"""
        try:
            self._lock = claim(self._original)
            self._root.parent.mkdir(parents=True, exist_ok=True)
            if worktree.top(script_folder) is not None:
                self._worktrees_before = worktree.known(self._original)
                self._worktree = worktree.add(self._original, self._root)
            self._root.mkdir(exist_ok=True)
            search = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *imports]
            used = [self._folder] + [self._cwd] * (self._cwd not in [self._folder, *self._folder.parents])
            beside = not_imported(self._original, used, map(Path, filter(os.path.isabs, search)))
            self._record = copy_tree(
                self._original, self._tree, self._at, self._routes, link=link, data=copy_data, beside=beside
            )  # fmt: skip
            self.cwd = self._make_cwd()
            self._folders, self._links, self._beside = self._link_neighbours(way)
            self._really_outward()
            self._originals = Originals(self._original, self._record.originals, self._behind(), [self.folder])
        except BaseException:
            self.close()
            raise
        copy_notes = CopyNotes(self._record, self._worktree, self._beside, self._originals.blind_spots)
        self.notes, self.details, self.asked = copy_notes.notes(), copy_notes.details(), self._record.asked

    @property
    def _base_copy(self) -> Path:
        return self.folder / (self._base.name or "root")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the copy away, as far as it is ours; git forgets the work tree, and deletes nothing itself."""
        if self._leftovers is not None:
            return
        leftovers = self._tree.clear()
        if self._worktree and not os.path.lexists(self._root):
            self._worktrees_left = worktree.remove_gone(self._original, self._worktrees_before)
            self._worktree = False
        self._covered = not self._tree.is_at(self.folder)
        try:
            if not self._covered:
                os.rmdir(self.folder)
        except OSError as error:
            leftovers = leftovers or [Leftover("", error.strerror or str(error), mounted=False)]
        self._tree.close()
        self._leftovers = leftovers
        if self._lock is not None:
            os.close(self._lock)

    @property
    def mounted(self) -> list[str]:
        """Where something is mounted that runs have left in the copy, once this is closed."""
        if self._covered:
            return [str(self.folder)] * os.path.lexists(self.folder)
        return [str(self.folder / one.name) for one in self._leftovers or () if one.mounted]

    def leftovers(self) -> list[str]:
        """What could not be taken away with the copy, a line for each kind."""
        if self._covered:
            return [
                f"a run has moved the copy away from {self.folder}, or mounted something over it: what lies there now may be "
                "yours and is left"
            ]
        lines = [
            f"a run made or moved a git work tree, which is left: {path}" for path in self._worktrees_left
        ]
        return lines + remains(self.folder, self._leftovers or (), self._worktree)

    @property
    def source(self) -> Path:
        """The folder or file of the scripts, in the copy."""
        return self.inside(self._folder) / self._single

    def inside(self, path: Path) -> Path:
        """Where a path at or below the base lies in the copy."""
        return self._routes.inside(path)

    def _name(self, path: Path) -> str:
        """A path in the copy relative to the scratch folder."""
        return path.relative_to(self.folder).as_posix()

    # ------------------------------------------------------------------ what is around the project

    def _way(self) -> set[Path]:
        """Folders around the project, and around where the command runs, up to the base."""
        return {
            folder
            for end in (self._original.parent, self._cwd)
            for folder in (end, *end.parents)
            if folder.is_relative_to(self._base) and not folder.is_relative_to(self._original)
        }

    def _make_cwd(self) -> Path:
        """Where the command runs, a folder of the copy. Raises UsageError where that is linked."""
        cwd = self.inside(self._cwd)
        for folder in [*reversed(cwd.parents), cwd]:
            if not folder.is_relative_to(self._base_copy):
                continue
            there = self._tree.state(self._name(folder))
            if there is None:
                self._tree.make_folder(self._name(folder))
            elif not stat.S_ISDIR(there.st_mode):
                raise UsageError(
                    f"the command runs in {self._cwd}, which is linked into the copy: see --copy-data"
                )
            if folder.is_relative_to(self._root) and folder != self._root:
                self._record.folders.add(folder.relative_to(self._root).as_posix())
        return cwd

    def _link_neighbours(self, way: set[Path]) -> tuple[set[str], dict[str, str], dict[str, list[str]]]:
        """Links what lies beside the project and beside where the command runs, and the same of the folders above. The
        folders and links of the copy that are made for it, and the names that are linked, by their folder."""
        folders = {self._name(self.inside(f)) for f in way}
        links: dict[str, str] = {}
        beside: dict[str, list[str]] = {}
        for folder in sorted(way):
            here = self._name(self.inside(folder))
            names = {name for name, _ in self._tree.entries(here)}
            try:
                there = sorted(set(os.listdir(folder)) - names)
            except OSError:
                continue
            if len(there) > _MANY_NEIGHBOURS:
                continue
            for name in there:
                neighbour = folder / name
                if self.folder.is_relative_to(neighbour) or looks_written(name):
                    continue
                target = self._routes.into_copy(str(neighbour), around=True)
                links[f"{here}/{name}"] = target or str(neighbour)
                self._tree.make_link(f"{here}/{name}", links[f"{here}/{name}"])
                beside.setdefault(str(folder), []).append(name)
        return folders, links, beside

    def _really_outward(self) -> None:
        """A link to a link that was left out leads to what is in its place."""
        outward = self._record.outward
        for name in [
            n for n in outward if Path(os.path.realpath(self._root / n)).is_relative_to(self.folder)
        ]:
            del outward[name]

    def _behind(self) -> dict[str, str | None]:
        """What a run can write through a link -> where it leads, outside of the project."""
        record = self._record
        linked = (*record.shared_data, *record.asked, *record.not_imported, *record.environments)
        return dict.fromkeys(linked) | record.outward

    # ------------------------------------------------------------------ runs

    def prepare(self, files: Mapping[str, bytes]) -> None:
        """Makes the copy as it was, with `files` (names relative to the source folder) in place of its own.

        Nothing is written outside of the copy, and nothing through a link. Raises UsageError where the original changed
        meanwhile, so that what a run overwrote cannot be brought back, and where a run left what cannot be undone.
        """
        try:
            self._reset()
            for name, data in files.items():
                if self.refuses(name):
                    raise UsageError(f"{name}: {self.refuses(name)}")
                self._tree.replace(self._name(self._edit_target(name)), data)
        except OSError as error:
            raise UsageError(f"cannot put the copy back as it was: {error.strerror or error}") from None

    def refuses(self, name: str) -> str:
        """Why a file of the source folder cannot be edited in the copy; empty where it can."""
        path = self._edit_target(name)
        if not path.is_relative_to(self._root):
            return "it is a link that leads out of the project; it is left alone"
        if path.relative_to(self._root).as_posix() not in self._record.files:
            return "it is linked into the copy, not copied; it is left alone"
        return ""

    def fingerprint(self, command: str) -> str:
        """Of a command and of the scripts and configuration in the copy, as they were when they were read."""
        return self._record.fingerprint(command)

    def names_of(self, loaded: Iterable[str]) -> list[str]:
        """Which files of the source folder runs have loaded, by name relative to it."""
        top = os.path.realpath(self.inside(self._folder))
        return sorted(os.path.relpath(file, top) for file in loaded if Path(file).is_relative_to(top))

    def loaded_instead(self, name: str, loaded: Collection[str]) -> str:
        """The file outside of the copy that runs have loaded where one of the source folder is meant; empty where they have
        loaded that, or none of its name. `loaded`: without links."""
        ours = os.path.realpath(self._edit_target(name))
        count = 2 if ours.endswith("__init__.py") else 1
        if ours in loaded:
            return ""
        last = Path(ours).parts[-count:]
        others = (f for f in sorted(loaded) if Path(f).parts[-count:] == last)
        return next((f for f in others if not Path(f).is_relative_to(self.folder)), "")

    def _edit_target(self, name: str) -> Path:
        """The file of the copy that stands for one of the source folder, links of the project followed."""
        real = Path(os.path.realpath(self._folder / name))
        return self.inside(real) if real.is_relative_to(self._original) else real

    def _reset(self) -> None:
        if not self._tree.is_at(self.folder):
            raise UsageError(f"a run moved the copy away from {self.folder}: start again")
        record, at = self._record, self._at
        folders = self._folders | {at} | {f"{at}/{name}" for name in record.folders}
        links = self._links | {f"{at}/{name}": where for name, where in record.links.items()}
        files = {f"{at}/{name}": was for name, was in record.files.items()}
        as_it_was = self._clear(folders, links, {**files})
        for name in sorted(folders - as_it_was):
            self._tree.make_folder(name)
        for name in sorted(links.keys() - as_it_was):
            self._tree.make_link(name, links[name])
        for name in sorted(record.files.keys() - {n.removeprefix(f"{at}/") for n in as_it_was}):
            self._bring_back(name)

    def _clear(
        self, folders: Collection[str], links: Mapping[str, str], files: Mapping[str, object]
    ) -> set[str]:
        """Takes away what does not belong into the copy; the names of what is as it was."""
        names: set[str] = set()
        todo = [self._name(self._base_copy)]
        top = self._tree.state(todo[0])
        if top is None or not stat.S_ISDIR(top.st_mode):
            if top is not None:
                self._tree.remove(todo[0])
            return names
        names.add(todo[0])
        while todo:
            folder = todo.pop()
            for last, info in self._tree.entries(folder):
                name = f"{folder}/{last}"
                if self._worktree and name == f"{self._at}/.git":
                    continue
                if (
                    stat.S_ISDIR(info.st_mode)
                    and info.st_mode & stat.S_IRWXU == stat.S_IRWXU
                    and name in folders
                ):
                    todo.append(name)
                elif stat.S_ISLNK(info.st_mode) and name in links:
                    if self._tree.target(name) != links[name]:
                        self._tree.remove(name)
                        continue
                elif not stat.S_ISREG(info.st_mode) or files.get(name) != state(info):
                    self._tree.remove(name)
                    continue
                names.add(name)
        return names

    def _bring_back(self, name: str) -> None:
        record = self._record
        was = record.originals[name]
        now = CopyRecord()
        copy_file(self._original, name, self._tree, f"{self._at}/{name}", now)
        if now.originals.get(name) != was:
            raise UsageError(f"{name} was changed while its folder was treated: start again")
        record.files[name] = now.files[name]

    def changes(self) -> list[FileChange]:
        """Files of the user's that are not as they were."""
        return self._originals.changes()

    def writes(self, folder: Path) -> None:
        """Has what we write into this folder ourselves be no change of the user's files."""
        self._originals.ours.append(folder.resolve())

    def keep_writes(self, allow: bool) -> None:
        """Has the copy get a file of its own before a run writes through a link; `allow`: where it cannot, it writes through."""
        linked = (self._original / name for name in (*self._record.environments, *self._record.asked))
        settings = {
            "root": str(self.folder),
            "project": str(self._original),
            "passed": [*map(os.path.realpath, linked), *map(str, self._originals.ours)],
            "log": str(self.folder / "writes.jsonl"),
            "reserve": RESERVE,
            "allow": allow,
        }
        (self.folder / "writes.json").write_text(json.dumps(settings), encoding="utf-8")
        self._kept_writes = True

    def writes_of_runs(self, event: str) -> list[str]:
        """Files of the user's that runs were to write to, by what happened: `copied`, `refused`, `allowed`."""
        return sorted(heard(str(self.folder / "writes.jsonl")).get(event, ()))

    def drop_folder(self, name: str) -> None:
        """Takes a folder beside the copy away, as far as that can be done now."""
        with suppress(OSError):
            self._tree.remove(name)

    def new_folder(self, name: str) -> Path:
        """A folder beside the copy for what is recorded of a run. Raises UsageError where a run left something in the way."""
        try:
            for above in (*reversed(PurePosixPath(name).parents[:-1]), PurePosixPath(name)):
                there = self._tree.state(str(above))
                if there is None or not stat.S_ISDIR(there.st_mode):
                    self._tree.make_folder(str(above))
        except OSError as error:
            raise UsageError(f"cannot make a folder for a run: {error.strerror or error}") from None
        return self.folder / name

    # ------------------------------------------------------------------ the command

    def command(self, command: Sequence[str], cwd: Path) -> list[str]:
        """The command with paths into the original led into the copy."""
        return Start(self._routes, cwd, self.cwd).command(command)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment with the project's paths led into the copy, and a folder for temporary files."""
        values = Start(self._routes, self._cwd, self.cwd).environment(variables, self._import_folders)
        temporary = self.folder / "tmp"
        if len(str(temporary)) <= _LONGEST_TMPDIR:
            temporary.mkdir(exist_ok=True)
            values["TMPDIR"] = str(temporary)
        if self._kept_writes:
            values[VARIABLE] = str(self.folder / "writes.json")
        return values

    def import_from(self, folders: Iterable[str]) -> None:
        """Has Python find in the copy what it would find in these folders, as far as they lie in the project."""
        routes = self._routes
        targets = {f: to for f in folders if routes.within(routes.final(f)) and (to := routes.into_copy(f))}
        self._import_folders = list(dict.fromkeys(targets.values()))
        if targets:
            self.notes.append(printable(f"installed in place, imported from the copy: {', '.join(targets)}"))
