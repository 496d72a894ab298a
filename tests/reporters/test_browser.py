"""The page in a real browser, with the network off. Skipped where no Chromium is installed."""

from __future__ import annotations

import json
import re
from html import unescape
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from browser import CHROMIUM, Opened, with_script

from trace_doctor.gate.diff import difference
from trace_doctor.model import KernelRow, Result
from trace_doctor.reporters import render
from trace_doctor.reporters.difference import render as render_difference

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page in")


def test_no_error_no_request_and_the_script_runs(hostile_result: Result, tmp_path: Path) -> None:
    opened = Opened(render(hostile_result, "html"), tmp_path)
    assert opened.console == []
    assert opened.requests == []
    assert "Theme: auto" in opened.dom
    assert "Copy patch" in opened.dom
    assert 'aria-label="Filter findings"' in opened.dom
    assert "<img" not in opened.dom.replace("&lt;img", "")


def test_a_deep_link_opens_the_finding(rich_result: Result, tmp_path: Path) -> None:
    dom = Opened(render(rich_result, "html"), tmp_path, "#TD404").dom
    card = re.search(r'<details[^>]*id="TD404-1"[^>]*>', dom)
    assert card is not None
    assert " open" in card[0]


def test_the_filter_state_is_in_the_address(rich_result: Result, tmp_path: Path) -> None:
    dom = Opened(render(rich_result, "html"), tmp_path, "#q=retained&hide=info").dom
    shown = re.findall(
        r'<div class="slot"( hidden="")?>(?:<span[^>]*></span>)?<details[^>]*id="(TD\d+)-1"', dom
    )
    assert shown == [(' hidden=""', "TD101"), ("", "TD404"), (' hidden=""', "TD401")]


def test_an_address_that_names_nothing_is_no_error(rich_result: Result, tmp_path: Path) -> None:
    assert Opened(render(rich_result, "html"), tmp_path, "#100%").console == []


_SEARCH = """document.querySelector("[data-explore=kernels] input").value = "%s";
document.querySelector("[data-explore=kernels] input").dispatchEvent(new Event("input"));"""


def test_all_kernels_can_be_searched_and_are_added_up_over_ranks(rich_result: Result, tmp_path: Path) -> None:
    """The page itself shows the longest twenty."""
    kernels = [
        KernelRow(input=rank, rank=rank, device=0, name=f"<img src=x>kernel_{n}", kind="compute", count=n + 1, total_us=1e3 * (n + 1),
                  mean_us=1e3, share=0.01)
        for rank in (0, 1)
        for n in range(30)
    ]  # fmt: skip
    page = render(msgspec.structs.replace(rich_result, kernels=kernels), "html")
    opened = Opened(with_script(page, _SEARCH % "kernel_3"), tmp_path)
    assert opened.console == []
    body = opened.dom.split('data-explore="kernels"', 1)[1].split("</tbody>", 1)[0]
    assert "1 found" in body and "all ranks" in body and "<img" not in body
    row = re.findall(r"<tr>.*?</tr>", body.split("<tbody>", 1)[1])
    assert len(row) == 1
    assert re.sub("<[^>]*>", " ", row[0]).split()[-5:] == [
        "2",
        "8",
        "8",
        "1",
        "1%",
    ]  # of two ranks, four calls each


_COPY = """Object.defineProperty(navigator, "clipboard", { value: { writeText: function (text) {
  var out = document.createElement("pre"); out.className = "clipboard"; out.textContent = text; document.body.append(out);
  return Promise.resolve();
} } });
document.querySelectorAll("#TD101-1 .tools button").forEach(function (node) { node.click(); });"""


def test_a_finding_is_copied_as_a_link_and_as_markdown(rich_result: Result, tmp_path: Path) -> None:
    finding = msgspec.structs.replace(rich_result.findings[0], message="Waits *59 ms* for <b>data</b>.")
    page = render(msgspec.structs.replace(rich_result, findings=[finding]), "html")
    opened = Opened(with_script(page, _COPY), tmp_path)
    assert opened.console == []
    link, text = (
        unescape(t) for t in re.findall(r'<pre class="clipboard">(.*?)</pre>', opened.dom, re.DOTALL)
    )
    assert link.endswith("page.html#TD101-1")
    assert r"Waits \*59 ms\* for \<b\>data\</b\>." in text
    assert text.startswith("**TD101 ") and "saves up to 33% of step" in text and "```diff\n" in text


