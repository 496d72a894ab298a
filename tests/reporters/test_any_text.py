"""Whatever strings a result holds: every reporter ends, stays in bounds, and writes nothing that a CI server obeys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trace_doctor.errors import printable
from trace_doctor.gate.diff import difference
from trace_doctor.gate.verify import verify
from trace_doctor.model import (
    Column,
    Finding,
    Fix,
    Gate,
    Input,
    Location,
    Outcome,
    Result,
    Saving,
    Table,
    Tool,
)
from trace_doctor.model.difference import Difference
from trace_doctor.model.treatment import Attempt, ByHand, FileChange, Method, Treatment
from trace_doctor.reporters import FORMATS, Options, render
from trace_doctor.reporters import verification as verification_text
from trace_doctor.reporters.difference import render as render_difference
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.treatment import markdown as treatment_markdown
from trace_doctor.reporters.treatment import text as treatment_text
from trace_doctor.reporters.treatment.markdown import commit_message
from trace_doctor.reporters.units import columns

ALPHABET = st.one_of(
    st.sampled_from([
        "##vso[task.setvariable variable=x]y", "##[error]", "##teamcity[x]", "::error::x", "::add-mask::x", "/a/b/", "\x1b[2J",
        "\u0301", "\u200b", "\u202e", "漢", "\t", "\n", "\r", " ", "#", "##", "[", ":", "::", "w" * 90, "漢字" * 60,
        "<script>", "]]>", "|", "`",
    ]),
    st.characters(exclude_categories=["Cs"]),
)  # fmt: skip
TEXT = st.lists(ALPHABET, max_size=30).map("".join)
COMMANDS = re.compile(r"##\w*\[|^\s*::[\w-]+( [^:\n]*)?::", re.MULTILINE | re.ASCII)
METHOD = Method(
    warmup_steps=1,
    timed_steps=9,
    figure="median",
    repeats=6,
    alpha=0.05,
    least_gain=0.01,
    loss_tolerance=0.02,
)
unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def result(text: Any) -> Result:
    """One with such a text wherever one can stand."""
    t = text
    place = Location(file=t(), line=3, function=t(), rank=0)
    finding = Finding(
        id="TD101-1", code="TD101", name=t(), title=t(), severity="warning", confidence="high", location=place,
        message=t(), fingerprint="x", saving=Saving(time_us_per_step=10.0, share_of_step=0.1, how=t()), why=t(),
        evidence=[Table(title=t(), columns=[Column(t()), Column(t(), "us")], rows=[[t(), 1.0], [t(), None]])],
        fixes=[Fix(title=t(), kind="patch", text=t(), verify=t(), risk=t(), codemod=t(), diff=None, framework=t())],
    )  # fmt: skip
    return Result(
        tool=Tool(name=t(), version=t()),
        inputs=[Input(path=t(), kind="trace", warnings=[t()])],
        findings=[finding],
        outcomes=[Outcome(code="TD202", name=t(), title=t(), outcome="skipped", reason=t(), capture=t())],
        gate=Gate(code=1, verdict=t(), fail_on="warning", failing=["TD101-1"], undecided=[t()], notes=[t()]),
        limits=[t()],
    )


@unhurried
@given(st.data(), st.integers(1, 400), st.booleans())
def test_text_ends_within_its_width_at_any_width(data: st.DataObject, width: int, ascii: bool) -> None:
    drawn: list[str] = []

    def text() -> str:
        drawn.append(data.draw(TEXT))
        return drawn[-1]

    made = result(text)
    said = render(made, "text", width=width, ascii=ascii, show_skipped=True)
    assert max(map(columns, said.splitlines())) <= max(width, 40)
    assert len(said) <= 20_000 + 60 * sum(map(len, drawn))
    assert not COMMANDS.search(said)


def test_no_command_is_made_where_a_terminal_has_ascii_only() -> None:
    assert not COMMANDS.search(render(result(lambda: "##\N{MULTIPLICATION SIGN}["), "text", ascii=True))


@unhurried
@given(st.data())
def test_no_format_holds_a_command_to_a_ci_server(data: st.DataObject) -> None:
    no_commands_in(result(lambda: data.draw(TEXT)))


@pytest.mark.parametrize(
    "text", ["::error::x", "a\n::error file=b::c", "a\n  ::warning::b", "##vso[x]", "a ##[group]b"]
)
def test_no_format_holds_this_command_wherever_it_stands(text: str) -> None:
    no_commands_in(result(lambda: text))


def no_commands_in(made: Result) -> None:
    for fmt in sorted(FORMATS):
        said = render(made, fmt, zoom=False)
        if fmt == "github":  # is commands itself: one a line, whose message cannot be another
            assert all(re.match(r"::(error|warning|notice)( [^\n]*?)?::", line) for line in said.splitlines())
            said = said.replace("::", " ")
        assert not COMMANDS.search(said), fmt


@settings(unhurried, max_examples=30)
@given(st.data(), st.integers(1, 400))
def test_comparisons_and_treatments_end_as_well(data: st.DataObject, width: int) -> None:
    drawn: list[str] = []

    def text() -> str:
        drawn.append(data.draw(TEXT))
        return drawn[-1]

    before, after = result(text), result(text)
    compared = difference(before, after)
    treated = treatment(text, compared)
    options = Options(width=width)
    on_a_terminal = [
        verification_text.render(verify(before, after), options),
        render_difference(compared, "text", options),
        treatment_text.render(treated, options),
    ]
    for said in on_a_terminal:
        assert max(map(columns, said.splitlines())) <= max(width, 40)
        assert len(said) <= 20_000 + 60 * sum(map(len, drawn))
    in_files = [
        verify(before, after).to_json().decode(),
        render_difference(compared, "json"),
        render_difference(compared, "markdown"),
        treated.to_json().decode(),
        treatment_markdown.render(treated, options),
        commit_message(treated.attempts[0]),
    ]
    for said in (*on_a_terminal, *in_files):
        assert not COMMANDS.search(said)
    assert max(map(len, commit_message(treated.attempts[0]).splitlines())) <= 72
    for kept in ([], [msgspec.structs.replace(treated.attempts[0], fate="kept")]):
        page = treatment_markdown.render(msgspec.structs.replace(treated, attempts=kept), options)
        assert not re.search(r"<(?!/?code>)", page), "nothing of it is markup"
        assert not COMMANDS.search(page)
    assert Treatment.from_json(treated.to_json()) == treated


def treatment(t: Callable[[], str], compared: Difference) -> Treatment:
    attempt = Attempt(
        id="TD101-1", code="TD101", name=t(), title=t(), severity="warning", confidence="high",
        location=Location(file=t(), function=t()), label=t(), fix=t(), kind="patch",
        safety="unsafe", fate="rejected", reason=t(), diff=t(), environment={t(): t()}, arguments=[t()],
    )  # fmt: skip
    return Treatment(
        code=1, verdict=t(), method=METHOD, attempts=[attempt], patch=t(), environment={t(): t()}, notes=[t()],
        by_hand=[ByHand(label=t(), fix=t(), why=t(), text=t())], stopped=t(), difference=compared,
        changed=[FileChange(name=t(), how="changed", through=t())], changed_count=1,
    )  # fmt: skip


@unhurried
@given(TEXT, TEXT, st.integers(1, 400), st.integers(0, 500))
@example("漢" * 50, "w" * 90, 40, 92)
@example("w" * 90, "", 1, 40)
def test_a_paragraph_ends_whatever_stands_before_it(text: str, first: str, width: int, indent: int) -> None:
    terminal = Terminal(width, color=False, ascii=False)
    terminal.put(text, indent=indent, first=first)
    terminal.row([(text, 0), (first, -1), (text, 5)])
    terminal.flow([(text, ""), (first, "")], indent=2)
    assert len(terminal.lines) <= 10 + 2 * (len(text) + len(first)) * 10


def test_a_name_of_ninety_characters_leaves_room_for_the_rest() -> None:
    made = Result(tool=Tool(name="n" * 90, version="1"), inputs=[Input(path="trace.json", kind="trace")])
    said = render(made, "text")
    assert "trace.json" in said
    assert len(said) < 2_000


def test_a_text_of_a_million_characters_is_written() -> None:
    for word in ("漢" * 200_000, "\u0301" * 200_000, "w" * 1_000_000, "a " * 300_000):
        made = Result(tool=Tool(name="t", version="1"), inputs=[Input(path=word, kind="trace")])
        assert len(render(made, "text")) < 10_000_000


@pytest.mark.parametrize(
    "text", ["x\n::error file=a::y", "  ::warning::z", "##vso[task.complete]", "a ##[group]b"]
)
def test_what_is_said_on_stderr_is_no_command(text: str) -> None:
    assert not COMMANDS.search(printable(text))


def test_json_with_a_command_is_the_same_json() -> None:
    made = Result(tool=Tool(name="##vso[task.complete]", version="\\##[x"))
    assert b"##vso[" not in made.to_json()
    assert Result.from_json(made.to_json()) == made


def test_json_shows_what_would_be_obeyed_or_hidden() -> None:
    text = "a\x9b31m\x7f\u202eb\u200b\u2066c\ufeff漢"
    made = Result(tool=Tool(name=text, version="1"))
    for data in (made.to_json(), difference(made, made).to_json(), verify(made, made).to_json()):
        assert not set("\x9b\x7f\u202e\u200b\u2066\ufeff") & set(data.decode())
        assert "漢" in data.decode()
    assert Result.from_json(made.to_json()) == made


def test_a_message_in_sarif_is_no_link() -> None:
    sarif = render(result(lambda: "[click](javascript:alert(1)) [x](1)"), "sarif")
    messages = re.findall(r'"(?:text|markdown)": "(.*)"', sarif)
    assert messages
    assert not [message for message in messages if "](" in message]
