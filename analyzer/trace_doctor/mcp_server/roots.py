"""The folders that a server may read: every path of a call is resolved through links and has to lie below one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.loaders.places import is_skipped

_MOST_ENTRIES = 100_000
"""entries of a folder that are looked at for links; a larger one is refused, for nobody knows where it leads"""


class Roots:
    """The folders given at start. Relative paths of a call are below the first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises UsageError where one is no folder."""
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{folder} is no folder")
        self.folders = [folder.resolve() for folder in folders]

    def inside(self, text: str) -> Path:
        """The real path of captures below a root: a file, or a folder of which no link leads out. Raises UsageError otherwise,
        with one message for what is elsewhere and for what is nowhere: whether a file is there is no business of the caller."""
        real = self.script(text)
        if real.is_dir():
            self._check_links(real)
        return real

    def script(self, text: str) -> Path:
        """The same for a script or its folder, in which no link is followed: a project may hold a virtual environment."""
        refused = UsageError(
            "no such path below the folders that this server may read (list_captures names them)"
        )
        if not text or "\0" in text:
            raise refused
        try:
            real = (self.folders[0] / text).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refused from None
        if not self._holds(real):
            raise refused
        return real

    def shown(self, path: Path) -> str:
        """As a call may name it again: relative to the first root, else whole."""
        first = self.folders[0]
        return path.relative_to(first).as_posix() if path.is_relative_to(first) else str(path)

    def _holds(self, real: Path) -> bool:
        return any(real.is_relative_to(folder) for folder in self.folders)

    def _check_links(self, folder: Path) -> None:
        """A folder is searched for captures with all below it, so a link in it must not lead out. Raises UsageError where one does."""
        entries = 0
        for place, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not is_skipped(name)]
            entries += len(folders) + len(files)
            if entries > _MOST_ENTRIES:
                raise UsageError("this folder holds too many files to be searched; name one below it")
            for name in (*folders, *files):
                path = Path(place, name)
                if path.is_symlink() and not self._holds(path.resolve()):
                    raise UsageError(
                        f"{self.shown(path)} is a link that leads out of the folders that this server may read"
                    )
