from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.errors import UsageError
from trace_doctor.gate.suppressions import Suppressions
from trace_doctor.model import Finding, Location, Outcome, Result

SCRIPT = '''\
"""# trace-doctor: ignore[TD501] not a comment"""
import torch


def train(model, loader, optimizer):
    for x, y in loader:  # trace-doctor: ignore[TD101] a stub of the smoke test
        loss = model(
            x,
            y,
        )
        loss.backward()
        # trace-doctor: ignore[TD2, memory-growth] logged on purpose
        print(
            loss.item(),
        )
        optimizer.step()
'''


def finding(code: str, name: str, line: int | None, function: str = "train") -> Finding:
    return Finding(
        id=f"{code}-1", code=code, name=name, title="", severity="warning", confidence="high", message="", fingerprint=code,
        location=Location(file="train.py", line=line, function=function),
    )  # fmt: skip


def silenced(
    tmp_path: Path, *findings: Finding, entries: dict[str, str] | None = None, script: str = SCRIPT
) -> tuple[dict[str, str], list[str]]:
    """Id -> what silenced it, and the notes."""
    (tmp_path / "train.py").write_text(script)
    made = Suppressions.of(entries or {}, tmp_path)
    found = made.silenced(findings, lambda given: given)
    outcomes = [Outcome(code=f.code, name=f.name, outcome="fired") for f in findings]
    return {s.finding.id: s.where for s in found}, made.said(Result(suppressed=found, outcomes=outcomes))


@pytest.mark.parametrize(
    ("code", "name", "line", "where"),
    [
        ("TD101", "dataloader-starvation", 6, "train.py:6"),
        ("TD201", "host-device-sync", 14, "train.py:12"),
        ("TD201", "host-device-sync", 13, "train.py:12"),
        ("TD405", "memory-growth", 14, "train.py:12"),
        ("TD201", "host-device-sync", 16, None),
        ("TD201", "host-device-sync", 11, None),
        ("TD101", "dataloader-starvation", 7, None),
        ("TD501", "graph-break", 1, None),
        ("TD401", "allocator-churn", 14, None),
        ("TD201", "host-device-sync", None, None),
    ],
)
def test_a_comment_speaks_of_its_statement_and_its_rules(
    tmp_path: Path, code: str, name: str, line: int | None, where: str | None
) -> None:
    found, _ = silenced(tmp_path, finding(code, name, line))
    assert found == ({f"{code}-1": where} if where else {})


def test_what_is_silenced_is_counted_and_what_is_unused_is_told(tmp_path: Path) -> None:
    _, said = silenced(
        tmp_path, finding("TD101", "dataloader-starvation", 7), finding("TD201", "host-device-sync", 14)
    )
    assert said == [
        "suppressed: TD201-1 host-device-sync, by train.py:12 (logged on purpose)",
        "unused suppression: train.py:6 ignore[TD101] silences nothing in these captures",
    ]
    assert silenced(tmp_path, finding("TD404", "retained-gradients", 2))[1] == [], (
        "their rules could not look"
    )


@pytest.mark.parametrize(
    ("key", "means"),
    [
        ("TD201", True), ("TD2", True), ("host-device-sync", True), ("TD201 train.py", True), ("TD201 other.py", False),
        ("TD201 train.py:train", True), ("TD201 train.py:evaluate", False), ("TD101", False),
    ],
)  # fmt: skip
def test_an_entry_of_the_configuration(tmp_path: Path, key: str, means: bool) -> None:
    found, said = silenced(tmp_path, finding("TD201", "host-device-sync", 3), entries={key: "why"}, script="")
    assert bool(found) == means
    if means:
        assert said == [f"suppressed: TD201-1 host-device-sync, by {key} (why)"]


METHODS = """\
class Trainer:
    def fit(self):
        pass

class Evaluator:
    def fit(self):
        pass

def evaluate():
    pass
"""