@pytest.mark.parametrize(("panel", "drawn"), [("timeline", "<canvas"), ("memory", 'class="main-svg"')])
def test_a_zoomable_panel_opens_from_the_address(
    panel: str, drawn: str, hostile_result: Result, tmp_path: Path
) -> None:
    opened = Opened(render(hostile_result, "html"), tmp_path, f"#panel={panel}")
    section = opened.dom[opened.dom.index(f'<section id="{panel}"') :]
    section = section[: section.index("</section>")]
    assert drawn in section
    assert "<style" not in section
    assert opened.console == []
    assert opened.requests == []
    assert "<img" not in opened.dom.replace("&lt;img", "")


_CHECK = """document.documentElement.dataset.theme = "%s";
document.querySelectorAll("details").forEach(function (d) { d.open = true; });
%s
setTimeout(function () { axe.run().then(function (found) {
  var out = document.createElement("pre");
  out.id = "axe";
  out.textContent = JSON.stringify(found.violations.map(function (v) { return [v.id, v.nodes[0].html.slice(0, 200)]; }));
  document.body.append(out);
}); }, 1500);"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(theme: str, rich_result: Result, tmp_path: Path) -> None:
    """Everything open, the zoomable panels too."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = with_script(render(rich_result, "html"), _CHECK % (theme, axe))
    found = re.search(r'<pre id="axe">(.*?)</pre>', Opened(page, tmp_path).dom, re.DOTALL)
    assert found is not None
    assert json.loads(unescape(found[1])) == []


_PLACES = """document.querySelectorAll("details").forEach(function (d) { d.open = true; });
var wait = setInterval(function () {
  var bars = document.querySelectorAll(".modebar"), plots = document.querySelectorAll(".plot");
  if (bars.length < plots.length) return;
  clearInterval(wait);
  var out = document.createElement("pre"), box = function (node) { var r = node.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  out.id = "places";
  out.textContent = JSON.stringify(Array.prototype.map.call(bars, function (bar, n) { return [box(plots[n]), box(bar)]; }));
  document.body.append(out);
}, 100);"""


def test_the_toolbar_of_each_panel_stands_in_its_upper_right_corner(
    hostile_result: Result, tmp_path: Path
) -> None:
    """Its place comes from rules that the chart library adds while it draws."""
    opened = Opened(with_script(render(hostile_result, "html"), _PLACES), tmp_path)
    assert opened.console == []
    found = re.search(r'<pre id="places">(.*?)</pre>', opened.dom)
    assert found is not None
    places = json.loads(found[1])
    assert len(places) == 1
    for (_, top, right, _), bar in places:
        assert right - 10 <= bar[2] <= right + 1
        assert abs(bar[1] - top) <= 10
        assert 15 < bar[3] - bar[1] < 40


@pytest.mark.parametrize(
    "intruder",
    [
        '<img src="https://example.org/a.png">',
        "<script>document.title = 'IN'</script>",
        "<svg onload=\"document.title = 'IN'\"></svg>",
        "<style>main { display: none }</style>",
        '<p style="display: none">gone</p>',
        '<iframe src="https://example.org/"></iframe>',
        '<object data="https://example.org/"></object>',
        '<base href="https://example.org/">',
    ],
)
def test_the_policy_is_in_force(intruder: str, tmp_path: Path) -> None:
    intruded = render(Result(), "html").replace("</main>", f"{intruder}</main>")
    opened = Opened(intruded, tmp_path)
    assert len([line for line in opened.console if "Content Security Policy" in line]) == 1, opened.console
    assert opened.requests == []
    assert "<title>IN" not in opened.dom


def test_without_the_policy_it_would_not_be(tmp_path: Path) -> None:
    intruded = render(Result(), "html").replace("</main>", '<img src="https://example.org/a.png"></main>')
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", intruded)
    assert Opened(without, tmp_path).requests == ["https://example.org/a.png"]


def test_a_difference_opens_without_error_or_request(rich_result: Result, tmp_path: Path) -> None:
    page = render_difference(difference(rich_result, rich_result), "html")
    opened = Opened(page, tmp_path)
    assert (opened.console, opened.requests) == ([], [])
    assert "Theme: auto" in opened.dom
    assert "Before and after" in opened.dom


def test_a_panel_is_drawn_from_a_packed_result(many_ranks: Result, tmp_path: Path) -> None:
    page = render(many_ranks, "html")
    assert 'type="application/gzip"' in page
    opened = Opened(page, tmp_path, "#panel=timeline&rank=2")
    assert opened.console == []
    assert '<canvas aria-hidden="true" width=' in opened.dom
