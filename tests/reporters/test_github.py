from __future__ import annotations

import re

import msgspec

from trace_doctor.model import Finding, Gate, Location, Result, Severity, Suppressed
from trace_doctor.reporters import render

COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def annotations(text: str) -> list[tuple[str, dict[str, str], str]]:
    """As the runner reads them: kind, properties, message."""
    found = []
    for line in text.splitlines():
        match = COMMAND.fullmatch(line)
        if match:
            properties = dict(p.split("=", 1) for p in match[2].split(","))
            found.append(
                (
                    match[1],
                    {k: _data(v.replace("%3A", ":").replace("%2C", ",")) for k, v in properties.items()},
                    _data(match[3]),
                )
            )
    return found


def _data(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def finding(
    number: int, severity: Severity = "warning", message: str = "m.", file: str | None = "train.py"
) -> Finding:
    return Finding(
        id=f"TD101-{number}", code="TD101", name="name", title="", severity=severity, confidence="high", message=message,
        fingerprint=str(number), location=Location(file=file, line=number),
    )  # fmt: skip


def test_every_line_is_an_annotation_but_the_one_that_counts_the_rest(result: Result) -> None:
    lines = render(result, "github").splitlines()
    assert len(annotations("\n".join(lines))) >= len(lines) - 1 - bool(result.suppressed)


def test_at_most_ten_of_a_kind_and_what_fails_first() -> None:
    found = [finding(n, "warning") for n in range(1, 15)] + [finding(n, "critical") for n in range(20, 33)]
    text = render(Result(findings=found, gate=Gate(code=1, verdict="no", failing=["TD101-32"])), "github")
    made = annotations(text)
    assert [kind for kind, *_ in made].count("error") == 10
    assert [kind for kind, *_ in made].count("warning") == 10
    assert made[0][2] == "no"
    assert made[1][1]["line"] == "32"
    assert (
        text.splitlines()[-1]
        == "trace-doctor: 4 errors, 4 warnings more than GitHub shows of a step; see the report"
    )


def test_what_is_silenced_is_counted() -> None:
    silenced = [
        Suppressed(finding=finding(n), kind="comment", where="train.py:1", reason="known") for n in (1, 2)
    ]
    assert render(Result(suppressed=silenced), "github").splitlines() == [
        "trace-doctor: 2 findings silenced by comments or configuration"
    ]


def test_what_is_escaped_comes_back() -> None:
    hostile = "100% %0A ::error::x\n##[error]y, a:b\r\x1b[31m"
    one = msgspec.structs.replace(
        finding(1, message=hostile), name="n,:%", location=Location(file="a,b%3A.py", line=3)
    )
    text = render(Result(findings=[one]), "github")
    [(kind, properties, message)] = annotations(text)
    assert kind == "warning"
    assert properties == {"file": "a,b%3A.py", "line": "3", "title": "TD101 n,:%"}
    assert message == "100% %0A ::error::x\n## [error]y, a:b\\x0d\\x1b[31m"
    assert "##[" not in text
    assert "\x1b" not in text


def test_a_place_outside_of_the_repository_is_not_named() -> None:
    for file in (None, "/root/train.py", "../x.py", "torch/optim/adam.py"):
        [(_, properties, _)] = annotations(render(Result(findings=[finding(1, file=file)]), "github"))
        assert set(properties) == {"title"}


def test_the_hostile_result_makes_no_other_command(hostile_result: Result) -> None:
    for line in render(hostile_result, "github").splitlines():
        assert COMMAND.fullmatch(line)
        assert "##[" not in line


def test_no_foreign_line_of_the_terminal_report_is_a_command() -> None:
    for hostile in ("::error file=x,line=1::pwned", "##[error]pwned", f"{'w' * 70} ::add-mask::x y z"):
        text = render(Result(findings=[finding(1, message=hostile)]), "text")
        for line in text.splitlines():
            assert not re.match(r"\s*::[\w-]+( [^:]*)?::", line)
            assert "##[" not in line
        assert "pwned" in text or "add-mask" in text
