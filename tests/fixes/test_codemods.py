"""Every codemod by its cases in `cases/*.md`: a heading says what happens, then the input, then the output or a refusal.

## heading
params: {json}          at: text on the line that the capture names (optional)          torch: 2.12 (optional)
notes: words of the edit's notes, or none (optional)
```python
input
```
```python
output
```
or, instead of the second block, `refuses: kind, words of the reason` and, where there is one, a block `sketch`. With `runs: expression` both scripts are run and
the expression's value (numbers or tensors) agrees within `tolerance: 1e-5`; without a tolerance, bit by bit.
"""

from __future__ import annotations

import codecs
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.resolved import new_bytes, sketch_of
from trace_doctor.program.edits import Change, Edit, NoEdit
from trace_doctor.program.place import Place
from trace_doctor.program.script import Script, dotted, method_name
from trace_doctor.program.versions import FORMS, TorchBounds, parse, refused_form


@dataclass(frozen=True)
class Case:
    codemod: str
    title: str
    params: dict[str, object]
    """as a result holds them"""
    at: str | None
    torch: str | None
    before: str
    after: str | None
    refuses: tuple[str, str] | None
    sketch: str
    runs: str | None
    tolerance: float
    notes: str

    def place(self, script: Script) -> Place:
        line = None
        if self.at is not None:
            hits = [n for n, text in enumerate(self.before.split("\n"), 1) if self.at in text]
            assert hits, f"no line holds {self.at!r}"
            line = hits[0]
        version = parse(self.torch)
        return Place([script], line, None, TorchBounds(version, version))

    def change(self, script: Script) -> Change:
        mod = codemods()[self.codemod]
        return mod.run(self.place(script), mod.parameters(self.params))


def read_cases(path: Path) -> list[Case]:
    found = []
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        codes = [
            code + "\n"
            for code in re.findall(r"^```(?:before|after)\n(.*?)\n?```$", body, re.DOTALL | re.MULTILINE)
        ]
        fields = dict(
            re.findall(
                r"^(params|at|torch|refuses|runs|tolerance|notes): (.*)$",
                re.sub(r"(?s)```.*?```", "", body),
                re.MULTILINE,
            )
        )
        kind, _, words = fields.get("refuses", "").partition(", ")
        drawn = re.search(r"^```sketch\n(.*?)\n```$", body, re.DOTALL | re.MULTILINE)
        assert bool(kind) == (len(codes) == 1), f"{path.name}: {title}"
        found.append(
            Case(
                path.stem, title, json.loads(fields.get("params", "{}")), fields.get("at"), fields.get("torch"),
                codes[0], codes[1] if len(codes) == 2 else None, (kind, words) if kind else None,
                drawn[1] if drawn else "",
                fields.get("runs"), float(fields.get("tolerance", 0)), fields.get("notes", ""),
            )
        )  # fmt: skip
    return found


CASES = [case for path in sorted((Path(__file__).parent / "cases").glob("*.md")) for case in read_cases(path)]
EDITS = [case for case in CASES if case.after is not None]
RELEASES = ("1.13", "2.0", "2.1", "2.6", "2.15")
OF_OLD = re.compile(
    r"torch\.(?:b?float16|float32|is_grad_enabled|channels_last|backends\.cudnn\.benchmark|backends\.cuda\.matmul\.allow_tf32|utils\.checkpoint\.\w+"
    r"|(?:arange|ones|randn|zeros)(?:\(device\))?|nn\.functional\.cross_entropy|cuda\.amp\.GradScaler"
    r"|utils\.data\.(?:DataLoader(?:\(\w+\))?|get_worker_info)|nn\.parallel\.DistributedDataParallel"
    r"|nn\.Module\.(?:|__init__|to|cuda|zero_grad|all|masked_fill)(?:\(\w+\))?"
    r"|nn\.attention\.SDPBackend(?:\.(?!CUDNN)\w+)?"  # beside sdpa_kernel, which is in the table
    r"|backends\.cuda\.matmul\.fp32_precision"  # in scripts that use this interface already
    r"|distributed(?:\._composable)?\.fsdp\.(?:MixedPrecisionPolicy|fully_shard\(mp_policy\)))"  # where the script has fully_shard
)
"""what every torch has of which captures can be read, and what is written only beside something else that the version has"""


