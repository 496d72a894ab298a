"""From a finding to its moment in the timeline and back: the links of a page, and the timeline in a real browser."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from browser import CHROMIUM, Opened, with_script

import trace_doctor
from trace_doctor.errors import UnusableResult
from trace_doctor.model import Gap, Result
from trace_doctor.reporters import render
from trace_doctor.reporters.html.charts.svg import WIDTH
from trace_doctor.reporters.saved import read_saved
from trace_doctor.testing import RunBuilder

HOSTILE = "gemm_7</script><img src=x onerror=alert(1)>"
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page in")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    made = RunBuilder(stacks=True)
    for number in range(12):
        with made.step(), made.python("train.py", 12, "train"):
            made.loader(20_000)
            for _ in range(5):
                with made.op("aten::mm"):
                    made.launch(300, name=HOSTILE if number == 7 else "gemm")
    path = made.write(tmp_path_factory.mktemp("run") / "trace.json")
    return trace_doctor.analyze(path, detail=True)


def test_a_finding_links_to_its_moment_and_a_gap_to_its_finding(result: Result) -> None:
    page = render(result, "html")
    assert 'href="#panel=timeline&amp;finding=TD101-1&amp;span=0"' in page
    gaps = page[page.index("The longest gaps") :]
    rows = re.findall(r"<tr>.*?</tr>", gaps[: gaps.index("</table>")])[1:]
    assert len(rows) == 5
    assert all('href="#TD101-1"' in row for row in rows)
    assert all('href="#panel=timeline&amp;lane=0&amp;gap=' in row for row in rows)
    without = render(Result.from_json(result.to_json()), "html")
    assert "Show in the timeline" not in without


def test_a_gap_that_no_span_covers_has_no_owner(result: Result) -> None:
    moved = [
        msgspec.structs.replace(f, spans=[msgspec.structs.replace(s, device=3) for s in f.spans])
        for f in result.findings
    ]
    page = render(msgspec.structs.replace(result, findings=moved), "html")
    gaps = page[page.index("The longest gaps") :]
    assert "#TD101-1" not in gaps[: gaps.index("</table>")]


def test_the_numbers_of_gaps_at_an_end_stay_within_the_picture(result: Result) -> None:
    lane = result.timeline[0]
    ends = [Gap(lane.dur_us - n, 1, "sync", 1.0) for n in (1, 2, 3)] + [Gap(0, 1, "sync", 1.0)]
    at_ends = msgspec.structs.replace(lane, gaps=ends)
    page = render(msgspec.structs.replace(result, timeline=[at_ends]), "html")
    places = sorted(float(x) for x in re.findall('<circle cx="([\\d.]+)"[^>]*class="mark"', page))
    assert len(places) == 4 and places[0] >= 8.5 and places[-1] <= WIDTH - 8.5
    assert all(b - a >= 17 for a, b in pairwise(places))


def test_a_saved_page_keeps_its_timeline(result: Result, tmp_path: Path) -> None:
    page = render(result, "html")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert render(read_saved(tmp_path / "page.html"), "html") == page


@pytest.mark.parametrize(
    ("sequence", "clock"), [(True, "one clock (by collectives)"), (False, "the clock of the host")]
)
def test_ranks_of_several_hosts_are_shown_on_one_clock(sequence: bool, clock: str, tmp_path: Path) -> None:
    """The clock of rank 1 is 3.4 ms ahead."""
    for rank in range(2):
        made = RunBuilder(rank=rank, world_size=2)
        for number in range(12):
            made.now = 10_000 + number * 1000.0 + 3_400 * rank
            with made.step():
                made.launch(300, "ncclDevKernel_AllReduce", **({"Seq": number} if sequence else {}))  # type: ignore[arg-type]
                made.sync()
        made.write(tmp_path / f"rank{rank}.json")
    page = render(trace_doctor.analyze(tmp_path, detail=True), "html")
    found = re.search(r'data-timeline="(.*?)"', page)
    assert found is not None
    given = json.loads(unescape(found[1]))
    assert given["together"] == f"all ranks, on {clock}"
    (_, _, first), (_, _, second) = given["captures"]
    assert second - first == pytest.approx(0 if sequence else 3_400, abs=1)
    every = page[page.index('data-view="all"') :].split('data-view="0"', 1)[0]
    one, other = (float(x) for x in re.findall(r'transform="translate\(([\d.]+) \d+\)"', every)[:2])
    assert f"All ranks on {clock}. The lines are the steps of rank 0." in every
    assert (other > one + 100) is not sequence  # pixels, of 15.4 ms
    without = render(trace_doctor.analyze(tmp_path), "html")
    assert "Each rank from its own start. The lines" in without


_DRIVE = """setTimeout(function () {
  var box = document.querySelector(".timeline-box"), picked = document.querySelector(".picked"), log = [];
  var key = function (name) { box.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true })); };
  var length = function () { var m = window.traceDoctor.timeline.moment(0); return m.end_us - m.start_us; };
  log.push(picked.textContent, document.querySelector(".timeline-panel p.tools a").getAttribute("href"), document.activeElement === box);
  var before = length();
  key("w"); key("w");
  log.push(length() < before);
  var start = window.traceDoctor.timeline.moment(0).start_us;
  key("d");
  log.push(window.traceDoctor.timeline.moment(0).start_us > start);
  var query = document.querySelector(".timeline-panel input");
  query.value = "gemm_7";
  query.dispatchEvent(new Event("input"));
  var count = document.querySelector(".timeline-panel .filter [role=status]");
  log.push(count.textContent);
  query.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  log.push(count.textContent, picked.textContent);
  Array.prototype.find.call(document.querySelectorAll(".timeline-panel button"), function (b) { return b.textContent === "Go to its launch"; }).click();
  log.push(picked.textContent);
  Array.prototype.find.call(document.querySelectorAll(".timeline-panel button"), function (b) { return b.textContent === "Whole window"; }).click();
  Array.prototype.find.call(document.querySelectorAll(".timeline-panel button"), function (b) { return b.textContent === "Add up the view"; }).click();
  log.push(Array.prototype.map.call(document.querySelectorAll(".timeline-panel tbody tr"), function (row) { return Array.prototype.map.call(row.cells, function (c) { return c.textContent; }); }));
  var out = document.createElement("pre");
  out.id = "log";
  out.textContent = JSON.stringify(log);
  document.body.append(out);
}, 3000);"""


@in_a_browser
def test_it_opens_at_a_finding_and_is_driven_by_keys_and_search(result: Result, tmp_path: Path) -> None:
    opened = Opened(
        with_script(render(result, "html"), _DRIVE), tmp_path, "#panel=timeline&finding=TD101-1&span=0"
    )
    assert opened.console == []
    assert opened.requests == []
    found = re.search(r'<pre id="log">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    at_first, link, focused, zoomed, moved, hits, first_hit, kernel, call, sums = json.loads(
        unescape(found[1])
    )
    assert at_first.startswith("TD101 ")
    assert "step " in at_first
    assert link == "#TD101-1"
    assert [focused, zoomed, moved] == [True, True, True]
    assert (hits, first_hit) == ("5 hits", "1 of 5 hits")
    assert kernel.startswith(f"{HOSTILE} · 300.0 µs from ")
    assert "launched by aten::mm · train.py(12): train" in kernel
    assert "step 7" in kernel
    assert call.startswith("cudaLaunchKernel · ")
    assert ["gemm", "kernel", "55", "16.5 ms"] in [row[:4] for row in sums]
    assert [HOSTILE, "kernel", "5", "1.50 ms"] in [row[:4] for row in sums]
    assert "<img" not in opened.dom


_FOLD = """setTimeout(function () {
  var box = document.querySelector(".timeline-box"), canvas = box.querySelector("canvas"), picked = document.querySelector(".picked"), log = [];
  var choice = document.querySelector(".timeline-panel select"), place = canvas.getBoundingClientRect();
  var key = function (name) { box.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true })); };
  var heights = function () { log.push(box.scrollHeight); };
  canvas.setPointerCapture = function () {};
  var click = function (row) {
    ["pointerdown", "pointerup"].forEach(function (kind) {
      canvas.dispatchEvent(new PointerEvent(kind, { clientX: place.left + 20, clientY: place.top + 24 + 17 * row + 8, bubbles: true }));
    });
  };
  choice.value = String(choice.options.length - 1);
  choice.dispatchEvent(new Event("change"));
  box.scrollTop = 0;
  heights();
  var row = 0, before = box.scrollHeight;
  while (row < 20 && box.scrollHeight === before) click(row++);
  heights();
  click(row - 1);
  heights();
  for (var n = 0; n < row; n++) key("ArrowDown");
  log.push(picked.textContent);
  key("f");
  heights();
  key("ArrowDown");
  log.push(picked.textContent);
  key("f");
  heights();
  log.push(picked.textContent);
  var query = document.querySelector(".timeline-panel input");
  query.value = "aten::addmm";
  query.dispatchEvent(new Event("input"));
  query.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  log.push(picked.textContent);
  var out = document.createElement("pre");
  out.id = "log";
  out.textContent = JSON.stringify(log);
  document.body.append(out);
}, 3000);"""


@in_a_browser
def test_threads_of_many_ranks_start_collapsed_and_open_by_name_key_and_search(tmp_path: Path) -> None:
    for rank in range(9):
        made = RunBuilder(rank=rank, world_size=9)
        for number in range(6):
            made.now = 10_000 + number * 1000.0
            with made.step():
                with made.op("aten::linear"), made.op("aten::addmm"):
                    made.launch(100, "gemm")
                made.launch(200, "ncclDevKernel_AllReduce", Seq=number)
                made.sync()
        made.write(tmp_path / f"rank{rank}.json")
    page = render(trace_doctor.analyze(tmp_path, detail=True), "html")
    opened = Opened(with_script(page, _FOLD), tmp_path, "#panel=timeline")
    assert opened.console == []
    found = re.search(r'<pre id="log">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    start, clicked, again, first, expanded, inner, collapsed, outer, hit = json.loads(unescape(found[1]))
    assert clicked > start == again == collapsed
    assert expanded == clicked
    assert "main thread" in first
    assert first.endswith("collapsed, F expands it")
    assert "collapsed" not in inner
    assert outer == first
    assert hit.startswith("aten::addmm")
    assert "collapsed" not in hit


_AXE = """%s
setTimeout(function () { axe.run(".timeline-panel").then(function (found) {
  var out = document.createElement("pre");
  out.id = "axe";
  out.textContent = JSON.stringify([found.passes.length, found.violations.map(function (v) { return v.id; })]);
  document.body.append(out);
}); }, 2500);"""


@in_a_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_with_an_event_selected(theme: str, result: Result, tmp_path: Path) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    script = f'document.documentElement.dataset.theme = "{theme}";{_AXE % axe}'
    opened = Opened(
        with_script(render(result, "html"), script), tmp_path, "#panel=timeline&finding=TD101-1&span=0"
    )
    found = re.search(r'<pre id="axe">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found is not None
    passes, violations = json.loads(unescape(found[1]))
    assert passes > 5
    assert violations == []


def test_only_a_served_page_may_ask_for_anything(result: Result) -> None:
    from trace_doctor.reporters import Served

    static, served = render(result, "html"), render(result, "html", served=Served(0, "t</script>.json"))
    assert "connect-src" not in static
    assert "ui.perfetto.dev" not in static
    assert "; connect-src 'self'; " in served
    assert "t</script>" not in served


def test_damaged_events_in_a_page_are_refused(result: Result, tmp_path: Path) -> None:
    import gzip

    page = render(result, "html")
    found = re.search(r'id="detail">(.*?)</script>', page)
    assert found is not None
    detail = json.loads(gzip.decompress(base64.b64decode(found[1])))
    detail[0]["events"]["tracks"][0]["dur"].pop()
    packed = base64.b64encode(gzip.compress(json.dumps(detail).encode())).decode()
    (tmp_path / "page.html").write_text(page.replace(found[1], packed), encoding="utf-8")
    with pytest.raises(UnusableResult, match="do not fit together"):
        read_saved(tmp_path / "page.html")
