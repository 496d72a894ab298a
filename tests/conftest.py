"""The real captures: public data of many origins, kept beside the checkout and never part of the project.

A test with an argument `trace_file` or `snapshot_file` runs once for each of them; `captures_dir` is their folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parents[2] / "shared"
_ABSENT = "the real captures are not there (../shared, beside the checkout)"


@pytest.fixture(scope="session")
def captures_dir() -> Path:
    if not (CAPTURES / "traces").is_dir():
        pytest.skip(_ABSENT)
    return CAPTURES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, kind, suffixes in (
        ("trace_file", "traces", (".json", ".json.gz")),
        ("snapshot_file", "snapshots", (".pickle", ".pkl")),
    ):
        if argument in metafunc.fixturenames:
            folder = CAPTURES / kind
            files = sorted(p for p in folder.rglob("*") if p.name.endswith(suffixes))
            absent = [pytest.param(None, marks=pytest.mark.skip(reason=_ABSENT), id="absent")]
            metafunc.parametrize(
                argument, files or absent, ids=[p.relative_to(folder).as_posix() for p in files] or None
            )
