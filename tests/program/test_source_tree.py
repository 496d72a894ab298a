"""The folder of the scripts: whatever lies in it, its scripts are found or left alone."""

from __future__ import annotations

import sys
from pathlib import Path

from trace_doctor.program.source_tree import SourceTree


def test_folders_as_deep_as_they_may_be_are_walked(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(400):
        deep /= "d"
        deep.mkdir()
    (deep / "train.py").write_text("x = 1\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        files = SourceTree(tmp_path).files
    finally:
        sys.setrecursionlimit(before)
    assert files == ["d/" * 400 + "train.py"]
