"""The panels to zoom into: the timeline, and memory by plotly, which is in the page once, compressed, and unpacked by the
browser when the first panel of memory opens.

The panels draw what the embedded result holds, beside the pictures that always stand.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET
from zlib_ng import zlib_ng

from trace_doctor.model import Result
from trace_doctor.model.html_safe_json import html_safe
from trace_doctor.reporters import Served
from trace_doctor.reporters.embedded_json import embedded_detail
from trace_doctor.reporters.html import blocks, timeline
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.policy import TRACE, digest
from trace_doctor.reporters.labels import KINDS, MEMORY


def of_memory(series: int) -> Html:
    """Where the panel of one memory series goes: its position in `Result.memory_timeline`."""
    return el("div", data_zoom="memory", data_series=str(series))


class Zoom(NamedTuple):
    """What the panels need, at the end of the page, and the digests of the scripts and styles that come with it."""

    markup: Html
    scripts: list[str]
    styles: list[str]


def panels(result: Result, served: Served | None = None) -> Zoom | None:
    """None where there is nothing to look at closer. `served`: the trace that the page may ask for."""
    shown = [p for p in (blocks.panel(result), _timeline(result), _plots(result)) if p is not None]
    if not shown:
        return None
    parts = [p for p in (_detail(result), _words(), *shown, _perfetto(served)) if p is not None]
    return Zoom(
        Html("".join(markup for markup, _, _ in parts)),
        scripts=[script for _, scripts, _ in parts for script in scripts],
        styles=[style for _, _, styles in parts for style in styles],
    )


Part = tuple[Html, list[str], list[str]]
"""markup, and the digests of its scripts and styles"""


def _detail(result: Result) -> Part | None:
    if result.detail is UNSET:
        return None
    return Html(embedded_detail(msgspec.json.encode(result.detail))), [], []


def _words() -> Part:
    words = {
        "kinds": {k: v.label for k, v in KINDS.items()},
        "events": timeline.WORDS,
        "memory": {k: v.label for k, v in MEMORY.items()},
    }
    text = html_safe(json.dumps(words).encode()).decode()
    return Html(f'<script type="application/json" id="zoom-words">{text}</script>'), [], []


def _timeline(result: Result) -> Part | None:
    if not result.timeline:
        return None
    script = timeline.script()
    return Html(f"<script>{script}</script>"), [digest(script.encode())], []


def _perfetto(served: Served | None) -> Part | None:
    if served is None:
        return None
    script = files(__package__).joinpath("perfetto.js").read_text(encoding="utf-8")
    told = html_safe(
        json.dumps({"trace": TRACE, "input": served.input, "name": served.name}).encode()
    ).decode()
    markup = f'<script type="application/json" id="served">{told}</script><script>{script}</script>'
    return Html(markup), [digest(script.encode())], []


def _plots(result: Result) -> Part | None:
    if not result.memory_timeline:
        return None
    script = files(__package__).joinpath("zoom.js").read_text(encoding="utf-8")
    library, unpacked = _library()
    return (
        Html(f'<script type="text/plain" id="plotly">{library}</script><script>{script}</script>'),
        [digest(script.encode()), unpacked],
        [digest(b"")],  # the library makes an empty one, and adds its rules one by one
    )


@lru_cache(maxsize=1)
def _library() -> tuple[str, str]:
    """plotly.js as base64 of gzip, 2.1 MB instead of 4.8, and its digest as the browser unpacks it."""
    spec = find_spec("plotly")  # found, not imported: only its file is needed
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).with_name("package_data").joinpath("plotly.min.js").read_bytes()
    # a header without a time, so that the same page has the same bytes
    return base64.b64encode(zlib_ng.compress(source, 3, wbits=31)).decode("ascii"), digest(source)
