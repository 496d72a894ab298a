"""What was in force while it was recorded: `lines.tsv`, the lines of the script's own files that ran, and what a rank was set to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trace_doctor.files import read_regular
from trace_doctor.recording.options import INCOMPLETE, LINES_FILE

_LARGEST = 64 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


def lines_run(folder: Path) -> dict[tuple[str, str], set[int]]:
    """(file, its SHA-256 as hexadecimal digits) -> lines of it that ran, or may have, in any process of the recording. Empty
    where that was not recorded, or is too much to be whole."""
    path, ran, digests = folder / LINES_FILE, dict[tuple[str, str], set[int]](), dict[str, str]()
    try:
        text = read_regular(path, _LARGEST).decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    for row in text.split("\n")[:-1]:
        first, _, file = row.partition("\t")
        if first == INCOMPLETE:
            return {}
        if _DIGEST.fullmatch(first):
            digests[file] = first
        elif first.isdecimal() and len(first) < 8 and file in digests:
            ran.setdefault((file, digests[file]), set()).add(int(first))
    return ran


def ranges(numbers: set[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers, as first and last."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        is_next = bool(runs) and runs[-1][1] == number - 1
        runs[-1:] = [(runs[-1][0], number)] if is_next else [*runs[-1:], (number, number)]
    return runs


def settings_of(value: Any) -> dict[str, tuple[bool | int | float | str | None, ...]]:
    """The settings of a manifest, as far as they are any."""
    plain = (bool, int, float, str, type(None))
    entries = list(value.items())[:100] if isinstance(value, dict) else []
    return {
        name: tuple(v for v in values if isinstance(v, plain))
        for name, values in entries
        if isinstance(values, list)
    }
