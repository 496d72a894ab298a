from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_commands import FRESH

from trace_doctor import registry
from trace_doctor.errors import TraceDoctorError, UsageError


def test_the_five_faults_the_product_was_asked_for_are_there() -> None:
    codes = {r.code for r in registry.all_rules()}
    assert {"TD101", "TD401", "TD403", "TD404", "TD501"} <= codes


def test_no_rules_is_an_error_and_not_a_clean_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: importlib.metadata.EntryPoints())
    registry.all_rules.cache_clear()
    try:
        with pytest.raises(TraceDoctorError, match="built-in rules"):
            registry.all_rules()
    finally:
        registry.all_rules.cache_clear()


NEEDS = "from trace_doctor import Rule\nclass Mine(Rule):\n    code, name, title = 'XY001', 'mine', 'Mine'\n    needs = "


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(0)",
        "raise BaseException",
        "1 / 0",
        "import no_such_module",
        NEEDS + "None",
        NEEDS + "Rule",
        NEEDS + "('x',)",
    ],
)
def test_a_pack_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "odd_pack.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    pack = importlib.metadata.EntryPoint("mine", "odd_pack", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: importlib.metadata.EntryPoints([pack]))
    registry.all_rules.cache_clear()
    try:
        with pytest.raises(TraceDoctorError, match=r"the rules of mine \(odd_pack\) cannot be loaded"):
            registry.all_rules()
    finally:
        registry.all_rules.cache_clear()


def with_package(folder: Path, put: Callable[[Path], object]) -> subprocess.CompletedProcess[str]:
    """`trace-doctor rules` beside an installed package, whose entry points `put` writes."""
    (folder / "odd-1.dist-info").mkdir()
    (folder / "odd-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    put(folder / "odd-1.dist-info" / "entry_points.txt")
    return subprocess.run(
        [*FRESH, "rules"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "put",
    [
        lambda p: p.write_text(f"[{registry.GROUP}]\nx\n"),
        lambda p: p.write_bytes(f"[{registry.GROUP}]\nx = y # \xe9\n".encode("latin-1")),
        lambda p: p.write_text("[others]\n" + "x = y\n" * 200_000),
        Path.mkdir,
        os.mkfifo,
    ],
    ids=["no entry", "latin-1", "a million bytes", "folder", "FIFO"],
)
def test_entry_points_that_cannot_be_read_are_one_line(tmp_path: Path, put: Callable[[Path], object]) -> None:
    done = with_package(tmp_path, put)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the entry points of an installed package cannot be read" in done.stderr


def test_a_pack_that_is_named_many_times_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "odd_pack.py").write_text("print('imported')\n" + NEEDS + "()\n")
    lines = "".join(f"x{n} = odd_pack\n" for n in range(20_000))
    done = with_package(tmp_path, lambda p: p.write_text(f"[{registry.GROUP}]\n{lines}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "XY001" in done.stdout


def codes(**kwargs: object) -> set[str]:
    return {r.code for r in registry.choose(**kwargs)}  # type: ignore[arg-type]


def test_a_longer_selector_wins() -> None:
    chosen = codes(select=["ALL", "TD401"], ignore=["TD4"])
    assert "TD401" in chosen
    assert "TD404" not in chosen
    assert "TD101" in chosen


def test_names_prefixes_and_case() -> None:
    assert codes(select=["dataloader-starvation"]) == {"TD101"}
    assert codes(select=["td101"]) == {"TD101"}
    assert codes(select=["TD1"]) == {c for c in codes() if c.startswith("TD1")}
    assert codes(select=["TD101"], extend=["TD501"]) == {"TD101", "TD501"}
    assert codes(select=["TD101"], ignore=["dataloader-starvation"]) == set()


def test_a_typo_names_the_nearest_rule() -> None:
    with pytest.raises(UsageError, match="did you mean dataloader-starvation"):
        registry.choose(select=["dataloader-starvatoin"])


HOSTILE = """
from trace_doctor.rule import Rule
class Mine(Rule):
    '''a\\x1b[31m

    ## Why is this bad

    ::error::x
    ##vso[task.complete]\\u202e
    '''
    code, name, title = "XY\\x1b[31m", "a\\n::error::x", "b\\n##vso[task.complete]"
"""


@pytest.mark.parametrize(
    "command", [("rules",), ("rules", "-o", "json"), ("rule", "--all"), ("rule", "--all", "-o", "json")]
)
def test_texts_of_a_pack_are_shown_without_what_others_obey(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "odd_pack.py").write_text(HOSTILE)
    (tmp_path / "odd-1.dist-info").mkdir()
    (tmp_path / "odd-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (tmp_path / "odd-1.dist-info" / "entry_points.txt").write_text(f"[{registry.GROUP}]\nodd = odd_pack\n")
    done = subprocess.run(
        [*FRESH, *command], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "XY" in done.stdout and "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert "##vso[" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.strip().startswith("::error::")]
