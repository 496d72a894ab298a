from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import re
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import msgspec
import plotly
import pytest
from msgspec.structs import replace

import trace_doctor
from trace_doctor.errors import NotACapture
from trace_doctor.gate.diff import difference
from trace_doctor.model import Budget, Finding, Gate, Result, Saving
from trace_doctor.model.treatment import Method, Treatment
from trace_doctor.reporters import Options, render
from trace_doctor.reporters.difference import render as render_difference
from trace_doctor.reporters.embedded_json import embedded, extract
from trace_doctor.reporters.html import LARGEST
from trace_doctor.reporters.html.treatment import render as treatment_page
from trace_doctor.reporters.labels import MEMORY
from trace_doctor.testing import MIB, SnapshotBuilder
from trace_doctor_rules.comms import _flight_cases

VOID = {"meta", "br", "hr", "input", "link", "img"}
FETCHES = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping", "xlink:href"}

METHOD = Method(
    warmup_steps=1,
    timed_steps=9,
    figure="median",
    repeats=6,
    alpha=0.05,
    least_gain=0.01,
    loss_tolerance=0.02,
)


class Page(HTMLParser):
    """Every element with its attributes and its text, and whether the tags match."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.errors: list[str] = []
        self.feed(source)
        self.close()
        if self.open:
            self.errors.append(f"not closed: {[self.elements[i][0] for i in self.open]}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len(dict(attrs)) != len(attrs):
            self.errors.append(f"an attribute twice: {tag} {attrs}")
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.elements[self.open.pop()][0] != tag:
            self.errors.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        for i in self.open:
            self.elements[i][2].append(data)

    def all(self, *tags: str) -> list[tuple[str, dict[str, str | None], str]]:
        return [(tag, attrs, "".join(text)) for tag, attrs, text in self.elements if tag in tags]


@pytest.fixture
def page(result: Result) -> Page:
    return Page(render(result, "html"))


def test_well_formed(page: Page) -> None:
    assert page.errors == []


def test_nothing_is_fetched(result: Result) -> None:
    page = Page(render(result, "html"))
    for tag, attrs, _ in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"}
        assert not FETCHES & set(attrs), (tag, attrs)
        if "href" in attrs:
            assert tag == "a"
            assert re.match(r"#|https://", attrs["href"] or "")
        assert not any(name.startswith("on") for name in attrs)
    for _, _, css in page.all("style"):
        assert "@import" not in css
        assert re.findall(r"url\((?!#)", css) == []


def test_the_policy_names_every_script_and_style_and_nothing_else(
    rich_result: Result, hostile_result: Result
) -> None:
    library = Path(plotly.__file__).with_name("package_data") / "plotly.min.js"
    for source, unpacked in (
        (render(rich_result, "html"), [library.read_text(encoding="utf-8")]),
        (render(hostile_result, "html", zoom=False), []),
        (render_difference(difference(rich_result, hostile_result), "html"), []),
        (treatment_page(Treatment(code=0, verdict="", method=METHOD), Options()), []),
    ):
        page = Page(source)
        order = [tag for tag, a, _ in page.elements if tag in ("script", "style") or "http-equiv" in a]
        assert order[0] == "meta"
        [policy] = [a["content"] or "" for _, a, _ in page.all("meta") if "http-equiv" in a]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        scripts = [text for _, a, text in page.all("script") if "type" not in a] + unpacked
        styles = [text for _, _, text in page.all("style")] + [""] * len(unpacked)
        assert rules == {
            "default-src": "'none'",
            "script-src": " ".join(map(digest, scripts)),
            "style-src": " ".join(map(digest, styles)),
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        assert not any("style" in a or name.startswith("on") for _, a, _ in page.elements for name in a)


def digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def test_structure_for_readers_and_screen_readers(page: Page) -> None:
    assert page.all("html")[0][1]["lang"] == "en"
    levels = [int(tag[1]) for tag, _, _ in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs, _ in page.all("a"):
        href = attrs.get("href") or ""
        assert not href.startswith("#") or href[1:] in ids, href
    for name in ("aria-labelledby", "aria-describedby"):
        for _, attrs, _ in page.elements:
            assert set((attrs.get(name) or "").split()) <= set(ids)
    assert [t for t, _, _ in page.all("main", "header", "nav", "footer")].count("main") == 1


def test_tables_have_captions_and_scopes(page: Page) -> None:
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(text.strip() for _, _, text in page.all("caption"))
    assert all(attrs.get("scope") in ("col", "row") for _, attrs, _ in page.all("th"))
    assert all(text.strip() for _, attrs, text in page.all("th") if attrs["scope"] == "col")


def test_charts_have_text(page: Page) -> None:
    images = [
        i for i, (tag, attrs, _) in enumerate(page.elements) if tag == "svg" and attrs.get("role") == "img"
    ]
    for i in images:
        assert [page.elements[i + n][0] for n in (1, 2)] == ["title", "desc"]
        assert all("".join(page.elements[i + n][2]).strip() for n in (1, 2))
    assert all(
        attrs.get("aria-hidden") == "true" or attrs.get("role") == "img"
        for tag, attrs, _ in page.elements
        if tag == "svg"
    )


@pytest.mark.parametrize("zoom", [True, False])
def test_the_result_is_embedded_byte_for_byte(result: Result, zoom: bool) -> None:
    html, data = render(result, "html", zoom=zoom), result.to_json()
    [(kind, embedded)] = [
        (attrs["type"], text) for _, attrs, text in Page(html).all("script") if attrs.get("id") == "result"
    ]
    if kind == "application/gzip":
        without = len(render(result, "html", zoom=False).encode())
        assert without + len(data) - len(embedded) > LARGEST - 8_000, "there was room for it"
        embedded = gzip.decompress(base64.b64decode(embedded)).decode()
    assert embedded.encode() == data == render(result, "json").encode()
    assert extract(html) == data
    assert "<" not in embedded


@pytest.mark.parametrize(
    "text",
    ["<", "\\u003c", "\\\\u003c", "\\<", "</script>", "\u2028\\u2028", '"\\', "<!--<sCript>", "\\</Script"],
)
def test_any_text_survives_the_island(text: str) -> None:
    data = Result(limits=[text]).to_json()
    page = embedded(data, 10_000)
    assert Page(f"<body>{page}</body>").all("script")[0][2].encode() == extract(page) == data
    assert Result.from_json(data).limits == [text]


def test_a_long_result_is_packed_and_a_damaged_one_is_refused() -> None:
    data = b'{"a": "' + b"x>" * 100_000 + b'"}\n'
    packed = embedded(data, 100_000)
    assert packed == embedded(data, 100_000)
    assert len(packed) < 2_000
    assert extract(packed) == data
    with pytest.raises(ValueError, match="end the element"):
        embedded(b'"</script>"', 100)
    for damaged in (
        packed.replace("H4s", "H5s"),
        packed.replace("</script>", "!</script>"),
        packed[:300] + packed[340:],
    ):
        with pytest.raises(NotACapture):
            extract(damaged)


def test_hostile_text_stays_text(hostile_result: Result) -> None:
    source = render(hostile_result, "html")
    page = Page(source)
    assert page.errors == []
    assert (
        len(page.all("script")) == 10
    )  # theme, result, report, tables; words and code of memory blocks; words, library and code of timeline and memory
    assert "<img" not in source
    shown = re.sub(r'<script type="application/json".*?</script>', "", source, flags=re.DOTALL)
    assert not set(shown) & set("\x1b\u202e\u2028")
    assert sum("onerror" in text for _, _, text in page.all("td", "p", "span", "code", "h1", "li")) > 10


def test_the_order_of_the_page(rich_result: Result) -> None:
    ids = [attrs.get("id") for _, attrs, _ in Page(render(rich_result, "html")).all("section")]
    assert ids == [
        "verdict", "time", "timeline", "memory", "what-if", "findings", "kernels", "collectives", "passed", "skipped",
        "about", "help",
    ]  # fmt: skip


def test_a_finding_is_complete_without_scripts(rich_result: Result) -> None:
    source = render(rich_result, "html")
    page = Page(source)
    card = next(text for _, attrs, text in page.all("details") if attrs.get("id") == "TD101-1")
    for said in (
        "critical", "TD101", "The GPU waits for data", "saves up to 33% of step (178 → 119 ms, simulated)", "high confidence", "train.py:41",
        "DataLoader.__next__", "Re-timing the captured steps", "61.4", "review its risk", "num_workers=4",
        "Capture again", "Workers draw random numbers", "min_share", "1621401187223005.000", "SELECT ts, dur, name",
    ):  # fmt: skip
        assert said in card, said
    assert "<button" not in source.split("<script>")[1]


def test_codes_lead_to_the_finding_or_to_why_there_is_none(rich_result: Result) -> None:
    ids = {attrs.get("id") for _, attrs, _ in Page(render(rich_result, "html")).elements}
    assert {o.code for o in rich_result.outcomes} | {f.id for f in rich_result.findings} <= ids


def test_the_timeline_names_the_longest_gaps(rich_result: Result) -> None:
    source = render(rich_result, "html")
    assert 'class="f-data_loading"' in source
    gaps = source[source.index("<caption>The longest gaps") :]
    assert re.search(r"data loading.*?59\.6", gaps[:2000], re.DOTALL)


def test_marked_steps_say_where_a_step_ends(rich_result: Result, cpu_result: Result) -> None:
    said = "Lines mark the start of steps on the host; a step runs to its last kernel."
    assert said in render(rich_result, "html")
    assert said not in render(msgspec.structs.replace(rich_result, steps=[]), "html")
    assert said not in render(cpu_result, "html")


def test_an_oom_is_marked(snapshot_result: Result) -> None:
    source = render(snapshot_result, "html")
    assert "out of memory: asked for 512 MiB" in source


def test_a_page_of_snapshots_has_nothing_about_time(snapshot_result: Result, rich_result: Result) -> None:
    about_time = ("Step time", "GPU busy", 'id="time"')
    top = render(snapshot_result, "html").split('<section id="findings"', 1)[0]
    assert not [words for words in about_time if words in top]
    assert "Peak memory" in top
    whole = render(rich_result, "html")
    assert all(words in whole for words in about_time)


def test_a_page_of_flight_recorder_dumps_has_no_tile_without_a_figure(tmp_path: Path) -> None:
    for b in _flight_cases.hang(3):
        b.write(tmp_path / f"comm_lib_trace_rank_{b.rank}")
    page = render(trace_doctor.analyze(tmp_path), "html")
    tiles = page[page.index('<dl class="tiles"') : page.index("</dl>")]
    assert "Findings" in tiles and "–" not in tiles and 'id="time"' not in page


def test_a_snapshot_without_history_says_what_it_held(tmp_path: Path) -> None:
    """Not "no memory recorded", and not "nothing found" where nothing could be checked."""
    b = SnapshotBuilder()
    for size in (30, 4):
        b.held(size * MIB)
    page = render(trace_doctor.analyze(b.write(tmp_path / "snapshot.pickle")), "html", zoom=False)
    tiles = page[page.index('<dl class="tiles"') : page.index("</dl>")]
    assert "Allocated memory" in tiles and "34.0 MiB" in tiles
    assert "no memory recorded" not in page
    assert "nothing found" not in tiles and "no rule could run" in tiles


def test_the_tile_of_memory_says_that_reserved_is_the_maximum_of_the_record(snapshot_result: Result) -> None:
    """Most is not always reserved at the moment at which most is allocated."""
    page = render(snapshot_result, "html")
    tile = re.sub("<[^>]+>", "", page[page.index("<dt>Peak memory") :].split("</dd>")[0])
    assert "14.0 GiB reserved" in tile and tile.rstrip().endswith("at most")


def test_a_saving_of_reserved_memory_is_called_so(snapshot_result: Result) -> None:
    saving = Saving(bytes=300 << 20, share_of_peak=0.25, peak="reserved")
    finding = msgspec.structs.replace(snapshot_result.findings[0], saving=saving)
    source = render(msgspec.structs.replace(snapshot_result, findings=[finding]), "html")
    assert "25% of peak reserved memory" in source
    assert "up to 300 MiB of reserved memory" in source
    assert "300 MiB of peak memory" not in source


def test_a_short_spike_of_memory_is_seen(snapshot_result: Result) -> None:
    """Lines that part the classes would paint over what is as narrow as they are."""
    source = render(snapshot_result, "html")
    edges = "".join(re.findall(r'<path d="([^"]*)" class="edge"', source))
    level = [float(end) - float(at) for at, end in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", edges)]
    assert len(level) > 2
    assert min(level) >= 8 - 0.1
    assert ".area { stroke: currentcolor;" in source


def test_figures_of_one_page_agree(rich_result: Result) -> None:
    """A bound stays one when it is re-timed; of several captures a saving belongs to one."""
    first = msgspec.structs.replace(rich_result.findings[0], saving=Saving(basis="bound", share_of_step=0.33))
    findings = [first, *rich_result.findings[1:]]
    source = render(msgspec.structs.replace(rich_result, findings=findings), "html")
    table = source[source.index('<section id="what-if"') : source.index('<section id="findings"')]
    assert re.findall(r"<td>(measured|replay|bound|model)</td>", table) == ["measured", "bound", "bound"]


def test_a_saving_names_the_rank_it_is_of(many_ranks: Result) -> None:
    slow = [msgspec.structs.replace(w, input=3, rank=3) for w in many_ranks.what_if]
    source = render(msgspec.structs.replace(many_ranks, what_if=slow), "html", zoom=False)
    assert "60 ms/step of rank 3" in source


def test_a_cpu_capture_is_not_called_a_gpu(cpu_result: Result) -> None:
    source = render(cpu_result, "html")
    text = source[source.index("<main") : source.index('<section id="help"')]
    assert re.search(r"Main thread busy.*?70\.0%.*?not computing 30\.0%", text, re.DOTALL)
    assert "GPU" not in re.sub(r"<section id=\"(passed|skipped)\".*?</section>", "", text, flags=re.DOTALL)


def test_many_ranks_are_cut_and_it_is_said(many_ranks: Result) -> None:
    source = render(many_ranks, "html", zoom=False)
    assert "Showing 16 of 40 devices." in source
    assert len(source.encode()) < 300_000


def test_the_page_is_small(rich_result: Result) -> None:
    source = render(rich_result, "html", zoom=False)
    without_data = re.sub(r'<script type="application/json".*?</script>', "", source, flags=re.DOTALL)
    assert len(without_data.encode()) < 120_000
    assert len(render(rich_result, "html").encode()) < 2_500_000


def test_a_page_without_anything_to_zoom_into_carries_no_chart_library() -> None:
    assert len(render(Result(), "html").encode()) < 100_000


def test_nothing_found_says_what_could_not_be_checked(rich_result: Result) -> None:
    found: list[Finding] = []
    unexplained = msgspec.structs.replace(rich_result, findings=found, what_if=[])
    source = render(unexplained, "html")
    assert "No findings: 2 rules passed." in source and "No problems" not in source
    assert "4 rules skipped" in source
    explained = msgspec.structs.replace(unexplained, ownership=[], memory_ledger=[])
    assert "No problems: 2 rules passed." in render(explained, "html")


def _channel(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _contrast(one: str, other: str) -> float:
    lights = []
    for color in (one, other):
        red, green, blue = (_channel(int(color[i : i + 2], 16)) for i in (1, 3, 5))
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_colours_contrast_in_both_themes() -> None:
    css = files("trace_doctor.reporters.html").joinpath("report.css").read_text(encoding="utf-8")
    colors = {n: (a, b) for n, a, b in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    texts = [("text", g) for g in ("bg", "surface", "raised", "warning-bg", "info-bg")]
    texts += [(t, g) for t in ("muted", "accent") for g in ("bg", "surface", "raised")]
    texts += [(s, f"{s}-bg") for s in ("critical", "warning", "info", "add", "del")] + [
        ("good", "surface"),
        ("warning", "surface"),
    ]
    texts += [("muted", "warning-bg"), ("muted", "info-bg"), ("critical", "surface")]
    for theme in (0, 1):
        for text, ground in texts:
            assert _contrast(colors[text][theme], colors[ground][theme]) >= 4.5, (text, ground, theme)
        for name in colors:
            if name.startswith("k-") and name != "k-unattributed":
                assert _contrast(colors[name][theme], colors["surface"][theme]) >= 3, (name, theme)


def test_a_notebook_shows_the_report_in_a_frame(hostile_result: Result) -> None:
    frame = trace_doctor.Result.from_json(hostile_result.to_json())._repr_html_()
    assert frame is not None
    page = re.fullmatch(r'<iframe srcdoc="([^"]*)"[^<>]*></iframe>', frame)
    assert page is not None
    assert unescape(page[1]) == render(hostile_result, "html", zoom=False)


def test_a_console_shows_the_verdict_and_a_line_for_each_finding(hostile_result: Result) -> None:
    first, *lines = repr(hostile_result).splitlines()
    assert repr(hostile_result.summary.verdict) in first
    assert [line.split()[0] for line in lines] == [f"<{f.id}" for f in hostile_result.findings]
    assert repr(hostile_result).replace("\n", "").isprintable()


def test_what_check_decided_is_on_the_page(rich_result: Result) -> None:
    budgets = [
        Budget(
            name="step_time",
            unit="us",
            status="failed",
            found=101_000.0,
            values=[100_000.0, 102_000.0],
            limit=80_000.0,
        ),
        Budget(name="peak_reserved", unit="bytes", status="undecided", how="no snapshot <b>"),
    ]
    gate = Gate(code=1, verdict="check failed: 1 limit exceeded", failing=["TD101-1"], budgets=budgets)
    page = Page(render(msgspec.structs.replace(rich_result, gate=gate), "html", zoom=False))
    text = " ".join(t for _, _, t in page.all("td", "th", "p", "strong", "code", "span", "a"))
    for said in (
        "check failed: 1 limit exceeded",
        "101 ms",
        "80.0 ms",
        "100 ms, 102 ms",
        "no snapshot <b>",
        "TD101-1",
    ):
        assert said in text


def test_ranks_have_a_switch_that_needs_no_script_and_a_comparison(rich_result: Result) -> None:
    memory, ledger = rich_result.memory_timeline[0], rich_result.memory_ledger[0]
    ranks = range(3)
    lane, source = rich_result.timeline[0], rich_result.inputs[0]
    several = msgspec.structs.replace(
        rich_result,
        inputs=[msgspec.structs.replace(source, path=f"{n}.json", rank=n) for n in ranks],
        timeline=[msgspec.structs.replace(lane, input=n, rank=n) for n in ranks],
        memory_timeline=[msgspec.structs.replace(memory, input=n, rank=n) for n in ranks],
        memory_ledger=[msgspec.structs.replace(ledger, input=n, rank=n) for n in ranks],
    )
    page = Page(render(several, "html", zoom=False))
    radios = [(a["name"], a["value"]) for _, a, _ in page.all("input")]
    assert [v for name, v in radios if name == "timeline-views"] == ["all", "0", "1", "2"]
    assert sorted(v for name, v in radios if name == "memory-views") == ["0", "1", "2"]
    shown = [a["data-view"] for _, a, _ in page.all("div") if "data-view" in a]
    assert sorted(shown) == sorted(v for _, v in radios)
    assert any(a.get("aria-labelledby", "").startswith("peaks-chart") for _, a, _ in page.all("svg"))
    single = Page(render(rich_result, "html", zoom=False))
    assert not single.all("input")


def part(html: str, anchor: str) -> str:
    """One section of the page."""
    found = re.search(rf'<section id="{anchor}".*?</section>', html, re.DOTALL)
    assert found is not None
    return found[0]


def test_every_device_has_the_strips_of_its_streams(rich_result: Result) -> None:
    timeline = part(render(rich_result, "html", zoom=False), "timeline")
    assert [name for name in ("stream 7", "stream 20", "stream 24") if f">{name}</text>" in timeline] == [
        "stream 7", "stream 20", "stream 24"
    ]  # fmt: skip
    assert "Showing 3 of 9 streams" in timeline
    assert "strips below a device are its streams" in timeline


def test_of_many_ranks_the_streams_are_in_the_view_of_each(many_ranks: Result) -> None:
    timeline = part(render(many_ranks, "html", zoom=False), "timeline")
    views = timeline.split('class="view"')
    assert [view.count(">stream 20</text>") for view in views[1:]] == [0, *([1] * 8)]
    assert "strips below a rank on its own are its streams" in timeline


def test_the_classes_of_memory_are_named_above_their_picture(snapshot_result: Result) -> None:
    page = render(snapshot_result, "html", zoom=False)
    [series] = snapshot_result.memory_timeline
    names = [MEMORY[name].label for name, held in series.live_by_category.items() if any(held)]
    head = page[page.index('class="device"') : page.index('id="memory-chart-0')]
    assert names
    assert all(name in head for name in names)


@pytest.mark.parametrize("result", ["ranks"], indirect=True)
def test_eight_ranks_are_all_on_the_page_at_once(result: Result) -> None:
    page = render(result, "html", zoom=False)
    assert "Show all 8" not in page
    table = page[page.index("The most severe finding of each capture") :]
    assert all(f"rank {rank}" in table for rank in range(8))


def test_a_job_shows_each_rank_and_step_as_a_picture_and_as_a_table(job_result: Result) -> None:
    page = render(job_result, "html")
    panel = page[page.index('<section id="ranks"') :]
    panel = panel[: panel.index("</section>")]
    late = re.search(r'<tr><th scope="row"><span class="place"><a href="#TD602-1">rank 37</a>.*?</tr>', panel)
    assert late is not None and 'title="9000 µs"' in late[0]
    lacks = re.search(r'<tr><th scope="row"><span class="place"><a href="#rank=5">rank 5</a>.*?</tr>', panel)
    assert lacks is not None and 'title="not captured"' in lacks[0]
    assert (
        panel.count('<path d="M0 185h538') == 1
    )  # the only row that is drawn in color: the 38th of 5 pixels
    assert "1 rank of 129 not read: rank 128." in panel
    assert "only 1 read" in panel and "rank 37, 240 of 240" in panel
    assert "style=" not in panel


def test_foreign_text_of_a_job_stays_text(job_result: Result) -> None:
    [job] = job_result.jobs or []
    hostile = "<img src=x onerror=alert(1)>"
    root, lag = replace(job.roots[0], cause=hostile), replace(job.groups[0], kinds=[hostile], size=1 << 60)
    page = render(replace(job_result, jobs=[replace(job, roots=[root], groups=[lag])]), "html")
    panel = page[page.index('<section id="ranks"') :]
    panel = panel[: panel.index("</section>")]
    assert "<img" not in panel and panel.count("&lt;img") == 2
