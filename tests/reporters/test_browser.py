"""The page in a real browser, with the network off. Skipped where no Chromium is installed."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from browser import CHROMIUM, Opened, with_script

from trace_doctor.api import analyze
from trace_doctor.gate.diff import difference
from trace_doctor.model import KernelRow, Result
from trace_doctor.model.detail import Detail, Frame, HostStacks
from trace_doctor.model.work_detail import KernelDetail, OperatorDetail, Origin, WorkDetail
from trace_doctor.reporters import render
from trace_doctor.reporters.difference import render as render_difference
from trace_doctor.reporters.units import duration, size
from trace_doctor.testing import MIB, SnapshotBuilder

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
    assert "1 found" in body and "all captures" in body and "<img" not in body
    row = re.findall(r"<tr>.*?</tr>", body.split("<tbody>", 1)[1])
    assert len(row) == 1
    assert re.sub("<[^>]*>", " ", row[0]).split()[-5:] == [
        "2",
        "8",
        "8.0",
        "1.00",
        "1.0%",
    ]  # of two ranks, four calls each


def with_detail(result: Result) -> Result:
    """With a page's detail of two captures: fifty kernels each, and a tree of Python frames."""
    deep = Frame(name="model.py(9): forward <img src=x>", value=600.0)
    frames = [
        Frame(name="train.py(1): step", value=700.0, children=[deep]),
        Frame(name="loader.py(3): load", value=300.0),
    ]
    return msgspec.structs.replace(
        result,
        detail=[
            Detail(
                input=rank,
                rank=rank,
                work=WorkDetail(
                    kernels=[
                        KernelDetail(
                            device=0, name=f"<img src=x>kernel_{n}", kind="compute", count=n + 1, total_us=1e3 * (50 - n), share=0.02,
                            tensor_cores=(True, False, None)[n % 3], dtype="bf16" if n % 2 else "",
                            operator=Origin(name="aten::mm", share=0.75), site=Origin(name="train() (train.py)", share=1.0),
                        )
                        for n in range(50)
                    ],
                    of_kernels=50,
                    operators=[OperatorDetail(name=f"aten::op_{n}", kind="operator", count=2, self_us=10.0 + n, share=0.02) for n in range(30)],
                    of_operators=30,
                ),
                host_stacks=HostStacks(root=Frame(name="all", value=1000.0, children=frames), shown=3, of=3),
            )
            for rank in (0, 1)
        ],
    )  # fmt: skip


_SORT = """var heads = document.querySelectorAll("#kernels thead th"), named = function (word) {
  return Array.prototype.find.call(heads, function (head) { return head.textContent.indexOf(word) === 0; });
};
named("Launches").querySelector("button").click();"""


def test_kernels_are_sorted_by_a_column_over_all_of_them_by_key_or_click(
    rich_result: Result, tmp_path: Path
) -> None:
    """By launches those come first that the page itself, which shows the longest twenty, does not hold."""
    page = render(with_detail(rich_result), "html")
    opened = Opened(with_script(page, _SORT), tmp_path)
    assert opened.console == []
    section = opened.dom[opened.dom.index('<section id="kernels"') :].split("</section>", 1)[0]
    heads = re.findall(r"<th [^>]*scope=\"col\"[^>]*>", section)
    assert [n for n, head in enumerate(heads) if 'aria-sort="descending"' in head] == [3]
    names = re.findall(r"kernel_\d+", section.split("<tbody>", 1)[1])
    assert names[:2] == ["kernel_49", "kernel_48"] and len(names) == 20
    row = re.sub("<[^>]*>", " ", section.split("<tbody>", 1)[1].split("</tr>", 1)[0]).split()
    assert row[-7:-1] == [
        "2",
        "100",
        "2.0",
        "&lt;0.1",
        "2.0%",
        "no",
    ]  # devices, launches, ms, ms, share, Tensor Cores
    assert "launched by aten::mm (75%), train() (train.py)" in re.sub("<[^>]*>", "", section)
    assert "<img" not in section


