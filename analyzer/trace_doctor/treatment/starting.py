"""How a command is started in the copy: what its words and its environment say of the project is led into the copy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.treatment.copy.routes import Routes

_LONGEST_PATH = 4_096


@dataclass(frozen=True)
class Start:
    """Starts in the folder `there` of the copy what would be started in `here`."""

    routes: Routes
    here: Path
    there: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """The words; relative paths stay as they are where they lead to the same place of the copy."""
        return [self._word(word) for word in command]

    def environment(self, variables: Mapping[str, str], folders: Sequence[str] = ()) -> dict[str, str]:
        """The variables; `folders` are those of the copy that Python searches after those it is told to."""
        values = {name: self._list(value) for name, value in variables.items()}
        values["PWD"] = str(self.there)
        # in a copy `uv run` would install the copy into the linked environment, in the place of the project
        values.setdefault("UV_NO_SYNC", "1")
        path = variables.get("PYTHONPATH", "").split(os.pathsep) if "PYTHONPATH" in variables else []
        if path or folders:
            paths = [part and (self._path(part) or part) for part in path]
            values["PYTHONPATH"] = os.pathsep.join([*paths, *folders])
        return values

    def _word(self, word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if value and (path := self._path(value)) is not None:
            return f"{option}{equals}{path}"
        return self.routes.mentions(word)

    def _path(self, text: str) -> str | None:
        """The path in the copy of an absolute one, and of a relative one that leads elsewhere in the copy; absolute, that
        of a relative one that is not in the copy. Else None."""
        if os.path.isabs(text):
            return self._absolute(text)
        whole = os.path.join(self.here, text)
        if "/" not in text or len(text) > _LONGEST_PATH or not os.path.exists(whole):
            return None
        target = self.routes.into_copy(whole)
        if target is None:
            return self.routes.final(whole)
        same = os.path.realpath(self.there / text) == os.path.realpath(target)
        return None if same else target

    def _absolute(self, text: str) -> str:
        """An absolute path, or several with something between them, led into the copy."""
        rewrite = self.routes.mentions(text)
        goes_up = ".." in text.split("/")
        if (rewrite != text and not goes_up) or len(text) > _LONGEST_PATH:
            return rewrite
        return self.routes.into_copy(text) or rewrite

    def _list(self, text: str) -> str:
        """A text with the absolute paths in it, alone or in a list, led into the copy."""
        if "://" in text:
            return self.routes.mentions(text)
        return os.pathsep.join(
            self._absolute(part) if os.path.isabs(part) else self.routes.mentions(part)
            for part in text.split(os.pathsep)
        )
