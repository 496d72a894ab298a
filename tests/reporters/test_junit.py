from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec

from trace_doctor.model import Budget, Gate, Outcome, Result, Tool
from trace_doctor.reporters import render


def junit(result: Result) -> ET.Element:
    return ET.fromstring(render(result, "junit").encode())


def cases(result: Result) -> dict[str, ET.Element]:
    return {case.get("name", ""): case for case in junit(result).iter("testcase")}


KNOWN = {
    "testsuites": {"name", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped"},
    "testcase": {"name", "classname"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message", "type"},
    "system-out": set(),
}
"""The elements and attributes that are written: known to Jenkins, GitLab and others that read this format, which nobody
has standardised."""


def test_it_keeps_to_the_schema_that_readers_share(result: Result) -> None:
    below = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}}
    for element in junit(result).iter():
        assert set(element.attrib) <= KNOWN[element.tag]
        required = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
        assert required.get(element.tag, set()) <= set(element.attrib)
        leaves = {"failure", "error", "skipped", "system-out"} if element.tag == "testcase" else set()
        assert {child.tag for child in element} <= below.get(element.tag, leaves)


def test_the_counts_are_those_of_the_cases(result: Result) -> None:
    root = junit(result)
    for suite in root:
        found = suite.findall("testcase")
        assert suite.get("tests") == str(len(found))
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert suite.get(count) == str(len(suite.findall(f"testcase/{tag}")))
        assert all(
            len(case.findall("failure") + case.findall("error") + case.findall("skipped")) <= 1
            for case in found
        )
    for count in ("tests", "failures", "errors"):
        assert root.get(count) == str(sum(int(suite.get(count, "0")) for suite in root))


def test_hostile_text_is_well_formed_and_shows_no_control_character(hostile_result: Result) -> None:
    worse = msgspec.structs.replace(
        hostile_result,
        outcomes=[Outcome(code="TD101", name="x", outcome="skipped", reason="]]>\x00\x0b\ufffe\uffff\ud800")],
    )
    strange = msgspec.structs.replace(hostile_result, tool=Tool(name="\x1b<x>\x00"))  # of a saved result
    for result in (hostile_result, worse, strange):
        text = render(result, "junit")
        assert not {c for c in text if c < " " and c != "\n"}
        assert not set(text) & set("\x1b\u202e\u2028\ufffe\uffff")
        assert not [e.tag for e in junit(result).iter() if e.tag not in (
            "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out")]  # fmt: skip


def test_a_rule_that_could_not_look_has_not_passed(rich_result: Result) -> None:
    found = cases(rich_result)
    assert found["TD101 dataloader-starvation"].find("failure") is not None
    assert found["TD403 memory-spike"].find("skipped") is not None
    assert found["TD502 recompile"].find("error") is not None
    assert len(found["TD201 host-device-sync"]) == 0


def test_a_finding_whose_rule_is_not_listed_is_a_failure_as_well(rich_result: Result) -> None:
    found = cases(msgspec.structs.replace(rich_result, outcomes=[]))
    assert found["TD101 dataloader-starvation"].find("failure") is not None


def test_only_what_fails_the_check_is_a_failure(rich_result: Result) -> None:
    gate = Gate(
        code=1,
        verdict="check failed",
        failing=["TD404-1"],
        known=["TD101-1"],
        undecided=["TD403 (needs a memory snapshot)"],
        budgets=[
            Budget(name="step_time", unit="us", status="failed", found=2000.0, values=[2000.0], limit=1000.0),
            Budget(name="gpu_idle_share", unit="share", status="undecided", how="no GPU"),
            Budget(name="peak_reserved", unit="bytes", level="warning", status="failed", found=2.0, values=[2.0], limit=1.0),
        ],
    )  # fmt: skip
    found = cases(msgspec.structs.replace(rich_result, gate=gate))
    assert found["TD101 dataloader-starvation"].find("failure") is None
    assert "59.3 ms" in (found["TD101 dataloader-starvation"].findtext("system-out") or "")
    assert found["TD403 memory-spike"].find("error") is not None
    failure = found["step_time"].find("failure")
    assert failure is not None
    assert "2.00 ms, expected at most 1.00 ms" in failure.get("message", "")
    assert found["gpu_idle_share"].find("error") is not None
    assert found["peak_reserved"].find("failure") is None


def test_a_name_with_line_breaks_begins_no_line(result: Result) -> None:
    """Such a file may be appended to one that a CI server reads variables from."""
    name = "\nX=1\n"
    named = [msgspec.structs.replace(i, path=name) for i in result.inputs]
    findings = [msgspec.structs.replace(f, message=f"{name} is slow", title=name) for f in result.findings]
    outcomes = [Outcome(code="TD001", name=name, outcome=o, reason=name) for o in ("skipped", "error")]
    made = msgspec.structs.replace(result, inputs=named, findings=findings, outcomes=outcomes)
    assert not [line for line in render(made, "junit").splitlines() if line.startswith("X=1")]