def ident(case: Case) -> str:
    return f"{case.codemod}: {case.title}"


@pytest.mark.parametrize("case", EDITS, ids=ident)
def test_edit_gives_the_expected_script(case: Case) -> None:
    script = Script(case.before.encode(), "train.py")
    change = case.change(script)
    text = new_bytes(script, change.edits).decode()
    assert text == case.after
    assert not change.notes if case.notes == "none" else case.notes in " ".join(change.notes)
    compile(text, "train.py", "exec")


def test_an_edit_that_python_does_not_read_is_refused() -> None:
    """LibCST reads more than Python: a keyword twice, and before 3.12 a line break in an f-string."""
    script = Script(b"loader = DataLoader(data, num_workers=0)\n", "train.py")
    at = script.text.index(")")
    with pytest.raises(NoEdit, match=r"Python 3\.\d+ could not read train\.py after the edit"):
        new_bytes(script, [Edit(at, at, ", num_workers=4")])
    newer = Script(b"f(a, a=1, a=2)\n", "newer.py")  # written for another version, as far as can be told
    assert new_bytes(newer, [Edit(0, 1, "g")]) == b"g(a, a=1, a=2)\n"


@pytest.mark.parametrize("case", [c for c in CASES if c.refuses], ids=ident)
def test_refusal_says_why(case: Case) -> None:
    script = Script(case.before.encode(), "train.py")
    with pytest.raises(NoEdit) as refused:
        case.change(script)
    assert case.refuses is not None
    assert (refused.value.kind, case.refuses[1] in refused.value.why) == (case.refuses[0], True), (
        refused.value.why
    )
    assert sketch_of(refused.value.sketches) == case.sketch
    if refused.value.kind == "ambiguous":
        assert len(refused.value.candidates) > 1


@pytest.mark.parametrize("case", EDITS, ids=ident)
def test_second_run_changes_nothing(case: Case) -> None:
    """With the line that the capture named, which by now may hold something else."""
    script = Script((case.after or "").encode(), "train.py")
    try:
        change = case.change(script)
    except NoEdit:
        return
    assert new_bytes(script, change.edits) == script.data


