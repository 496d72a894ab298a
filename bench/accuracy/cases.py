"""What is labelled: the sample captures, whose faults are planted, and real captures of others, labelled by hand.

Those of `heldout.toml` were labelled before trace-doctor was run on them, and are found by their content.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_traces"
SHARED = ROOT.parent / "shared"
LABELS = Path(__file__).with_name("labels.toml")
HELD_OUT = Path(__file__).with_name("heldout.toml")


@dataclass(frozen=True)
class Planted:
    """A fault that is known to be there."""

    code: str
    line: int | None = None
    """of the script, where one line is at fault"""
    codemod: str | None = None
    """the edit that mends it"""


@dataclass(frozen=True)
class Case:
    """One capture and what is right to say of it."""

    name: str
    paths: tuple[Path, ...]
    kind: str
    """`real` or `simulated` for samples, `others` for captures of other people, `blind`, `seen` and names of sets for those held out"""
    faults: tuple[Planted, ...] = ()
    either: frozenset[str] = frozenset()
    """rules of which nobody can tell: not counted"""
    script: Path | None = None


def cases() -> Iterator[Case]:
    """All that are there: the captures of others are not part of the project."""
    yield from _samples()
    if SHARED.is_dir():
        yield from _labelled()


def _samples() -> Iterator[Case]:
    for folder in sorted({p.parent for p in SAMPLES.glob("*/*/*/*.gz")}):
        scenario, machine, twin = folder.relative_to(SAMPLES).parts
        expected = tomllib.loads((SAMPLES / scenario / "expected.toml").read_text(encoding="utf-8"))
        script = SAMPLES / scenario / f"{twin}.py"
        yield Case(
            name=f"{scenario}/{machine}/{twin}",
            paths=(folder,),
            kind="simulated" if machine == "simulated" else "real",
            faults=_planted(script, expected["fault"]) if twin == "fault" else (),
            either=frozenset(
                [*expected.get("either", ()), *(c for f in expected["fault"] for c in f.get("also", ()))]
            ),
            script=script,
        )


def _planted(script: Path, faults: list[dict[str, Any]]) -> tuple[Planted, ...]:
    lines = script.read_text(encoding="utf-8").splitlines()
    marked = [n for n, line in enumerate(lines, 1) if "# FAULT" in line]
    found = []
    for mark, fault in zip(marked, faults, strict=True):
        named = fault.get("names")
        line = mark if named is None else next(n for n, text in enumerate(lines, 1) if named in text)
        found.append(Planted(fault["code"], line if fault.get("located", True) else None, fault.get("fix")))
    return tuple(found)


def _labelled() -> Iterator[Case]:
    for label in tomllib.loads(LABELS.read_text(encoding="utf-8"))["capture"]:
        paths = tuple(sorted(SHARED.glob(label["path"])))
        if not paths:
            raise FileNotFoundError(f"{LABELS.name}: nothing is called {label['path']}")
        yield Case(
            name=label["path"],
            paths=paths,
            kind="others",
            faults=tuple(Planted(code) for code in label["faults"]),
            either=frozenset(label.get("either", ())),
        )


def held_out(folders: Sequence[Path]) -> tuple[list[Case], list[str]]:
    """The captures of `heldout.toml` that lie anywhere in these folders, by SHA-256, and the names of those that do not."""
    here = {}
    for path in sorted(p for folder in folders for p in folder.rglob("*") if p.is_file()):
        here.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    found, absent = [], []
    for label in tomllib.loads(HELD_OUT.read_text(encoding="utf-8"))["capture"]:
        files = label["files"]
        name = f"{files[0]['repository']}:{files[0]['path']}@{files[0]['blob']}"
        if not all(file["sha256"] in here for file in files):
            absent.append(name)
            continue
        found.append(
            Case(
                name=name,
                paths=tuple(here[file["sha256"]] for file in files),
                kind=label.get("set", "blind" if label["blind"] else "seen"),
                faults=tuple(Planted(code) for code in label["faults"]),
                either=frozenset(label["either"]),
            )
        )
    return found, absent
