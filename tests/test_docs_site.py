"""The site of `make docs-site`: one form of link, nothing fetched, and a fault of a page ends the build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs the docs extra: make install")
pytest.importorskip("myst_parser", reason="needs the docs extra: make install")

DOCS = Path(__file__).resolve().parent.parent / "docs"
README = "# Read me\n\n## What it does\n\nIt works.\n"
INDEX = "# Index\n\n## Pages\n\n- [README](../README.md)\n\nSee [what it does](../README.md#what-it-does) and [a file](../a.py).\n"


def build(folder: Path, index: str) -> subprocess.CompletedProcess[str]:
    (folder / "docs").mkdir()
    for name in ("conf.py", "site.css"):
        shutil.copy(DOCS / name, folder / "docs")
    (folder / "README.md").write_text(README, encoding="utf-8")
    (folder / "a.py").write_text("pass\n", encoding="utf-8")
    (folder / "docs" / "index.md").write_text(index, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "--fail-on-warning",
        "--keep-going",
        "-c",
        "docs",
        ".",
        "site",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_link_of_the_repository_works_on_the_site(tmp_path: Path) -> None:
    made = build(tmp_path, INDEX)
    assert made.returncode == 0, made.stderr
    site = tmp_path / "site"
    page = (site / "docs" / "index.html").read_text(encoding="utf-8")
    assert 'href="../README.html#what-it-does"' in page
    assert len(list((site / "_downloads").rglob("a.py"))) == 1
    assert "url=docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


FAULTS = {
    "[gone](gone.md)": "gone",
    "[no such heading](../README.md#no-such-heading)": "no-such-heading",
    "![a picture](https://example.com/a.png)": "docs/index.html loads https://example.com/a.png",
    "<script src='//example.com/a.js'></script>": "docs/index.html loads //example.com/a.js",
    "<style>@import '//example.com/b.css';</style>": "docs/index.html loads //example.com/b.css",
    "<link rel=stylesheet href=https://example.com/c.css>": "docs/index.html loads https://example.com/c.css",
}


def test_each_fault_of_a_page_is_told_and_ends_the_build(tmp_path: Path) -> None:
    """All in one build, which goes on to its end (`--keep-going`), as that of `make docs-site` does."""
    made = build(tmp_path, "\n\n".join([INDEX, *FAULTS]) + "\n")
    assert made.returncode != 0
    assert not [told for told in FAULTS.values() if told not in made.stderr]
