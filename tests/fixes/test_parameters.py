"""A saved result is input like any other: whatever its parameters say, an edit adds what its codemod declares, or none is
made."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_doctor.errors import NotACapture, UnusableResult
from trace_doctor.fixes import Plan, plan
from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.frameworks import trainers as tables
from trace_doctor.fixes.frameworks.deepspeed import AUTO
from trace_doctor.fixes.literals import source_text
from trace_doctor.fixes.resolved import new_bytes
from trace_doctor.model import Finding, Fix, Location, Result
from trace_doctor.model.parameters import PARAMETERS, parameters
from trace_doctor.reporters.saved import read_saved

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """Files that a codemod edits, by an example of `cases` or `programs`."""

    codemod: str
    params: dict[str, Any]
    files: dict[str, str]
    place: dict[str, Any]
    torch: str | None

    def result(self, params: object) -> bytes:
        finding = Finding(
            id="TD101-1", code="TD101", name="a-rule", title="t", severity="info", confidence="high", message="m",
            fingerprint="f", location=Location(**self.place), fixes=[Fix(title="t", kind="patch", codemod=self.codemod)],
        )  # fmt: skip
        made = json.loads(Result(findings=[finding]).to_json())
        made["findings"][0]["fixes"][0]["params"] = params
        return json.dumps(made).encode()

    def plan(self, folder: Path, params: object) -> Plan:
        """Raises UnusableResult where the result is not read."""
        saved = folder / "result.json"
        saved.write_bytes(self.result(params))
        return plan(read_saved(saved), folder / "source", torch_version=self.torch)


def read_cases() -> Iterator[Case]:
    for path in sorted((HERE / "cases").glob("*.md")):
        for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            blocks = dict(re.findall(r"(?ms)^```(before|after)\n(.*?)^```$", part))
            said = dict(re.findall(r"(?m)^(params|at|torch): (.*)$", re.sub(r"(?s)```.*?```", "", part)))
            if "after" in blocks:
                lines = [
                    n for n, t in enumerate(blocks["before"].split("\n"), 1) if said.get("at", "\0") in t
                ]
                place = {"file": "train.py", "line": lines[0]} if lines else {}
                params = json.loads(said.get("params", "{}"))
                yield Case(path.stem, params, {"train.py": blocks["before"]}, place, said.get("torch"))
    for path in sorted((HERE / "programs").glob("*.md")):
        for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            files = dict(re.findall(r"(?ms)^```before (\S+)\n(.*?)^```$", part))
            if "```after" in part and (said := re.search(r"(?m)^fix: (\S+) (\{.*\})$", part)):
                yield Case(said[1], json.loads(said[2]), files, {}, None)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Case, Path]]]:
    """For each codemod the examples that a saved result makes it edit, with the folders that they lie in."""
    found: dict[str, list[tuple[Case, Path]]] = {}
    for case in read_cases():
        folder = tmp_path_factory.mktemp(case.codemod)
        for name, text in case.files.items():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_text(text)
        if case.plan(folder, case.params).items[0].change is not None:
            found.setdefault(case.codemod, []).append((case, folder))
    return found


# ---------------------------------------------------------------------- what an edit may add


WORD = re.compile(r"[A-Za-z_]\w*(?:-\w+)*")


def words(name: str, text: str) -> tuple[set[str], set[str]]:
    """Identifiers, words of strings and imported names of a file, and its calls."""
    if not name.endswith(".py"):
        return set(re.findall(r"[A-Za-z_]+", text)), set()
    found, calls = set(), set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            said = getattr(node, field, None)
            found |= set(said.split(".")) if isinstance(said, str) else set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(WORD.findall(node.value)) | set(re.findall(r"[^\w\s.,:=(){}'\"/-]", node.value))
        elif isinstance(node, ast.Constant) and type(node.value) not in (int, float):
            found.add(repr(node.value))
        if isinstance(node, ast.Call):
            calls.add(ast.unparse(node))
    return found, calls


def of_frameworks() -> set[str]:
    """What the tables of frameworks' settings say."""
    said = set()
    for table in (
        tables.TRAINING_ARGUMENTS,
        tables.ACCELERATE,
        tables.DYNAMO,
        tables.LIGHTNING,
        tables.FABRIC,
    ):
        for setting in table.values():
            plugin = setting.plugin
            texts = [setting.name, setting.value, setting.always]
            texts += [plugin.name, plugin.constructor] if plugin else []
            said |= {w for t in texts for w in [*WORD.findall(t), *re.findall(r"[A-Za-z_]+", t)]}
    return said | {AUTO} | {w.lower() for w in said} | {w.upper() for w in said}


def name_of(call: str) -> str:
    """What is called; of a call that is called itself, that."""
    node: ast.expr = ast.parse(call, mode="eval").body
    while isinstance(node, ast.Call):
        node = node.func
    return ast.unparse(node).rpartition(".")[2]


