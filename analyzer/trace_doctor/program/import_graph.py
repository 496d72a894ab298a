"""Which files of a source folder one program consists of: what a script imports, and who imports it.

Read from the text of the import statements, so that a folder of thousands of files costs no parsing. A line in a
docstring that looks like an import only adds a file to a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]*(?:\((?P<many>[^)]*)\)|(?P<one>[^\r\n#;]*))"
    rb"|import[ \t]+(?P<modules>[^\r\n#;]*))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")
_TARGET = re.compile(rb"^\s*_target_\s*:\s*[\"']?([\w.]+)", re.MULTILINE)
"""a class that hydra constructs by its dotted name"""
_SOURCE_ROOTS = ("src", "lib", "python")
_TOP_LEVEL = re.compile(
    rb"^(?:if[ (]+__name__|for |while |with |try:|\w[\w.]*\(|\w[\w.]* *= *[\w.]+\()", re.MULTILINE
)
"""a statement at module level that is no import, definition or constant"""
_TEST = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*$|[^/]*_test\.py$|conftest\.py$)")


class ImportGraph:
    """Imports among the Python files of a folder.

    `data` gives the bytes of a file by its name. `configs` are texts of YAML files whose `_target_` names classes.
    """

    def __init__(
        self,
        files: Sequence[str],
        data: Callable[[str], bytes],
        configs: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        self._files = files
        self._data = data
        self._configs = configs

    @cached_property
    def _by_module(self) -> dict[str, list[str]]:
        """Last part of a module's name -> the files that can be it."""
        by_last: dict[str, list[str]] = {}
        for name in self._files:
            path = PurePosixPath(name)
            last = path.parent.name if path.name == "__init__.py" else path.stem
            by_last.setdefault(last, []).append(name)
        return by_last

    def resolve(self, module: str, importer: str) -> str | None:
        """The file that an absolute (`a.b`) or relative (`..b`) module name means in a file; None for foreign modules.

        Looked for beside the importing file (Python puts the started script's folder first), then in each folder
        above it and in their `src`.
        """
        level = len(module) - len(module.lstrip("."))
        parts = tuple(p for p in module[level:].split(".") if p)
        if not level and (not parts or parts[-1] not in self._by_module):
            return None
        here = PurePosixPath(importer).parent
        if level:
            folder = here
            for _ in range(level - 1):
                folder = folder.parent
            return self._at(folder, parts)
        for folder in (here, *here.parents):
            for root in (folder, *(folder / s for s in _SOURCE_ROOTS)):
                if (file := self._at(root, parts)) is not None:
                    return file
        return None

    def _at(self, folder: PurePosixPath, parts: tuple[str, ...]) -> str | None:
        base = folder.joinpath(*parts)
        for path in (base.with_name(f"{base.name}.py") if base.name else None, base / "__init__.py"):
            if path is not None and path.as_posix() in self._names:
                return path.as_posix()
        return None

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._files)

    @cached_property
    def imports(self) -> dict[str, frozenset[str]]:
        """File -> the files of the folder that it imports, packages' `__init__` on the way included."""
        hydra_targets = [target for text in self._configs() for target in _TARGET.findall(text)]
        graph: dict[str, frozenset[str]] = {}
        for name in self._files:
            data = self._data(name)
            modules = set(imported_names(data))
            if b"hydra" in data:
                modules |= {target.decode().rpartition(".")[0] for target in hydra_targets}
            files = {file for module in modules for file in self._chain(module, name)}
            graph[name] = frozenset(files - {name})
        return graph

    def _chain(self, module: str, importer: str) -> Iterator[str]:
        """The file of a module and of the packages around it."""
        dots = module[: len(module) - len(module.lstrip("."))]
        parts = module[len(dots) :].split(".") if module[len(dots) :] else []
        for end in range(0 if dots else 1, len(parts) + 1):
            file = self.resolve(dots + ".".join(parts[:end]), importer)
            if file is not None:
                yield file

    @cached_property
    def importers(self) -> dict[str, frozenset[str]]:
        """File -> the files that import it. Tests start no training."""
        graph: dict[str, set[str]] = {name: set() for name in self._files}
        for name, targets in self.imports.items():
            for file in targets if not _TEST.search(name) else ():
                graph[file].add(name)
        return {name: frozenset(files) for name, files in graph.items()}

    def started_scripts(self, names: Iterable[str]) -> list[str]:
        """The scripts that can be the started ones of programs that hold these files: those that do something when
        run and import them. Files that no such script reaches are loaded by name: any script can be theirs."""
        above = sorted(self._closure(names, self.importers))
        return [n for n in above if self._does_something(n)] or [
            n for n in self._files if self._does_something(n)
        ]

    def program(self, names: Sequence[str]) -> list[str]:
        """All files of the programs that hold these files: their started scripts and everything those import."""
        files = self._closure(self.started_scripts(names), self.imports)
        return sorted(files) if files.issuperset(names) else list(self._files)

    def reach(self, names: Iterable[str]) -> list[str]:
        """Scripts and everything they import."""
        return sorted(self._closure(names, self.imports))

    def reaching(self, names: Iterable[str]) -> set[str]:
        """These files and all that import them, tests too."""
        return self._closure(names, self._all_importers)

    @cached_property
    def _all_importers(self) -> dict[str, list[str]]:
        graph: dict[str, list[str]] = {name: [] for name in self._files}
        for name, targets in self.imports.items():
            for file in targets:
                graph[file].append(name)
        return graph

    def _does_something(self, name: str) -> bool:
        return _TOP_LEVEL.search(self._data(name)) is not None

    @staticmethod
    def _closure(names: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
        closure: set[str] = set()
        open_ = [n for n in names if n in edges]
        while open_:
            name = open_.pop()
            if name not in closure:
                closure.add(name)
                open_.extend(edges[name])
        return closure


def imported_names(data: bytes) -> Iterator[str]:
    """Dotted names that a file's import statements may load: for `from a import b` both `a` and `a.b`."""
    for match in _IMPORT.finditer(data):
        if match["modules"] is not None:
            for part in match["modules"].decode("latin-1").split(","):
                yield part.split(" as ")[0].strip()
            continue
        module = match["module"].decode("latin-1")
        names = _COMMENT.sub("", (match["many"] or match["one"] or b"").decode("latin-1"))
        yield module
        for name in names.replace("\\", " ").split(","):
            words = name.split()
            if words and words[0].isidentifier():
                yield f"{module}{'' if module.endswith('.') else '.'}{words[0]}"
