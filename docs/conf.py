"""The documentation as a site: `make docs-site`. The folder of sources is the repository, so that a relative link works in both.

Nothing is fetched: neither to build it nor to read it.
"""

from __future__ import annotations

import json
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

project = "trace-doctor"
author = "The trace-doctor developers"
extensions = ["myst_parser"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = [
    "docs/*.md",
    "docs/*/*.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "analyzer/README.md",
    "bench/README.md",
    "bench/accuracy/*.md",
    "rules/README.md",
    "sample_traces/*.md",
]
myst_heading_anchors = 6  # as on GitHub: the heading in small letters, with hyphens
html_theme = "alabaster"
html_theme_options = {"description": "Why training is slow, and the patch", "fixed_sidebar": True}
html_title = "trace-doctor"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_copyright = False

CONTENTS = {"docs/index": "", "rules/README": "../docs/rules/"}
"""page whose links are the table of contents below it -> how these links begin"""


def add_cells(app: Sphinx, name: str, source: list[str]) -> None:
    """Appends the cells of the notebook to the page about it."""
    if name != "docs/notebook":
        return
    for cell in json.loads((Path(app.srcdir) / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            text = f"```python\n{text}\n```"
        source[0] += "\n" + re.sub(r"\A# .*\n", "", text) + "\n"


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Appends to a page of `CONTENTS` what Sphinx needs in order to know its links as a table of contents."""
    if name not in CONTENTS:
        return
    for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
        pages = re.findall(rf"\]\(({re.escape(CONTENTS[name])}[^)#:]*)\.md\)", section)
        if pages:
            caption = section.split("\n", 1)[0]
            places = (
                "/" + posixpath.normpath(posixpath.join(posixpath.dirname(name), page)) for page in pages
            )
            source[0] += "\n".join(
                ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *places, "```", ""]
            )


class Loads(HTMLParser):
    """What a browser fetches from elsewhere to show a page; links that a reader follows are none."""

    FOREIGN = re.compile(r"\s*(?:https?:)?//", re.I)
    STYLES = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.I)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = self.STYLES.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fetched = {"src", "srcset", "data", "poster", *(["href"] if tag == "link" else [])}
        self.found += [
            value for name, value in attrs if name in fetched and value and self.FOREIGN.match(value)
        ]


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the page that leads from the folder of the site to its first page. Refuses a site that fetches from elsewhere."""
    if error is not None:
        return
    site = Path(app.outdir)
    (site / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n', encoding="utf-8"
    )
    loads = [
        f"{file.relative_to(site)} loads {address}"
        for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")])
        for address in Loads(file.read_text(encoding="utf-8")).found
    ]
    if loads:
        raise SphinxError("\n".join(loads))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_cells)
    app.connect("source-read", add_contents)
    app.connect("build-finished", finish)