def assert_only_declared(made: Plan, codemod: str) -> int:
    """How many files the edits change; each only by what the codemod declares, and the settings of a framework."""
    files = 0
    for change in (item.change for item in made.items if item.change):
        allowed = codemods()[codemod].adds | (of_frameworks() if change.framework else set())
        for file, edits in change.files:
            after = new_bytes(file, edits).decode(file.encoding)
            (old, called), (new, calls) = words(file.name, file.text), words(file.name, after)
            allowed |= {f"compiled_{w}" for w in old} if "compiled_" in allowed else set()
            assert new - old <= allowed, f"{codemod} adds {sorted(new - old - allowed)}"
            more = {name_of(call) for call in calls - called}
            assert more <= allowed | {name_of(call) for call in called}, f"{codemod} calls {sorted(more)}"
            files += 1
    return files


@pytest.mark.parametrize("codemod", sorted(PARAMETERS))
def test_examples_add_what_is_declared(examples: dict[str, list[tuple[Case, Path]]], codemod: str) -> None:
    edited = [assert_only_declared(c.plan(f, c.params), codemod) for c, f in examples[codemod]]
    assert sum(edited) >= len(edited) >= 1


def test_no_codemod_calls_itself_safe(examples: dict[str, list[tuple[Case, Path]]]) -> None:
    plans = [case.plan(folder, case.params) for each in examples.values() for case, folder in each]
    changes = [item.change for each in plans for item in each.items if item.change is not None]
    assert changes and {change.safety for change in changes} <= {"unsafe", "display"}


def test_there_is_an_example_for_each_codemod(examples: dict[str, list[tuple[Case, Path]]]) -> None:
    assert set(examples) == set(codemods()) == set(PARAMETERS)


# ---------------------------------------------------------------------- whatever a result says