@pytest.mark.parametrize("case", EDITS, ids=ident)
@pytest.mark.parametrize("style", ["crlf, byte order mark", "latin-1, no final newline", "tabs"])
def test_bytes_of_the_file_survive(case: Case, style: str) -> None:
    def dress(text: str) -> bytes:
        if style.startswith("crlf"):
            return codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode()
        if style.startswith("latin-1"):
            return ("# -*- coding: latin-1 -*-\n# für später\n" + text.rstrip("\n")).encode("latin-1")
        return re.sub(r"(?m)^((?: {4})+)", lambda m: "\t" * (len(m[0]) // 4), text).encode()

    if style == "tabs" and ("\n     " in case.before or "\n     " in (case.after or "")):
        pytest.skip("aligned continuation lines are no indentation")
    if style == "tabs" and "\n    " in (case.after or "") and "\n    " not in case.before:
        pytest.skip("a script without an indented line has no indentation to follow")
    before = dress(case.before)
    script = Script(before, "train.py")
    place = case.place(script)
    if style.startswith("latin-1") and place.line is not None:
        place = Place([script], place.line + 2, None, place.torch)
    mod = codemods()[case.codemod]
    changed = new_bytes(script, mod.run(place, mod.parameters(case.params)).edits)
    assert changed == dress(case.after or "")


def test_a_linter_says_nothing_new_of_an_edited_script(tmp_path: Path) -> None:
    """Imports at the top and sorted where they were, no names left unused, no lines longer than formatters make them."""
    pytest.importorskip("ruff", reason="needs the dev extra")
    for number, case in enumerate(EDITS):
        (tmp_path / f"before{number}.py").write_text(case.before, encoding="utf-8")
        (tmp_path / f"after{number}.py").write_text(case.after or "", encoding="utf-8")
    codes = ("E402", "E501", "F401", "F811", "F841", "I001")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format=json"]
    command += [f"--select={','.join(codes)}", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = Counter((Path(said["filename"]).name, said["code"]) for said in json.loads(done.stdout))
    for number, case in enumerate(EDITS):
        new = [c for c in codes if found[f"after{number}.py", c] > found[f"before{number}.py", c]]
        assert not new, ident(case)


def test_every_codemod_has_cases() -> None:
    programs = (p.read_text(encoding="utf-8") for p in (Path(__file__).parent / "programs").glob("*.md"))
    in_programs = {name for text in programs for name in re.findall(r"(?m)^fix: (\S+)", text)}
    assert {case.codemod for case in EDITS} | in_programs == set(codemods())


@pytest.mark.parametrize("case", EDITS, ids=ident)
def test_no_codemod_writes_what_a_release_does_not_know(case: Case) -> None:
    """What is written is told by its names, not by the patterns of the table, which has to hold each of them."""
    script, mod = Script(case.before.encode(), "train.py"), codemods()[case.codemod]
    since, had = {form.name: form.since for form in FORMS}, written(script)
    oldest: dict[bytes, tuple[str, tuple[int, ...]]] = {}
    for release in RELEASES:
        version = parse(release)
        assert version is not None
        torch = TorchBounds(version, version)
        try:
            change = mod.run(replace(case.place(script), torch=torch), mod.parameters(case.params))
        except NoEdit:
            continue
        text = new_bytes(script, change.edits)
        if refused_form(torch, script.text, text.decode()) is None:
            oldest.setdefault(text, (release, version))
    for text, (release, version) in oldest.items():
        for name in written(Script(text, "train.py")) - had:
            callee, _, keyword = name.removesuffix(")").partition("(")
            optimizers = "torch.optim.SGD(foreach)" if keyword == "foreach" else ""
            known = next((n for n in (name, optimizers, callee) if n in since), None)
            assert known or any(map(OF_OLD.fullmatch, (name, callee))), f"{name} is in no table"
            assert known is None or callee in had or since[known] <= version, (
                f"{name} is written for torch {release}"
            )


def written(script: Script) -> Counter[str]:
    """The names of torch that a script has, and the keywords of calls of torch: `torch.optim.SGD(fused)`."""
    names: Counter[str] = Counter()
    for node in [*script.all(cst.Attribute), *script.all(cst.Name)]:
        up = script.parent(node)
        part = isinstance(up, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName)
        qualified = script.qualified(node) if dotted(node) else None
        if not part and (qualified or "").startswith("torch."):
            names[qualified or ""] += 1
    for call in script.all(cst.Call):
        callee = script.callee(call) or f"torch.nn.Module.{method_name(call) or ''}"
        for arg in call.args:
            if arg.keyword is not None and callee.startswith("torch."):
                names[f"{callee}({arg.keyword.value})"] += 1
    for text in script.all(cst.SimpleString):
        names.update(word for word in ("expandable_segments", "PYTORCH_ALLOC_CONF") if word in text.value)
    return names


@pytest.mark.torch
@pytest.mark.parametrize("case", [c for c in EDITS if c.runs], ids=ident)
def test_edited_script_computes_the_same(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    torch.set_num_threads(1)

    def value(code: str) -> Any:
        names: dict[str, Any] = {"__name__": "script"}
        torch.manual_seed(0)
        exec(compile(code, "train.py", "exec"), names)
        torch.manual_seed(1)
        return torch.as_tensor(eval(case.runs or "", {"torch": torch, **names}))

    before, after = value(case.before), value(case.after or "")
    assert torch.isfinite(before).all()
    if not case.tolerance:
        assert torch.equal(before, after)
    torch.testing.assert_close(after, before, rtol=case.tolerance, atol=case.tolerance, check_dtype=False)
