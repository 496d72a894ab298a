"""Where a finding stands in the user's repository, for the outputs that other programs show beside the code."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from trace_doctor.model import Finding, Location, Result
from trace_doctor.user_frames import is_user_frame

_NOT_RELATIVE = re.compile(r"""[/~<"]|[A-Za-z]:""")


def repository_path(result: Result, file: str | None) -> str | None:
    """The file as the repository names it; None for a library, an absolute path, one that leads out of it, or one that
    the source given does not hold."""
    if not file or not is_user_frame(file) or inside(file) is None:
        return None
    if result.source_root is None:
        return inside(file)
    return inside(result.source_root + file) if file in result.scripts else None


def inside(path: str) -> str | None:
    """A relative path that stays below where it starts, with forward slashes; None for any other."""
    path = posixpath.normpath(path.replace("\\", "/"))
    return None if _NOT_RELATIVE.match(path) or path == "." or path.split("/")[0] == ".." else path


_LAST_LINE = (1 << 31) - 1
"""that readers of SARIF know; no script has as many"""


def line_of(result: Result, location: Location) -> tuple[str, int | None] | None:
    """The file in the repository and, where it is known, the line."""
    path = repository_path(result, location.file)
    known = location.line is not None and 0 < location.line <= _LAST_LINE
    return None if path is None else (path, location.line if known else None)


def anchors(result: Result, findings: Iterable[Finding]) -> Iterator[tuple[str, int]]:
    """A file and a line for each finding: its own, else the script that the other findings or the source name, else
    the capture. Line 1 where none is known."""
    located = _first(result, (f.location.file for f in result.findings))
    targeted = _first(result, _targets(*result.findings)) or _first(result, sorted(result.source_excerpts))
    for finding in findings:
        own = line_of(result, finding.location)
        if own is not None:
            yield own[0], own[1] or 1
        else:
            script = located or _first(result, _targets(finding)) or targeted
            yield script or capture_path(result, finding), 1


def _targets(*findings: Finding) -> Iterator[str | None]:
    return (fix.target.file for f in findings for fix in f.fixes if fix.target)


def _first(result: Result, files: Iterable[str | None]) -> str | None:
    """The first of the files that is in the repository, as it names it."""
    return next((path for file in files if (path := repository_path(result, file))), None)


def capture_path(result: Result, finding: Finding) -> str:
    """The capture in which it was found, relative."""
    paths = [i.path for i in result.inputs]
    path = paths[finding.input] if finding.input < len(paths) else ""
    parts = [p for p in path.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return "/".join(parts) or "capture"


def failing(result: Result) -> set[str]:
    """Ids of the findings that fail the check; of a result that was never checked, all above info."""
    if result.gate is not None:
        return set(result.gate.failing)
    return {f.id for f in result.findings if f.severity != "info"}