_ONE_RANK = """var which = document.querySelector("[data-explore=kernels] select");
which.value = "1"; which.dispatchEvent(new Event("change"));"""


def test_more_rows_change_no_digit_of_those_shown(rich_result: Result, tmp_path: Path) -> None:
    page = render(with_detail(rich_result), "html")
    cells = re.compile(r"<td[^>]*class=\"num\"[^>]*>(.*?)</td>")
    rows = [
        cells.findall(
            dom.split('data-explore="kernels"', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
        )
        for dom in (page, Opened(with_script(page, _ALL), tmp_path).dom)
    ]
    assert len(rows[1]) > len(rows[0]) == 20 * 5
    assert rows[1][: len(rows[0])] == rows[0]


_ALL = """document.querySelectorAll("[data-explore=kernels] .filter button")[0].click();"""


def test_the_page_and_its_scripts_write_a_figure_alike(rich_result: Result, tmp_path: Path) -> None:
    values = [f * 8**e for f in (1, 8.125, 9.996, 99.95, 812.5, 999.6) for e in range(-3, 6)]
    script = f"document.title = JSON.stringify({values}.map(function (v) {{ return [traceDoctor.bytes(v * 1048576), traceDoctor.time(v, 3)]; }}));"
    dom = Opened(with_script(render(rich_result, "html"), script), tmp_path).dom
    shown = json.loads(unescape(re.findall("<title>(.*?)</title>", dom)[0]))
    assert shown == [[size(v * 2**20), duration(v)] for v in values]


def test_kernels_of_one_rank(rich_result: Result, tmp_path: Path) -> None:
    opened = Opened(with_script(render(with_detail(rich_result), "html"), _ONE_RANK), tmp_path)
    section = opened.dom[opened.dom.index('<section id="kernels"') :].split("</section>", 1)[0]
    assert "50 found" in section
    row = re.sub("<[^>]*>", " ", section.split("<tbody>", 1)[1].split("</tr>", 1)[0]).split()
    assert row[-8:] == ["1", "1", "50.0", "50.0", "2.0%", "yes", "not", "known"]


_FLAME = """document.querySelectorAll("#host-stacks details").forEach(function (d) { d.open = true; });
var wait = setInterval(function () {
  var frames = document.querySelectorAll(".flame g");
  if (!frames.length) return;
  clearInterval(wait);
  var said = [], say = function () { said.push(Array.prototype.map.call(document.querySelectorAll(".flame g"), function (g) { return g.getAttribute("aria-label"); })); };
  var press = function (key) { document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: key, bubbles: true })); };
  say();
  frames[0].focus();
  press("ArrowDown");
  press("Enter");
  say();
  press("Escape");
  say();
  var out = document.createElement("pre"); out.id = "said"; out.textContent = JSON.stringify(said); document.body.append(out);
}, 50);"""


def test_a_flame_graph_is_zoomed_by_keys(rich_result: Result, tmp_path: Path) -> None:
    opened = Opened(with_script(render(with_detail(rich_result), "html"), _FLAME), tmp_path)
    assert opened.console == []
    found = re.search(r'<pre id="said">(.*?)</pre>', opened.dom)
    assert found is not None
    whole, inside, again = json.loads(unescape(found[1]))
    assert whole[:3] == [
        "all · 1.00 ms · 100.0%",
        "train.py(1): step · 700 µs · 70.0%",
        "loader.py(3): load · 300 µs · 30.0%",
    ]
    assert inside == whole[1:2] + whole[3:]
    assert again == whole
    section = opened.dom[opened.dom.index('<section id="host-stacks"') :].split("</section>", 1)[0]
    assert " style=" not in section and "<img" not in section
    table = re.sub("<[^>]*>", " ", section.split("<tbody>", 1)[1].split("</tr>", 1)[0])
    assert table.split() == ["model.py(9):", "forward", "&lt;img", "src=x&gt;", "600.0", "600.0", "60.0%"]


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


def test_a_fix_without_a_patch_is_copied_with_its_text_and_sketch(
    rich_result: Result, tmp_path: Path
) -> None:
    finding = rich_result.findings[0]
    sketch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-loader\n+workers\n"
    fix = msgspec.structs.replace(finding.fixes[0], diff=None, text="pass num_workers=2", sketch=sketch)
    finding = msgspec.structs.replace(finding, fixes=[fix])
    page = render(msgspec.structs.replace(rich_result, findings=[finding]), "html")
    dom = Opened(with_script(page, _COPY), tmp_path).dom
    text = unescape(re.findall(r'<pre class="clipboard">(.*?)</pre>', dom, re.DOTALL)[1])
    assert "```\npass num_workers=2\n```" in text
    assert f"Sketch, not applied:\n\n```diff\n{sketch}```" in text


def test_findings_whose_ids_no_page_can_hold_are_copied_too(rich_result: Result, tmp_path: Path) -> None:
    """Of a saved result, whose texts are any: a page shows another character for some."""
    findings = [
        msgspec.structs.replace(f, id=f"{f.id}\n\x1b\u2028", title=f"number {n}")
        for n, f in enumerate(rich_result.findings)
    ]
    page = render(msgspec.structs.replace(rich_result, findings=findings), "html")
    opened = Opened(with_script(page, _COPY.replace("#TD101-1", ".finding")), tmp_path)
    assert opened.console == []
    texts = re.findall(r'<pre class="clipboard">(.*?)</pre>', opened.dom, re.DOTALL)
    numbers = [match[1] for text in texts if (match := re.match(r"\*\*TD\d+ number (\d)", text))]
    assert numbers == [str(n) for n in range(len(findings))]


def test_one_rank_is_printed_on_six_pages_with_its_details_folded(
    rich_result: Result, tmp_path: Path
) -> None:
    """All kernels listed with long signatures, which are what fills paper."""
    kernels = [
        KernelRow(rank=0, device=0, name=f"void kernel_{n}<{'float, ' * 60}int>(int)", kind="compute", count=1, total_us=1e3, mean_us=1e3,
                  share=0.01)
        for n in range(60)
    ]  # fmt: skip
    page, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    source = render(msgspec.structs.replace(rich_result, kernels=kernels), "html", zoom=False)
    page.write_text(source, encoding="utf-8")
    subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         f"--print-to-pdf={paper}", page.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert 2 <= pages <= 6


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
    page = with_script(render(with_detail(rich_result), "html"), _CHECK % (theme, axe))
    found = re.search(r'<pre id="axe">(.*?)</pre>', Opened(page, tmp_path).dom, re.DOTALL)
    assert found is not None
    assert json.loads(unescape(found[1])) == []


def recorded(tmp_path: Path, *, history: bool = True) -> Result:
    """A snapshot whose paths are markup, and what a page shows closer of it."""
    hostile = "/home/me/<img src=x onerror=alert(1)>.py"
    b = SnapshotBuilder(script=hostile)
    b.held(20 * MIB, frames=[(hostile, 5, "</script><b>setup</b>")])
    if history:
        b.train(3, parameters=[8 * MIB, 24 * MIB])
        with b.forward(hostile, 7):
            b.alloc(100 * MIB)
            b.oom(1024 * MIB, device_free=MIB)
    return analyze(b.write(tmp_path / "snapshot.pickle"), detail=True)


_BLOCKS = """
var picked = [], panel = document.querySelector(".blocks-panel"), drawing = document.querySelector("#memory svg.chart");
var all = function (selector) { return Array.prototype.slice.call(document.querySelectorAll(selector)); };
var note = function () {
  var names = all(".flame g").map(function (g) { return g.getAttribute("aria-label"); });
  picked.push([panel.querySelector("[role=status]").textContent, names[0], panel.querySelector("tfoot tr:last-child").textContent,
    all(".blocks-panel caption").length && panel.querySelector(".scroll caption").textContent, names.length]);
};
var at = function (part) {
  var box = drawing.getBoundingClientRect(), scale = box.width / 1080;
  return { bubbles: true, clientX: box.left + (70 + part * 1010) * scale, clientY: box.top + 270 * scale };
};
drawing.dispatchEvent(new PointerEvent("pointerenter"));
setTimeout(function () {
  drawing.dispatchEvent(new PointerEvent("pointermove", at(.5)));
  picked.push(document.querySelector(".memory-tip").textContent);
  drawing.dispatchEvent(new MouseEvent("click", at(1)));
  setTimeout(function () {
    note();
    Array.prototype.find.call(panel.querySelectorAll("button"), function (b) { return b.textContent === "Out of memory"; }).click();
    note();
    var slider = panel.querySelector("input[type=range]");
    slider.value = 3;
    slider.dispatchEvent(new Event("input"));
    note();
    var frame = all(".flame g").pop();
    frame.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    note();
    picked.push(all(".moment").length);
    all("details").forEach(function (d) { d.open = true; });
    setTimeout(function () {
      var map = document.querySelector(".segments");
      map.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
      picked.push(all(".segments .seg").length, document.querySelector(".block-text").textContent);
      var out = document.createElement("pre");
      out.id = "picked";
      out.textContent = JSON.stringify(picked);
      document.body.append(out);
    }, 500);
  }, 500);
}, 500);"""


def test_a_moment_of_the_memory_picture_has_its_blocks_and_stacks(tmp_path: Path) -> None:
    """What the table, the flame graph and the headline add up is the same, and what the picture shows."""
    result = recorded(tmp_path)
    opened = Opened(with_script(render(result, "html"), _BLOCKS), tmp_path)
    assert opened.console == []
    assert "<img" not in opened.dom.replace("&lt;img", "")
    found = re.search(r'<pre id="picked">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    tip, last, oom, third, zoomed, cursors, segments, block = json.loads(unescape(found[1]))
    assert re.match(r"\w.*: [\d.]+ MiB\nallocated: [\d.]+ MiB\nat ", tip)
    live = result.detail[0].memory.devices[0].live  # type: ignore[union-attr, index]
    failed = result.detail[0].memory.devices[0].failures[-1]  # type: ignore[union-attr, index]
    for (head, root, foot, _, _), held in ((last, live[-1]), (oom, live[failed]), (third, live[3])):
        words = size(held)
        assert (
            words in head
            and re.match(rf"all stacks · {words} in \d+ blocks? · 100", root)
            and foot.startswith(words)
        )
    assert "(out of memory)" in oom[0]
    assert last[0] != third[0]
    assert "below" in zoomed[3] and zoomed[0] == third[0]
    assert cursors == 1
    assert segments == result.detail[0].memory.devices[0].space.segments  # type: ignore[union-attr, index]
    assert re.match(r"0x[0-9a-f]+ · (free|allocated)", block)


_COUNT = """var unpacked = 0, parsed = 0, Stream = DecompressionStream, parse = JSON.parse;
DecompressionStream = function (format) { unpacked++; return new Stream(format); };
JSON.parse = function (text) { parsed += text.length; return parse(text); };
addEventListener("load", function () { setTimeout(function () { document.title = unpacked + " " + (parsed < 20000); }, 500); });"""


def test_the_page_stands_before_anything_heavy_is_read(tmp_path: Path) -> None:
    """Packed data and the result wait for whoever opens what they are for; scripts come when all of the page was read."""
    page = render(recorded(tmp_path), "html")
    head, body = page.split("</main>")
    assert re.findall("<script[^>]*>", head) == ["<script>"], "the theme alone, in the head"
    assert re.search("<(?:link|script[^>]* src)", page) is None
    assert "application/gzip" in body
    script = f"<script>{_COUNT}</script>"
    counting = with_script(page, _COUNT).replace(script, "").replace("</head>", f"{script}</head>", 1)
    assert "<title>0 true</title>" in Opened(counting, tmp_path).dom


_TAP = """document.querySelectorAll("[data-blocks] details.zoom").forEach(function (d) { d.open = true; });
setTimeout(function () {
  var used = document.querySelector(".segments .seg-used"), row = document.querySelector(".blocks-panel tbody tr");
  used.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 9, clientY: 9 }));
  used.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  row.querySelector("summary").click();
  var said = [document.querySelector(".memory-tip").textContent, document.querySelector(".block-text").textContent,
    row.querySelector("details[open] pre").textContent, row.cells[1].textContent, document.querySelector(".blocks-panel .keys:last-of-type").textContent];
  document.title = JSON.stringify(said);
}, 900);"""


@pytest.mark.parametrize("history", [True, False])
def test_a_block_that_is_pointed_at_says_its_size_class_and_stack(history: bool, tmp_path: Path) -> None:
    """By pointer, by a tap, and in the table by what keys reach as well."""
    opened = Opened(with_script(render(recorded(tmp_path, history=history), "html"), _TAP), tmp_path)
    assert opened.console == []
    tip, tapped, stack, kind, _ = json.loads(
        unescape(re.findall("<title>(.*?)</title>", opened.dom, re.S)[0])
    )
    assert tip == tapped
    first, *frames = tip.split("\n")
    assert re.search(r" · allocated · [\d.]+ [KMG]iB \([\d.]+ [KMG]iB requested\) · \w", first)
    assert frames[-1].startswith("in a segment of ")
    assert ".py:" in frames[0] and ".py:" in stack
    assert (kind == "unknown (no history)") is ("unknown (no history)" in first) is not history


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("history", [True, False])
def test_axe_finds_no_violation_in_blocks_and_segments(history: bool, theme: str, tmp_path: Path) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = with_script(render(recorded(tmp_path, history=history), "html"), _CHECK % (theme, axe))
    opened = Opened(page, tmp_path)
    assert opened.console == []
    found = re.search(r'<pre id="axe">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    assert json.loads(unescape(found[1])) == []
    assert 'class="flame"' in opened.dom and 'class="segments"' in opened.dom


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


_MOVE = """var map = document.querySelector(".heat-cells"), said = [];
var press = function (key) { map.dispatchEvent(new KeyboardEvent("keydown", { key: key, bubbles: true })); said.push(map.getAttribute("aria-valuetext")); };
map.focus(); press("End"); press("Home");
for (var i = 0; i < 5; i++) press("ArrowDown");
var box = map.getBoundingClientRect();
map.dispatchEvent(new MouseEvent("click", { clientY: box.top + box.height * 37.5 / 128, bubbles: true }));
said.push(map.getAttribute("aria-valuetext"), document.querySelector("[data-heat] .picked").textContent, location.hash);
addEventListener("hashchange", function () {
  said.push(document.activeElement.closest(".finding").id);
  var out = document.createElement("pre"); out.id = "said"; out.textContent = JSON.stringify(said); document.body.append(out);
});"""


def test_the_heatmap_is_moved_through_by_keys_and_a_click_goes_to_the_rank(
    job_result: Result, tmp_path: Path
) -> None:
    opened = Opened(
        with_script(render(job_result, "html"), f"addEventListener('load', function () {{ {_MOVE} }});"),
        tmp_path,
    )
    assert opened.console == [] and opened.requests == []
    found = re.search(r'<pre id="said">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    last, first, *_, fifth, clicked, line, address, finding = json.loads(unescape(found[1]))
    assert (last, first) == ("rank 127: at most 40.0 µs", "rank 0: at most 0 ms. Enter: go to it")
    assert fifth.startswith("rank 5: at most 200 µs")
    assert clicked == "rank 37: at most 9.00 ms. Enter: go to it"
    assert (address, finding) == ("#TD602-1", "TD602-1")
    assert line == "rank 37 · step 0: 9.00 ms, step 1: -30.0 µs"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_in_the_heatmap(theme: str, job_result: Result, tmp_path: Path) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    opened = Opened(with_script(render(job_result, "html"), _CHECK % (theme, axe)), tmp_path)
    found = re.search(r'<pre id="axe">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    assert json.loads(unescape(found[1])) == []
