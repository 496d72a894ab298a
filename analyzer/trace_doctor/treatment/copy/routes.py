"""Where paths lead: what leads into the project is to lead into its copy, through however many links it gets there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


class Routes:
    """Paths of a project, and of the folders around it that are copied as well, as paths of the copy.

    `original` and `base`, the topmost folder around it, are free of links; `copy` is where the base lies in the copy.
    """

    def __init__(self, original: Path, base: Path, copy: Path, around: Iterable[Path] = ()) -> None:
        self.original, self._base, self._copy = original, base, copy
        self._around = {str(folder) for folder in around}
        self._spellings = {str(original): str(self.inside(original))}
        self._links: dict[str, str | None] = {}

    def inside(self, path: Path) -> Path:
        """Where a path at or below the base lies in the copy, links aside."""
        return self._copy / path.relative_to(self._base)

    def spell(self, path: Path) -> None:
        """Learns another name of the project, or of a folder in it, from a path that is written with links."""
        if not path.is_absolute():
            return
        for folder in [*reversed(path.parents), path]:
            real = Path(os.path.realpath(folder))
            if self.within(str(real)):
                self._spellings[str(folder)] = str(self.inside(real))
                return

    def within(self, path: str) -> bool:
        """Whether a path without links lies in the project."""
        root = str(self.original)
        return path == root or path.startswith(root.rstrip(os.sep) + os.sep)

    def final(self, path: str) -> str:
        """Where an absolute path ends in the original, all links followed."""
        return self._follow(path)[0]

    def into_copy(self, path: str, *, around: bool = False) -> str | None:
        """An absolute path as a path of the copy, through the links of the copy; None where it never gets into the project.
        `around`: also a path to a folder around it, as the copy has them."""
        final, target = self._follow(path)
        return target or (str(self.inside(Path(final))) if around and final in self._around else None)

    def _follow(self, path: str) -> tuple[str, str | None]:
        """Follows a path part by part. From where it comes into the project the way is the same in the copy, unless it
        leaves once more: then only the way from where it comes back is."""
        where, rest = os.sep, [p for p in path.split(os.sep) if p not in ("", ".")]
        first: str | None = None
        entry: str | None = None
        while True:
            if not self.within(where) or ".." in rest:
                entry = None
            elif entry is None:
                entry = os.sep.join([str(self.inside(Path(where))), *rest])
                first = first or entry
            if not rest:
                break
            part = rest.pop(0)
            there = os.path.join(where, part)
            where = os.path.dirname(where) if part == ".." else self._real(there) or there
        if self.within(where):
            return where, entry
        return where, first

    def _real(self, path: str) -> str | None:
        """Where a link leads in the end; None for what is no link."""
        if path not in self._links:
            self._links[path] = os.path.realpath(path) if os.path.islink(path) else None
        return self._links[path]

    def mentions(self, text: str) -> str:
        """A text with the project's absolute paths replaced by those of the copy."""
        for spelling in sorted(self._spellings, key=len, reverse=True):
            text = mention(spelling).sub(lambda _, to=self._spellings[spelling]: to, text)  # type: ignore[misc]
        return text


def mention(path: str) -> re.Pattern[str]:
    """An absolute path in a text, as a whole: `/a/b` is in `--x=/a/b/c` and `file:///a/b`, not in `/a/b-2` or `/z/a/b`."""
    return re.compile(rf"(?:(?<![\w.\-/~\\])|(?<=\A-\w)|(?<=://)){re.escape(path)}(?![\w.\-])")
