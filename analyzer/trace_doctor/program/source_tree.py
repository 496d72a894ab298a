"""The folder of the user's scripts: which files belong to it, and which of them a capture's path means.

Links are never followed and nothing outside the folder is ever opened.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from trace_doctor.errors import UnreadableScript, UsageError, printable
from trace_doctor.files import is_utf8, open_regular, read_regular
from trace_doctor.program.import_graph import ImportGraph

if TYPE_CHECKING:
    from trace_doctor.program.script import Script
    from trace_doctor.program.text_file import TextFile

F = TypeVar("F")
MAX_FILES = 20_000
MAX_BYTES = 1_000_000
MAX_PARSED = 2_500_000
"""Bytes of all scripts that are parsed: a minute. Programs have less; a folder of more holds other things."""
MAX_ALIKE = 50
"""Files that a path can mean which are parsed to see in which of them its function stands."""
_NARROW = "give a smaller --source, or --script"
CONFIG_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".json", ".yaml", ".yml", "Dockerfile", "Makefile")
_MAX_OTHERS, _MAX_SEARCHED = 2_000, 32_000_000
"""files of other kinds, and their bytes, that are searched for a name"""
_NO_SETTINGS = (".py", ".pyc", ".md", ".rst", ".html")
SKIPPED = frozenset(
    ["__pycache__", "site-packages", "dist-packages", "node_modules", "build", "dist", "venv", "env"]
)


class SourceTree:
    """Python files below a folder, or one file. Raises UsageError when there is neither."""

    def __init__(self, source: Path) -> None:
        if not source.exists():
            raise UsageError(f"--source {source}: no such folder or file")
        if not source.is_dir() and not source.is_file():
            raise UsageError(f"--source {source}: neither a folder nor a file")
        if source.is_file() and not is_utf8(source.name):
            raise UsageError(f"--source {source}: its name is not UTF-8; rename it")
        source = source.absolute()  # an edit may come after the program went to another folder
        self.single = None if source.is_dir() else source
        self.root = source if source.is_dir() else source.parent
        self.unreadable: dict[str, str] = {}
        self._scripts: dict[str, Script | None] = {}
        self._bytes: dict[str, bytes] = {}
        self._bytes_parsed = 0
        self._unparsed: set[str] = set()

    @cached_property
    def files(self) -> list[str]:
        """Names of the scripts, relative to `root` with forward slashes, sorted."""
        return self._all[:MAX_FILES]

    @cached_property
    def _all(self) -> list[str]:
        return sorted(self._walk()) if self.single is None else [self.single.name]

    @property
    def notes(self) -> list[str]:
        """One line for each script that was left alone, and one for all that are beyond what is looked at."""
        lines = [self.unreadable[name] for name in sorted(self.unreadable) if name not in self._unparsed]
        if self._unparsed:
            size = f"{MAX_PARSED / 1e6:g} MB"
            lines.append(f"{_scripts(len(self._unparsed))} left alone, {size} of others were read: {_NARROW}")
        if self.left_out:
            lines.append(f"{_scripts(self.left_out)} left alone, {MAX_FILES:,} others are there: {_NARROW}")
        return lines

    @property
    def left_out(self) -> int:
        """How many scripts the folder has beyond those that are looked at."""
        return max(len(self._all) - MAX_FILES, 0)

    @cached_property
    def others(self) -> list[str]:
        """Names of the launch scripts and configuration files beside the scripts, sorted."""
        return [] if self.single is not None else sorted(self._walk(CONFIG_SUFFIXES))[:MAX_FILES]

    def not_checked(self, words: Sequence[str]) -> str:
        """Which other files hold one of these words (environment files, units, workflows, scripts of other shells), in words, and
        which of them cannot be read; of a script alone that none was searched."""
        if self.single is not None:
            return "no other file was searched (--script)"
        checked = {name for name in self.others if self.text(name) is not None}
        names = {*islice(self._walk(("",), hidden=True), MAX_FILES)} - checked
        ordered = sorted((n for n in names if not n.endswith(_NO_SETTINGS)), key=lambda n: (n.count("/"), n))
        needle = re.compile(b"|".join(re.escape(word.encode()) for word in words))
        named, closed, left = list[str](), list[str](), _MAX_SEARCHED
        for name in ordered[:_MAX_OTHERS]:
            try:
                data = read_regular(self.path(name), MAX_BYTES) if left > 0 else b""
            except OSError as error:
                closed += [name] if error.errno != errno.EFBIG or name in self.others else []
                continue
            left -= len(data)
            if (match := needle.search(data)) is not None:
                line = data.count(b"\n", 0, match.start()) + 1
                named.append(f"{name}:{line}")
        parts = [f"also set in {_some(named)}, not checked"] if named else []
        parts += [f"{_some(closed)} cannot be read"] if closed else []
        parts += ["not all other files were searched"] if len(ordered) > _MAX_OTHERS or left <= 0 else []
        return "; ".join(parts)

    def _walk(self, suffixes: tuple[str, ...] = (".py",), *, hidden: bool = False) -> Iterator[str]:
        folders = [self.root]
        while folders:  # os.walk calls itself before Python 3.12
            with suppress(OSError), os.scandir(folders.pop()) as entries:  # what cannot be read ends there
                for entry in entries:
                    path = Path(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        folders += [] if self._skip(path, hidden) else [path]
                    elif entry.name.endswith(suffixes) and not entry.is_symlink():
                        if not entry.is_file(follow_symlinks=False):
                            self._leave_alone(path, "not a regular file", unsaid=hidden)
                            continue
                        name = path.relative_to(self.root).as_posix()
                        if is_utf8(name):
                            yield name
                        else:  # no result, patch or report could name it
                            self._leave_alone(path, "its name is not UTF-8", unsaid=hidden)

    def _leave_alone(self, path: Path, why: str, *, unsaid: bool) -> None:
        if not unsaid:
            label = printable(path.relative_to(self.root).as_posix())
            self.unreadable[label] = f"{label}: {why}; it is left alone"

    @cached_property
    def imports(self) -> ImportGraph:
        """Which scripts import which."""

        def configs() -> Iterator[bytes]:
            return (self.data(n) for n in self.others if n.endswith((".yaml", ".yml")))

        return ImportGraph(self.files, self.data, configs)

    def text(self, name: str) -> TextFile | None:
        """A launch script or configuration file by its name, or None when it is no text."""
        from trace_doctor.program.text_file import TextFile

        return self._read(name, TextFile)

    def _read(self, name: str, kind: Callable[[bytes, str, Path], F]) -> F | None:
        """A file by its name, or None (and a line in `unreadable`) where it is none of this kind."""
        data = self.data(name)
        try:
            return None if name in self.unreadable else kind(data, name, self.path(name))
        except UnreadableScript as error:
            self.unreadable[name] = str(error)
            return None

    @staticmethod
    def _skip(folder: Path, hidden: bool) -> bool:
        is_hidden = folder.name.startswith(".") and (not hidden or folder.name == ".git")
        return folder.name in SKIPPED or is_hidden or os.path.exists(folder / "pyvenv.cfg")

    def path(self, name: str) -> Path:
        """The root with a name of `files` or `others`."""
        return self.root / name

    def data(self, name: str) -> bytes:
        """Bytes of a script as first read; empty for one that is too large or unreadable."""
        if name not in self._bytes:
            content, why = b"", ""
            try:
                with open_regular(self.path(name)) as file:
                    content = file.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    why = f"larger than {MAX_BYTES // 1_000_000} MB; it is left alone"
            except OSError as error:
                why = error.strerror or "cannot be read"
            self._bytes[name] = b"" if why else content
            if why:
                self.unreadable[name] = f"{name}: {why}"
        return self._bytes[name]

    def script(self, name: str) -> Script | None:
        """The script by its name, or None (and a line in `unreadable`) when it cannot be parsed."""
        if name not in self._scripts:
            from trace_doctor.program.script import Script

            self._bytes_parsed += len(self.data(name))
            if self._bytes_parsed > MAX_PARSED:
                self._unparsed.add(name)
                self.unreadable[name] = (
                    f"{name} is left alone: {MAX_PARSED / 1e6:g} MB of others were read; {_NARROW}"
                )
            self._scripts[name] = self._read(name, Script)
        return self._scripts[name]

    def scripts_with(self, *words: str, among: Iterable[str] | None = None) -> list[Script]:
        """Scripts (of these names) whose bytes hold one of these words (a cheap test before parsing)."""
        needles = [w.encode() for w in words]
        files = self.files if among is None else sorted(among)
        names = [n for n in files if any(w in self.data(n) for w in needles)]
        return [s for s in map(self.script, names) if s is not None]

    def matches(self, path: str, function: str | None = None, line: int | None = None) -> list[str]:
        """Names of the files that a path of a capture can mean: those that share the longest suffix with it.

        Several are narrowed by the function that stands on the line. One element is an answer, more are a doubt.
        """
        parts = PurePosixPath(path.replace("\\", "/")).parts
        if "/".join(parts) in self.files:
            return ["/".join(parts)]  # the profiler strips sys.path, so this is how a script names itself
        by_score: dict[int, list[str]] = {}
        for name in self.files:
            score = _common_suffix((self._root_name, *name.split("/")), parts)
            if score:
                by_score.setdefault(score, []).append(name)
        if not by_score:
            return []
        best = by_score[max(by_score)]
        if len(best) == 1 or not function or not line:
            return best
        best = [n for n in best if function.split(".")[-1].encode() in self.data(n)] or best
        if len(best) > MAX_ALIKE:
            return best
        scripts = [s for s in map(self.script, best) if s is not None]
        return [s.name for s in scripts if same_function(s.enclosing_function(line), function)] or best

    @cached_property
    def _root_name(self) -> str:
        """In front of the names of files, so that `proj/train.py` matches `/home/x/proj/train.py` further."""
        return self.root.resolve().name


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _scripts(count: int) -> str:
    return f"{count:,} script{' is' if count == 1 else 's are'}"


def same_function(in_script: str | None, in_capture: str | None) -> bool:
    """Whether a function of the script is the one that a capture names, as far as both know it."""
    if not in_capture or in_capture in ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<lambda>"):
        return in_script is None or in_capture != "<module>"
    if in_script is None:
        return False
    return in_script.split(".")[-1] == in_capture.replace("<locals>.", "").split(".")[-1]


def _common_suffix(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(reversed(a), reversed(b), strict=False))))
