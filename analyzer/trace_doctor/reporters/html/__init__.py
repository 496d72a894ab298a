"""The report: one HTML file that asks for nothing, complete without scripts. The page is put together here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from trace_doctor.model import Result, Tool
from trace_doctor.reporters import Options
from trace_doctor.reporters.diagnosis import headline
from trace_doctor.reporters.embedded_json import embedded
from trace_doctor.reporters.html import (
    about,
    findings,
    gate,
    host_stacks,
    lanes,
    memory,
    panels,
    ranks,
    rules,
    step,
    verdict,
    work,
    zoom,
)
from trace_doctor.reporters.html.charts.svg import patterns
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.policy import digest, policy
from trace_doctor.reporters.html.views import RULES

LARGEST = 300_000
"""Bytes of a page without its zoomable panels up to which its result stands in it as it is, not packed"""
_FRAME = 8_000
"""Bytes of a page beside its parts, its style and its script, at most"""
_THEME = "try{var t=localStorage.getItem('trace-doctor-theme');if(t)document.documentElement.dataset.theme=t}catch(e){}"
_FURTHER_SCRIPTS = {
    "explore.js": ("data-explore=",),
    "flame.js": ("data-flame=", " data-whole"),
    "heatmap.js": ("data-heat=",),
}
"""Scripts beside report.js, which they use, with the attributes of the elements that need them"""
_PARTS = (
    ("gate", "Gate"),
    ("ranks", "Ranks"),
    ("time", "Time"),
    ("peak", "Peak"),
    ("timeline", "Timeline"),
    ("memory", "Memory"),
    ("what-if", "What if"),
    ("critical-path", "Critical path"),
    ("findings", "Findings"),
    ("kernels", "Kernels"),
    ("operators", "Operators"),
    ("host-stacks", "Python"),
    ("rules", "Rules"),
    ("collectives", "Collectives"),
    ("skipped", "Skipped"),
    ("about", "About"),
    ("help", "Help"),
)


def render(result: Result, options: Options) -> str:
    """The page. The same result gives the same bytes."""
    data = result.to_json()
    above = [
        verdict.render(result),
        gate.gate(result),
        *ranks.ranks(result),
        step.where_the_step_goes(result),
        lanes.timeline(result),
        memory.memory(result),
        panels.what_if(result),
        *panels.critical_path(result),
    ]
    below = [
        work.kernels(result),
        work.operators(result),
        host_stacks.flame_graph(result),
        panels.collectives(result),
        rules.undecided(result),
        rules.passed(result),
        rules.skipped(result),
        about.render(result),
        about.help_panel(),
    ]
    return page(
        headline(result),
        [*above, findings.render(result), *below],
        data,
        tool=result.tool,
        zoomed=zoom.panels(result, options.served) if options.zoom else None,
        served=options.served is not None,
    )


def page(
    title: str,
    sections: Sequence[Html | None],
    data: bytes,
    *,
    tool: Tool,
    zoomed: zoom.Zoom | None = None,
    served: bool = False,
) -> str:
    """Sections as one file, with what they were made from as JSON in it."""
    present = "".join(s for s in sections if s)
    links = [
        el("a", name, href=f"#{anchor}") for anchor, name in _PARTS if f'<section id="{anchor}"' in present
    ]
    own, style = _scripts(sections), _asset("report.css") + RULES
    if "data-heat=" in present:
        style += _asset("heatmap.css")
    scripts = [digest(s.encode()) for s in (_THEME, *own)] + (zoomed.scripts if zoomed else [])
    styles = [digest(style.encode())] + (zoomed.styles if zoomed else [])
    body = el(
        "body",
        el("a", "Skip to the findings", href="#findings", class_="skip-link"),
        patterns(),
        el(
            "header",
            el(
                "div",
                el("a", _LOGO, "trace-doctor", href="#verdict", class_="brand"),
                el("nav", links, aria_label="Parts of the report"),
                el("div", id="tools", class_="tools"),
                class_="bar",
            ),
            class_="top",
        ),
        el("main", sections, id="main"),
        el("footer", el("p", f"{tool.name} {tool.version}".strip(), " · nothing left your machine")),
        Html(embedded(data, _room(sections))),
        [Html(f"<script>{script}</script>") for script in own],
        zoomed.markup if zoomed else None,
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        policy(scripts, styles, served=served),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="generator", content="trace-doctor"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} – trace-doctor"),
        Html(f"<script>{_THEME}</script>"),
        Html(f"<style>{style}</style>"),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


_LOGO = el(
    "svg",
    el("path", d="M1 9h4l2-6 4 12 3-9 1.5 3H21", class_="logo"),
    viewBox="0 0 22 18",
    aria_hidden="true",
    class_="logo-box",
)


def _room(sections: Sequence[Html | None]) -> int:
    """Bytes that a page with these sections leaves of what a page may have."""
    parts = [*sections, _asset("report.css"), *_scripts(sections)]
    return LARGEST - _FRAME - sum(len(part.encode()) for part in parts if part)


def _scripts(sections: Sequence[Html | None]) -> list[str]:
    """Those that a page with these sections needs."""
    present = "".join(s for s in sections if s)
    needed = [name for name, marks in _FURTHER_SCRIPTS.items() if any(mark in present for mark in marks)]
    return [_asset(name) for name in ("report.js", *needed)]


def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