@pytest.mark.parametrize(
    ("line", "function", "why"),
    [
        (2, "fit", None), (6, "fit", "it is Evaluator.fit"), (None, "fit", "of which class fit is, the source does not tell"),
        (None, "Trainer.fit", None), (None, "MyTrainer.fit", ""), (2, "Trainer.fit.<locals>.inner", ""),
    ],
)  # fmt: skip
def test_a_method_is_silenced_where_its_class_is_known(
    tmp_path: Path, line: int | None, function: str, why: str | None
) -> None:
    """`why` it is not silenced; None where it is."""
    (tmp_path / "train.py").write_text(METHODS)
    given = finding("TD201", "host-device-sync", line, function)
    made = Suppressions.of({"TD201 train.py:Trainer.fit": "wanted"}, tmp_path)
    assert bool(made.silenced([given], lambda findings: findings)) == (why is None)
    if why:
        [said] = made.said(Result(findings=[given]))
        assert said == f"suppress.'TD201 train.py:Trainer.fit' does not silence TD201-1: {why}"


def test_without_the_source_a_method_is_not_known_by_its_short_name() -> None:
    given = finding("TD201", "host-device-sync", 2, "fit")
    made = Suppressions.of({"TD201 train.py:Trainer.fit": "wanted"}, None)
    assert not made.silenced([given], lambda findings: findings)
    assert made.said(Result(findings=[given]))[0].endswith("of which class fit is, --source may tell")


def test_mistakes_are_told(tmp_path: Path) -> None:
    script = (
        "x = 1  # trace-doctor: ignore[TD999]\ny = 2  # trace-doctor: noqa\nz = 3  # trace-doctor: ignore[]\n"
    )
    _, said = silenced(tmp_path, script=script)
    assert sorted(s.split(" ")[0] for s in said) == ["train.py:1:", "train.py:2:", "train.py:3:"]
    assert any("TD999" in s for s in said)
    with pytest.raises(UsageError, match="TD999"):
        Suppressions.of({"TD999": "x"}, None)
    for blank in (" ", "\u200b", "\u3164", "\u2800 \N{NO-BREAK SPACE}"):
        with pytest.raises(UsageError, match="reason"):
            Suppressions.of({"TD101": blank}, None)


@pytest.mark.parametrize("script", ["\fx.item()", "x = 1 + \\  \n    x.item()"])
def test_comments_of_a_file_that_cannot_be_parsed_are_named(tmp_path: Path, script: str) -> None:
    script += "  # trace-doctor: ignore[TD201] wanted\n"
    found, said = silenced(tmp_path, finding("TD201", "host-device-sync", 1), script=script)
    assert (found, said) == ({}, ["train.py: comments were not read: the file cannot be parsed"])


@pytest.mark.parametrize(
    "mark",
    ["ignore[TD201] wanted", "ignore[TD9999] x", "ignore[*] x", "ignore[ТD201] x", "ignore all"],
)
@pytest.mark.parametrize("front", ["", "# noqa ", "# print(x)  ", "# see "])
def test_a_comment_that_silences_nothing_is_named(tmp_path: Path, front: str, mark: str) -> None:
    script = f"x = 1\nprint(x)  {front}# trace-doctor: {mark}\n"
    found, said = silenced(tmp_path, finding("TD201", "host-device-sync", 2), script=script)
    taken = not front and mark == "ignore[TD201] wanted"
    assert bool(found) == taken
    assert [s.startswith("train.py:2: ") for s in said] == [not taken]


def test_a_suppressed_fault_passes_and_every_output_tells_of_it(
    repository: Path, run: Callable[..., Any], record: Callable[..., None]
) -> None:
    record("host_sync", "simulated", "fault")
    script = repository / "train" / "fault.py"
    script.write_text(script.read_text().replace("# FAULT", "# trace-doctor: ignore[TD201] wanted"))
    done = run("check", "logs", "--source", ".", "-o", "json")
    assert done.code == 0
    assert not done.result.findings
    assert [s.finding.code for s in done.result.suppressed] == ["TD201"]
    assert done.result.summary.saving_up_to.share_of_step is None
    (repository / "r.json").write_text(done.out)
    for fmt in ("text", "markdown", "sarif", "junit", "html"):
        assert "wanted" in run("report", "r.json", "-o", fmt).out, fmt
    assert run("check", "logs").code == 1, "without the source nobody reads the comment"
