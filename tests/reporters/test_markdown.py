from __future__ import annotations

import re
from html import unescape

import msgspec
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from trace_doctor.model import Budget, Finding, Fix, Gate, Result
from trace_doctor.reporters import render
from trace_doctor.reporters.markdown import MOST_BYTES, fenced, md

OURS = re.compile(r"</?(details|summary|code)>")


def html(text: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(text)


def test_it_fits_a_comment_and_begins_with_the_verdict(result: Result) -> None:
    text = render(result, "markdown")
    assert len(text.encode()) <= MOST_BYTES + 1000
    assert text.startswith("## ")
    checked = msgspec.structs.replace(result, gate=Gate(code=1, verdict="check failed: 1 finding"))
    assert render(checked, "markdown").splitlines()[0] == "## ✖ check failed: 1 finding"


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>", "<!-- -->", "</details></summary>", "[a](http://evil)", "![a](x)", "<http://evil>",
        "https://evil.example", "www.evil.example", "*a* **b** __c__ _d_ ~~e~~", "`code` ``x``", "a | b | c", "# title", "- item",
        "+ item", "1. item", "12) item", "===", "> quote", "    code", "&lt;b&gt; &amp;", "\\*a\\*", "[x]: http://evil", "$x^2$",
        "@someone", "#12", "a\n\n## b", "```\nx", "\x1b[31m\u202e", "{{ x }} ${{ secrets.X }}", "<a", "a@b.example",
    ],
)  # fmt: skip
def test_foreign_text_is_text(text: str) -> None:
    shown = html(md(text)).strip().removeprefix("<p>").removesuffix("</p>")
    assert "<" not in shown
    assert (
        MarkdownIt("commonmark").enable("table").parse(f"| {md(text)} |\n| --- |\n| {md(text)} |\n")[0].type
        == "table_open"
    )
    assert "://" not in md(text)
    assert not re.search(r"(^|\W)@\w|(^|\W)#\d", md(text).replace("&#", ""))
    assert "${{" not in md(text)
    assert "$" not in md(text)


@pytest.mark.parametrize(
    "link", [":tada:", ":+1:", "a5c3785ed8d6a35868bc169f07e40e889087fd2e", "DA39A3E", "GH-12", "gh-1"]
)
def test_what_github_links_after_the_markup_is_broken(link: str) -> None:
    shown = unescape(html(md(f"on {link}, at::native::add, 1234567 of face")))
    assert link not in shown and link in shown.replace("\u200b", "")
    assert "at::native::add, 1234567 of face" in shown


def test_the_hostile_result_adds_no_element(hostile_result: Result, rich_result: Result) -> None:
    def elements(result: Result) -> set[str]:
        return set(re.findall(r"<(\w+)", html(render(result, "markdown"))))

    assert elements(hostile_result) <= elements(rich_result) | {"details", "summary", "code"}
    raw = re.sub(r"(?s)(`{3,}).*?\n\1", "", render(hostile_result, "markdown"))
    assert set(re.findall(r"<[^>]*>", raw)) == {m for m in re.findall(r"<[^>]*>", raw) if OURS.fullmatch(m)}


def test_a_fence_ends_only_at_its_end() -> None:
    for text in ("```\n## out", "a\n````\nb", "~~~\nx"):
        tokens = MarkdownIt("commonmark").parse(fenced(text, "diff"))
        assert [t.type for t in tokens] == ["fence"]
        assert tokens[0].content == text + "\n"


def test_the_budgets_are_a_table_with_all_that_is_known() -> None:
    budget = Budget(
        name="step_time", unit="us", status="failed", found=120_000.0, values=[119_000.0, 120_000.0, 121_000.0], limit=110_000.0,
        baseline=100_000.0, noise=3_000.0, how="limit: the baseline + 10% of it",
    )  # fmt: skip
    text = render(Result(gate=Gate(code=1, verdict="no", budgets=[budget])), "markdown")
    assert "| ✖ | step_time | 120 ms | 110 ms | 100 ms | ±3.00 ms | 119 ms, 120 ms, 121 ms |" in text


def test_too_much_is_cut_and_said() -> None:
    fix = Fix(title="t", kind="patch", diff="+++ b/x\n" + "+line\n" * 5000)
    found = [
        Finding(id=f"TD101-{n}", code="TD101", name="n", title="t", severity="critical", confidence="high", message="m" * 100_000,
                fingerprint="f", fixes=[fix])
        for n in range(100)
    ]  # fmt: skip
    text = render(Result(findings=found), "markdown")
    assert len(text.encode()) <= MOST_BYTES + 1000
    assert text.count("\n| ✖ critical | TD101-") == 100
    assert "more findings without details here" in text
    assert "… cut here" in text


@pytest.mark.parametrize("count", [100, 300, 2_000])
def test_however_many_findings_there_are_it_fits_a_comment_and_names_the_worst(
    rich_result: Result, count: int
) -> None:
    many = [replace(rich_result.findings[0], id=f"TD101-{n}") for n in range(1, count + 1)]
    page = render(replace(rich_result, findings=many), "markdown")
    assert len(page.encode()) <= 1 << 16
    assert "TD101-1 " in page and "TD101-100 " in page
    assert (f"and {count - 100:,} more findings" in page) == (count > 100)


def test_what_stands_around_it_fits_a_comment_as_well() -> None:
    row = Budget(name="TD201", unit="share", status="undecided")
    pages = [
        render(Result(gate=Gate(code=3, verdict="v", budgets=[row] * n)), "markdown") for n in (1_000, 1_001)
    ]
    each = len(pages[1]) - len(pages[0])
    rows = 1_000 + ((1 << 16) - 500 - len(pages[0].encode())) // each
    page = render(Result(gate=Gate(code=3, verdict="v", budgets=[row] * rows)), "markdown")
    assert page.startswith("## ")
    assert len(page.encode()) <= (1 << 16) - 1_000, "the action adds a mark and a link to it"
