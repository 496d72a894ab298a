"""The folder of real captures beside the checkout, for tests marked `captures`."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
ABSENT = (
    f"the folder of real captures is not beside the checkout ({SHARED.name}/traces, {SHARED.name}/snapshots)"
)


@pytest.fixture
def captures_dir() -> Path:
    """`../shared`, with `traces/` and `snapshots/`; the test is skipped where it is absent."""
    if not (SHARED / "traces").is_dir():
        pytest.skip(ABSENT)
    return SHARED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`trace_path` and `snapshot_path`: the test runs once for every real capture of that kind."""
    for name, folder in (("trace_path", "traces"), ("snapshot_path", "snapshots")):
        if name in metafunc.fixturenames:
            files = sorted(p for p in (SHARED / folder).rglob("*") if p.is_file())
            params = [pytest.param(p, id=str(p.relative_to(SHARED / folder))) for p in files]
            metafunc.parametrize(
                name, params or [pytest.param(SHARED, marks=pytest.mark.skip(reason=ABSENT), id="absent")]
            )
