"""Scripts that would take the parser's stack, and this process with it, or hours: each is left alone with one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trace_doctor.errors import UnreadableScript, UsageError
from trace_doctor.program import source_tree as source
from trace_doctor.program.nesting_guard import PLAIN, nesting
from trace_doctor.program.script import Script
from trace_doctor.program.source_tree import SourceTree

N = 40_000
DEEP = {
    "parentheses": "x = " + "(" * N + "1" + ")" * N,
    "never closed": "x = " + "(" * N,
    "lists": "x = " + "[" * N + "]" * N,
    "calls": "x = " + "f(" * N + ")" * N,
    "minus": "x = " + "-" * N + "1",
    "not": "x = " + "not " * N + "1",
    "lambda": "x = " + "lambda: " * N + "1",
    "otherwise": "x = " + "1 if a else " * N + "1",
    "power": "x = " + "a**" * N + "1",
    "attributes": "x = a" + ".b" * 600,
    "sum": "x = " + "1+" * 600 + "1",
    "texts": "x = " + "'a' " * 2_000,
    "elif": "if 1:\n pass\n" + "elif 1:\n pass\n" * N,
    "import": "import a" + ".b" * N,
    "comprehensions": "x = " + "[a for a in " * 2_000 + "b" + "]" * 2_000,
    "f-strings": "x = " + 'f"{' * 2_000 + "1" + '}"' * 2_000,
    "brackets in f-strings": "x = f'{" + "(" * 2_000 + "1" + ")" * 2_000 + "}'",
    "closed in texts": "x = " + "f(')', " * 2_000 + ")" * 2_000,
    "statements in texts": "x = " + "(f'''{1}'''\n" * 2_000 + ")" * 2_000,
    "indents": "".join(" " * i + "if 1:\n" for i in range(400)) + " " * 400 + "pass",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_script_nested_too_deeply(text: str) -> None:
    with pytest.raises(UnreadableScript, match=r"^x\.py: .*left alone$"):
        Script(text.encode() + b"\n", "x.py")


def test_what_people_write_is_no_reason_to_look_twice() -> None:
    text = "\n".join(
        [
            "table = [" + ", ".join(f"({i}, {{'a': [{i}]}})" for i in range(100)) + "]",
            "print(f\"{table[0]['a']} of {len(table)} don't\")",
            'sql = """' + "(" * 500 + '"""  # ' + "[" * 500,
            "net = nn.Sequential(\n" + "    nn.Linear(8, 8), nn.ReLU(),\n" * 60 + ")",
        ]
    )
    assert nesting(text) <= PLAIN
    Script(text.encode(), "x.py")


def test_a_long_expression_that_fits_is_read() -> None:
    text = "x = " + " + ".join("ab"[i % 2] for i in range(130)) + "\ny = f\"{a['" + "b" * 9 + "']}\"\n"
    assert nesting(text) > PLAIN
    assert Script(text.encode(), "x.py").text == text


def test_what_else_lies_in_a_source_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 1_000)
    (tmp_path / "a.py").write_text("import torch\n")
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "nul.py").write_bytes(b"torch\0")
    (tmp_path / "latin.py").write_bytes("# torch é\n".encode("latin-1"))
    (tmp_path / "big.py").write_text("torch\n" * 1_000)
    (tmp_path / "folder.py").mkdir()
    tree = SourceTree(tmp_path)
    assert tree.files == ["a.py", "big.py", "latin.py", "nul.py"]
    assert [s.name for s in tree.scripts_with("torch", "")] == ["a.py"]
    assert sorted(tree.unreadable) == ["big.py", "fifo.py", "latin.py", "nul.py"]


@pytest.mark.parametrize("name", ["fifo", "/dev/zero"])
def test_a_source_that_is_no_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    with pytest.raises(UsageError, match="neither a folder nor a file"):
        SourceTree(path)


def test_more_scripts_than_a_program_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_PARSED", 100)
    for name in "abc":
        (tmp_path / f"{name}.py").write_text("import torch  # " + "x" * 30 + "\n")
    tree = SourceTree(tmp_path)
    assert [s.name for s in tree.scripts_with("torch")] == ["a.py", "b.py"]
    assert "left alone" in tree.unreadable["c.py"]
    (tmp_path / "d.py").write_text("import torch\n")
    tree = SourceTree(tmp_path)
    tree.scripts_with("torch")
    assert ["2 scripts are left alone" in note for note in tree.notes] == [True], "one line for all"