CHOICES: dict[str, list[dict[str, Any]]] = {
    "allocator-setting": [{"key": "expandable_segments", "value": v} for v in (True, False, "True", "False")],
    "autocast": [{"dtype": t, "device": d} for t in ("bfloat16", "float16") for d in ("cuda", "cpu", "xpu")],
    "batch-size": [{"size": n} for n in (1, 2, 1 << 30)],
    "compile-model": [
        {"mode": "max-autotune"},
        {"backend": "cudagraphs"},
        {"dynamic": False, "fullgraph": "True"},
    ],
    "dataloader-args": [{"num_workers": 1024, "prefetch_factor": 1024}, {"pin_memory": True}, {}],
    "deepspeed-zero": [{"stage": n, "offload_optimizer": True, "offload_param": True} for n in range(4)],
    "every-n-guard": [{"every": n} for n in (2, 1 << 16)],
    "save-every-n": [{"every": n} for n in (2, 1 << 16)],
    "gradient-accumulation": [{"steps": n} for n in (2, 4, 1 << 16)],
    "mark-dynamic": [{"name": "x", "dim": 63}, {"name": "größe"}, {"dim": 0}],
    "optimizer-args": [
        {"fused": True, "class": "AdamW"},
        {"foreach": True},
        {"foreach": False},
        {"fused": False},
    ],
    "remove-call": [{"call": f"torch.cuda.{c}"} for c in ("empty_cache", "synchronize")],
    "replace-optimizer": [{"to": t, "class": "Adam"} for t in ("adamw-8bit", "adafactor")],
    "sdpa-backend": [{"backends": ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]}],
    "set-call-args": [
        {
            "callee": "torch.compile",
            "args": {"mode": "max-autotune", "fullgraph": False},
            "remove": ["dynamic"],
        },
    ],
    "set-config": [
        {"name": f"torch.{n}", "value": v}
        for n in ("backends.cudnn.benchmark", "backends.cuda.matmul.allow_tf32")
        for v in (True, "False")
    ],
    "zero-grad": [{"mode": m} for m in ("add", "move", "drop-set-to-none-false")],
}
"""parameters that are taken, up to their bounds"""
EVIL = (
    'True"); __import__("os").system("touch PWNED"); ("', "True\n__import__('os').system('touch PWNED')",
    "os.environ", "torch.save", "__import__", "exec", "x' or PWNED or '", "\\", '"', "'", "\N{LINE SEPARATOR}PWNED()",
    "\0", "\udcff", "$(touch PWNED)", "`touch PWNED`", "../../PWNED", "class", "lambda: PWNED", "2.6.0\nRUN PWNED",
)  # fmt: skip
hostile = st.recursive(
    st.sampled_from(EVIL) | st.text(max_size=20) | st.integers() | st.floats(allow_nan=False) | st.booleans()
    | st.none() | st.sampled_from([1 << 63, 1 << 64, -(1 << 63), 1e308, -0.0, 10**40]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dynamic", "args", *EVIL]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize("codemod", sorted(CHOICES))
def test_every_choice_adds_what_is_declared(
    examples: dict[str, list[tuple[Case, Path]]], codemod: str
) -> None:
    edited = 0
    for case, folder in examples[codemod][:4]:
        for params in CHOICES[codemod]:
            edited += assert_only_declared(case.plan(folder, params), codemod)
    assert edited


@pytest.mark.parametrize("codemod", sorted(PARAMETERS))
def test_code_in_any_parameter_is_refused_or_only_compared(
    examples: dict[str, list[tuple[Case, Path]]], codemod: str
) -> None:
    case, folder = examples[codemod][0]
    for name in sorted(fields(codemod)):
        for text in EVIL:
            for value in (text, [text], {text: text}, {"dynamic": text}):
                assert_refused_or_declared(case, folder, {**case.params, name: value})


@pytest.mark.parametrize("codemod", sorted(PARAMETERS))
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_of_any_parameter_is_refused_or_adds_what_is_declared(
    examples: dict[str, list[tuple[Case, Path]]], codemod: str, data: st.DataObject
) -> None:
    case, folder = examples[codemod][0]
    names = sorted(fields(codemod)) or ["file", "line"]
    odd = data.draw(st.dictionaries(st.sampled_from(names), hostile, min_size=1, max_size=2))
    assert_refused_or_declared(case, folder, case.params | odd)


def assert_refused_or_declared(case: Case, folder: Path, params: object) -> None:
    try:
        made = case.plan(folder, params)
    except NotACapture as refused:
        said = str(refused)
        assert said.isprintable() and len(said) < 400
        named = f"TD101-1, fix 1 ({case.codemod}): parameter " in said
        assert named or "JSON is malformed" in said
        return
    assert_only_declared(made, case.codemod)
    assert b"PWNED" not in made.patch()


def fields(codemod: str) -> set[str]:
    return {f.encode_name for t in getattr(PARAMETERS[codemod], "__args__", [PARAMETERS[codemod]])
            for f in msgspec.structs.fields(t)}  # fmt: skip


values = st.recursive(
    st.booleans() | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.dictionaries(st.text(), inner, max_size=3),
)


@given(values)
def test_a_written_value_is_that_value_and_nothing_else(value: Any) -> None:
    assert ast.literal_eval(source_text(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_without_a_literal_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no literal"):
        source_text(value)


def test_parameters_that_no_codemod_takes_name_the_finding_and_the_parameter(tmp_path: Path) -> None:
    """One line that a person can act on, whatever the names hold."""
    case = Case("autocast", {}, {}, {}, None)
    (tmp_path / "r.json").write_bytes(case.result({"dtype": "float8\n\x1b[31m" + "x" * 10_000}))
    with pytest.raises(UnusableResult) as refused:
        read_saved(tmp_path / "r.json")
    said = str(refused.value)
    assert said.startswith("r.json: TD101-1, fix 1 (autocast): parameter dtype: Invalid enum value")
    assert len(said) < 300 and said.isprintable()


@pytest.mark.parametrize(
    "params",
    [{"args": {"dynamic": True}, "remove": ["dynamic"]}, {"remove": ["mode", "mode"]}],
    ids=["set and removed", "removed twice"],
)
def test_an_argument_that_is_named_twice_is_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    case = Case("set-call-args", {}, {}, {}, None)
    (tmp_path / "r.json").write_bytes(case.result({"callee": "torch.compile", **params}))
    with pytest.raises(UnusableResult, match=r"TD101-1, fix 1 \(set-call-args\): .*named twice"):
        read_saved(tmp_path / "r.json")


def test_a_codemod_of_a_newer_version_is_shown(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("import torch\n")
    item = Case("not-yet", {}, {}, {}, None).plan(tmp_path, {"any": ["thing"]}).items[0]
    assert (item.status, item.why, item.safety) == (
        "display", "this version has no codemod named not-yet", "display",
    )  # fmt: skip


def test_parameters_of_a_rule_are_checked_again_where_its_fix_is_planned(tmp_path: Path) -> None:
    """A result that was made here, and never read."""
    (tmp_path / "train.py").write_text("import torch\n")
    made = json.loads(Case("set-config", {}, {}, {}, None).result({"name": "os.environ", "value": "PWNED()"}))
    result = msgspec.convert(made, Result)
    item = plan(result, tmp_path).items[0]
    assert (item.status, item.change) == ("unresolved", None)
    assert "set-config takes no such parameters" in item.why


def test_the_types_are_those_of_the_codemods() -> None:
    assert {name: mod.params for name, mod in codemods().items()} == dict(PARAMETERS)
    assert parameters("set-call-args", {"callee": "torch.compile"}).callee == "torch.compile"
