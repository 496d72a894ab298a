"""What ruff says of a patched file that it did not say before: with its defaults, and as the repository sets it.

A repository's settings are read as data: pyproject.toml, ruff.toml, setup.cfg, tox.ini, .flake8.
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_SELECT = "--select=E402,E501,F401,F811,F821,F841,I001"
_RUFF = Path(sys.executable).with_name("ruff")


def new_messages(path: Path, old: bytes, new: bytes) -> Iterator[str]:
    """`CODE text` of each message that a file gets, with the settings that give it. Of lines that are too long and of
    import blocks that are not sorted the number counts, as their text says where they are."""
    for whose, settings in (("defaults", ("--isolated", _SELECT)), ("repository", configured(path.parent))):
        if settings is not None:
            before = Counter(_said(settings, path, old))
            before["I001"] *= 100
            more = Counter(_said(settings, path, new)) - before
            yield from (f"{message} ({whose})" for message in more.elements())


@cache
def _said(settings: tuple[str, ...], path: Path, data: bytes) -> tuple[str, ...]:
    ruff = subprocess.run(
        [_RUFF, "check", "--quiet", "--no-cache", "--exit-zero", "--output-format=json", *settings,
         f"--stdin-filename={path}", "-"],
        input=data, capture_output=True, cwd=path.parent, check=True,
    )  # fmt: skip
    told = json.loads(ruff.stdout or "[]")
    return tuple(m["code"] if m["code"] in ("E501", "I001") else f"{m['code']} {m['message']}" for m in told)


@cache
def configured(folder: Path) -> tuple[str, ...] | None:
    """ruff's arguments for what ruff, black, flake8 and isort are told in the nearest folder that tells them anything;
    None where none does."""
    for place in (folder, *folder.parents):
        told: dict[str, Any] = {}
        for name in (".flake8", "tox.ini", "setup.cfg"):
            read = configparser.RawConfigParser(strict=False)
            read.read(place / name, encoding="utf-8")
            told |= {k: v for s in ("isort", "flake8") if read.has_section(s) for k, v in read[s].items()}
        for name in ("pyproject.toml", "ruff.toml", ".ruff.toml"):
            if (file := place / name).is_file():
                settings = tomllib.loads(file.read_text(encoding="utf-8"))
                tools = settings.get("tool", {}) if name == "pyproject.toml" else {"ruff": settings}
                ruff = tools.get("ruff", {})
                lint = ruff.get("lint", {})
                for part in (
                    tools.get("isort", {}),
                    tools.get("black", {}),
                    ruff,
                    lint,
                    lint.get("isort", {}),
                ):
                    told |= part
        if told := {k.replace("-", "_"): v for k, v in told.items()}:
            return tuple(_arguments(told))
    return None


def _arguments(told: dict[str, Any]) -> Iterator[str]:
    yield "--isolated"
    yield _SELECT
    if width := told.get("max_line_length", told.get("line_length")):
        yield f"--config=line-length={width}"
    if known := _names(told.get("known_first_party", [])):
        yield f"--config=lint.isort.known-first-party={json.dumps(known)}"
    ignored = [c for key in ("ignore", "extend_ignore") for c in _names(told.get(key, []))]
    if ours := [c for c in ignored if c in _SELECT]:
        yield f"--ignore={','.join(ours)}"


def _names(value: str | list[str]) -> list[str]:
    return re.findall(r"[\w.]+", re.sub("#.*", "", value)) if isinstance(value, str) else value
