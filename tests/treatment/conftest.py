"""Projects of these tests lie deeper than `treat` links what is beside a project: else each copy has links to the folders of
all tests that ran before."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    return deep
