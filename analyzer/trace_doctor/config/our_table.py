"""Where a TOML file holds settings of ours: `[tool.trace-doctor]`, and what is meant as such and stands elsewhere.

A table that nothing reads would leave the defaults in force, unsaid, and a check that was made strict would pass.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Set
from typing import Any

from trace_doctor.config.budget_table import shown
from trace_doctor.errors import UsageError, one_line

_MENTION = re.compile(rb"trace(?:[^\sA-Za-z0-9]{0,10}|[ \t]*\.[ \t]*)doctor", re.IGNORECASE)
_OURS = ("tool", "trace-doctor")
_Path = tuple[Any, str] | None
"""of keys, the last one first: (path of the table above, key)"""


def speaks_of_us(data: bytes, settings: Set[str]) -> bool:
    """Whether a pyproject.toml has our table, one whose name is nearly ours, or settings of ours in another place. One that
    is no TOML, or is no UTF-8, does where it names us: what it would say is not known."""
    try:
        parsed = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return _MENTION.search(data.replace(b"\0", b"")) is not None  # of UTF-16
    return next(_meant(parsed, settings), None) is not None


def our_table(name: str, data: bytes, settings: Set[str], *, required: bool) -> dict[str, Any]:
    """The settings of a file by their keys. `settings`: the keys there are, with dashes; `required`: it is a mistake that
    the file has none. Raises UsageError, in one line, for what is no TOML and for settings in another place."""
    try:
        parsed = tomllib.loads(data.decode())
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}: must be UTF-8") from None
    except ValueError as error:  # of TOML, of numbers with thousands of digits
        raise UsageError(one_line(f"{name}: {error}")) from None
    if name != "pyproject.toml" and "tool" not in parsed:
        return parsed
    tool = parsed.get("tool", {})
    if not isinstance(tool, dict) or not isinstance(tool.get("trace-doctor", {}), dict):
        raise UsageError(f"{name}: [tool.trace-doctor] must be a table")
    for path in _meant(parsed, settings):
        if path != _OURS:
            raise UsageError(f"{name}: [{_written(path)}] is written [tool.trace-doctor]")
    for key in parsed:
        if key != "tool" and (name == "trace-doctor.toml" or key.replace("_", "-") in settings):
            raise UsageError(f"{name}: {shown(key)} stands outside of [tool.trace-doctor]")
    if required and "trace-doctor" not in tool:
        raise UsageError(f"{name}: has no table [tool.trace-doctor]")
    return dict(tool.get("trace-doctor", {}))


def _meant(parsed: dict[str, Any], settings: Set[str]) -> Iterator[tuple[str, ...]]:
    """Paths of our table and of those that are meant as ours: by their name alone where our table could stand, elsewhere by
    a setting as well, for `[tool.uv.sources.trace-doctor]` is of others. `source` is also a key of theirs."""
    telling = settings - {"source"}
    rest: list[tuple[_Path, int, Any]] = [(None, 0, parsed)]
    while rest:
        above, depth, value = rest.pop()
        if isinstance(value, list):
            rest += [(above, depth, item) for item in value if isinstance(item, dict | list)]
            continue
        for key, inner in value.items():
            path = (above, key)
            placed = not depth or (depth == 1 and above is not None and above[1] == "tool")
            if placed or (isinstance(inner, dict) and any(key.replace("_", "-") in telling for key in inner)):
                names = (key,) if above is None else (key, f"{above[1]}-{key}")
                if any(map(_nearly_ours, names)):
                    yield _keys(path)
            if isinstance(inner, dict | list):
                rest.append((path, depth + 1, inner))


def _keys(path: _Path) -> tuple[str, ...]:
    keys = []
    while path is not None:
        path, key = path
        keys.append(key)
    return tuple(reversed(keys))


def _written(path: tuple[str, ...]) -> str:
    """As the header of a table in TOML, in one line."""
    keys = (key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{one_line(key)}"' for key in path)
    return ".".join(keys)[:80]


def _nearly_ours(name: str) -> bool:
    return bool(difflib.get_close_matches(name.lower()[:60], ["trace-doctor"], cutoff=0.8))
