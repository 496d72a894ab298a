"""The zoomable panels: plotly, once in the page and compressed, unpacked by the browser when the first panel opens.

The panels draw what the embedded result holds, beside the pictures that always stand.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from zlib_ng import zlib_ng

from trace_doctor.model import Result
from trace_doctor.model.inert import inert
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.words import KINDS, MEMORY


def of_lanes(lanes: Sequence[tuple[int, str]]) -> Html:
    """Where the panel of a timeline goes. `lanes`: positions in `Result.timeline`, with their names."""
    return el("div", data_zoom="timeline", data_lanes=json.dumps(lanes, ensure_ascii=False))


def of_memory(series: int) -> Html:
    """Where the panel of one memory series goes: its position in `Result.memory_timeline`."""
    return el("div", data_zoom="memory", data_series=str(series))


def scripts(result: Result) -> Html:
    """What the panels need, at the end of the page. Nothing where there is nothing to zoom into."""
    if not (result.timeline or result.memory_timeline):
        return Html("")
    words = {
        "kinds": {k: v.label for k, v in KINDS.items()},
        "memory": {k: v.label for k, v in MEMORY.items()},
    }
    return Html(
        f'<script type="application/json" id="zoom-words">{inert(json.dumps(words).encode()).decode()}</script>'
        f'<script type="text/plain" id="plotly">{_packed()}</script>'
        f"<script>{files(__package__).joinpath('zoom.js').read_text(encoding='utf-8')}</script>"
    )


@lru_cache(maxsize=1)
def _packed() -> str:
    """plotly.js as base64 of gzip: 2.1 MB instead of 4.8."""
    spec = find_spec("plotly")  # found, not imported: only its file is needed
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).with_name("package_data").joinpath("plotly.min.js").read_bytes()
    # a header without a time, so that the same page has the same bytes
    return base64.b64encode(zlib_ng.compress(source, 3, wbits=31)).decode("ascii")
