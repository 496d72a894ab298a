"""docs/exit-codes.md, row by row: each command is run in a folder that has the files it names."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
from example_files import EXAMPLES, make_examples
from warm_commands import warm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exit-codes.md"
_ROW = re.compile(r"^\| `((?:\w+=\S+ |timeout .+? |[^`]+; )?trace-doctor[^`]*)` \| (.+?) \| (\d+) \|$", re.M)
_FILE = re.compile(r"^\| (`.+?`) \| ", re.M)


class Row(NamedTuple):
    command: str
    situation: str
    code: int


ROWS = [
    Row(command.replace(r"\|", "|"), situation, int(code))
    for command, situation, code in _ROW.findall(PAGE.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_examples(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `trace-doctor` and `python`, as a shell finds them after an install."""
    folder = tmp_path_factory.mktemp("bin")
    for name, command in (
        ("trace-doctor", warm()),
        ("python", [sys.executable]),
    ):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.skipif(os.name != "posix", reason="the commands are those of a POSIX shell")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command)
def test_a_situation_ends_as_the_page_says(row: Row, examples: Path, programs: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in {n.split("/")[0] for n in EXAMPLES if _names(row.command, n)}:
        if (examples / name).is_dir():
            shutil.copytree(examples / name, here / name, symlinks=True, copy_function=_copy)
        else:
            shutil.copy2(examples / name, here / name)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    done = subprocess.run(
        ["sh", "-c", row.command], cwd=here, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == row.code, done.stderr or done.stdout
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "PWNED").exists()
    if row.code == 2:
        assert done.stderr.strip(), "a refusal says why"


def _names(command: str, example: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(example.rstrip('/'))}(?![\w.-])", command) is not None


def _copy(source: str, target: str) -> str:
    if os.path.isfile(source):
        return shutil.copy2(source, target)
    os.mkfifo(target)
    return target


def test_the_page_holds_the_situations_of_all_commands() -> None:
    assert len(ROWS) >= 80
    assert len({row.command for row in ROWS}) == len(ROWS)
    told = [
        n for cell in _FILE.findall(PAGE.read_text(encoding="utf-8")) for n in re.findall(r"`(.+?)`", cell)
    ]
    for example in EXAMPLES:
        assert any(_names(row.command, example) for row in ROWS), f"{example} is used by no row"
        assert any(fnmatch(example, pattern) for pattern in told), f"{example} is not told of"
