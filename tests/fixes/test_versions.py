"""No fix writes what the user's torch does not know: where the version comes from, and what each version accepts."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trace_doctor.errors import UsageError
from trace_doctor.fixes import plan
from trace_doctor.fixes.frameworks.trainers import minimum_versions
from trace_doctor.model import Finding, Fix, Input, Result, TorchVersion
from trace_doctor.program.versions import (
    FORMS,
    Form,
    TorchBounds,
    accepts,
    bounds,
    parse,
    pinned_bounds,
    refused_form,
)

CASES = sorted((Path(__file__).parent / "cases").glob("*.md"))
SCRIPT = "import torch\nfrom torch.optim import SGD\n\nopt = SGD(net.parameters(), lr=0.1)\n"


def captured(*versions: tuple[str | None, str | None]) -> Result:
    return Result(
        inputs=[Input(path="t", kind="trace", torch_version=TorchVersion(min=a, max=b)) for a, b in versions]
    )


# ---------------------------------------------------------------------- where the version comes from


def test_what_the_user_says_wins() -> None:
    assert bounds(captured(("2.1", "2.1")), ["torch==2.2"], "2.13.0+cu126") == TorchBounds((2, 13), (2, 13))


def test_then_the_captures_the_widest_of_them() -> None:
    assert bounds(captured(("2.4", "2.4"), ("2.1.2", "2.9")), ["torch==2.13"]) == TorchBounds((2, 1), (2, 9))
    assert bounds(captured(("2.4", "2.4"), ("2.1", None)), ["torch==2.13"]) == TorchBounds((2, 1), None)


def test_then_the_pins_of_the_source() -> None:
    assert bounds(captured((None, None)), ["torch==2.9.1\n"]) == TorchBounds((2, 9), (2, 9))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("numpy\ntorch==2.9.1\n", (2, 9), (2, 9)),
        ("torch >= 2.4", (2, 4), None),
        ("torch~=2.4.0", (2, 4), None),
        ('dependencies = ["numpy", "torch==2.3.1"]', (2, 3), (2, 3)),
        ("  - pytorch=2.3.0=py3.10_cuda12.1\n", (2, 3), (2, 3)),
        ("  - pytorch>=2.2\n", (2, 2), None),
        ("torch==2.9\ntorch>=2.1 ; extra == 'old'", (2, 1), None),
        ("# torch==2.9\ntorch>=2.1", (2, 1), None),
        ("torchvision==0.20\npytorch-lightning==2.4\nmy-torch==2.2", None, None),
        ("torch<2.9\ntorch", None, None),
    ],
)
def test_pins(text: str, low: tuple[int, int] | None, high: tuple[int, int] | None) -> None:
    assert pinned_bounds([text]) == TorchBounds(low, high)


def test_never_from_the_machine_that_analyses(tmp_path: Path) -> None:
    """The same fix, with a torch in the environment that knows the newest forms, and one that cannot even be imported."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "torch.py").write_text("raise ImportError('a fix looked at the installed torch')\n")
    fix = Fix(title="t", kind="patch", codemod="optimizer-args", params={"fused": True})
    (tmp_path / "r.json").write_bytes(Result(findings=[finding(fix)]).to_json())
    command = "from trace_doctor.cli import main; main()"
    run = [sys.executable, "-c", command, "fix", "r.json", "--script", "train.py"]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(tmp_path)]))
    shadowed = subprocess.run(run, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    (tmp_path / "torch.py").unlink()
    assert shadowed.returncode == 0, shadowed.stderr
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).stdout == shadowed.stdout


# ---------------------------------------------------------------------- what each version accepts


@pytest.mark.parametrize("text", ["2." + "1" * 5000, "1" * 5000 + ".0", "２.４", "2.²"])
def test_what_no_release_is_called_is_no_version(text: str) -> None:
    assert bounds(captured((text, text))) == pinned_bounds([f"torch=={text}"]) == TorchBounds()
    with pytest.raises(UsageError, match="is no version"):
        bounds(captured(), [], text)
    assert minimum_versions([f"accelerate=={text}"], [f'check_min_version("{text}")']) in (
        {},
        {"accelerate": (2, 0)},
    )


def test_nothing_known_means_the_oldest() -> None:
    of_two = {f.name for f in FORMS if f.since <= (2, 0)}
    assert {f.name for f in FORMS if accepts(TorchBounds(), f.name)} == of_two
    assert {f.name for f in FORMS if accepts(TorchBounds((1, 13), None), f.name)} == of_two
    assert accepts(TorchBounds(None, (2, 13)), "torch.optim.Adafactor") is False


def test_before_two_only_what_it_knows() -> None:
    of_one = {f.name for f in FORMS if f.since < (2, 0)}
    assert {f.name for f in FORMS if accepts(TorchBounds((1, 13), (1, 13)), f.name)} == of_one
    assert not any(accepts(TorchBounds(None, (1, 13)), f.name) for f in FORMS)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_accepted_from_its_version_on(form: Form) -> None:
    major, minor = form.since
    assert accepts(TorchBounds((major, minor)), form.name)
    if form.since > (2, 0):
        assert not accepts(TorchBounds((major, minor - 1), (2, 99)), form.name)
    assert not accepts(TorchBounds(before(form), before(form)), form.name)


def before(form: Form) -> tuple[int, int]:
    major, minor = form.since
    return (major, minor - 1) if minor else (1, 13)


WRITTEN = {
    "torch.utils.data.DataLoader(persistent_workers)": "DataLoader(d, num_workers=2, persistent_workers=True)",
    "torch.optim.Adam(fused)": "opt = Adam(p, fused=True)",
    "torch.autocast": "with torch.autocast(device_type=device.type, dtype=torch.bfloat16):",
    "torch.utils.checkpoint.checkpoint(use_reentrant)": "x = checkpoint(block, x, use_reentrant=False)",
    "torch.optim.SGD(foreach)": "opt = SGD(p, foreach=True)",
    "torch.set_float32_matmul_precision": 'torch.set_float32_matmul_precision("high")',
    "torch.utils.data.DataLoader(prefetch_factor=None)": "f(n, prefetch_factor=4 if n > 0 else None)",
    "torch.utils.checkpoint.checkpoint_sequential(use_reentrant)": "checkpoint_sequential(b, len(b), x, use_reentrant=False)",
    "torch.nn.functional.scaled_dot_product_attention": "x = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "torch.compile": "model = torch.compile(model)",
    "torch._dynamo.config.capture_scalar_outputs": "torch._dynamo.config.capture_scalar_outputs = True",
    "torch._dynamo.mark_dynamic": "torch._dynamo.mark_dynamic(x, 0)",
    "torch.compile(mode=max-autotune-no-cudagraphs)": 'torch.compile(f, mode="max-autotune-no-cudagraphs")',
    "expandable_segments": 'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
    "torch.nn.attention.SDPBackend.CUDNN_ATTENTION": "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):",
    "torch.autocast(device_type=mps)": 'with torch.autocast(device_type="mps", dtype=torch.bfloat16):',
    "torch.nn.functional.scaled_dot_product_attention(scale)": "x = F.scaled_dot_product_attention(q, k.f(), v, scale=2)",
    "torch.compiler.disable": "@torch.compiler.disable",
    "torch.nn.Module.compile": "model.compile()",
    "torch.compiler.is_compiling": "if not torch.compiler.is_compiling():",
    "torch.nn.attention.sdpa_kernel": "with sdpa_kernel(SDPBackend.MATH):",
    "torch.amp.GradScaler": 'scaler = torch.amp.GradScaler("cuda")',
    "torch.optim.Adafactor": "opt = torch.optim.Adafactor(p)",
    "torch.distributed.fsdp.fully_shard": "fully_shard(model)",
    "torch.compiler.set_stance": 'torch.compiler.set_stance("force_eager")',
    "torch.utils.data.DataLoader(in_order)": "DataLoader(d, in_order=False)",
    "PYTORCH_ALLOC_CONF": 'os.environ["PYTORCH_ALLOC_CONF"] = "x"',
}


@pytest.mark.parametrize("form", [f for f in FORMS if f.pattern], ids=lambda f: f.name)
def test_a_form_is_recognised_where_it_is_new_and_only_there(form: Form) -> None:
    code = WRITTEN[form.name]
    assert form.pattern
    assert [f.name for f in FORMS if f.pattern and re.search(f.pattern, code)] == [form.name]
    older = TorchBounds(before(form), before(form))
    assert refused_form(older, "", code) == form
    assert (
        refused_form(older, "import torch as th", f"import torch as th\n{code.replace('torch.', 'th.')}")
        == form
    )
    assert refused_form(older, code, f"{code}\n") is None
    assert refused_form(TorchBounds(form.since), "", code) is None


def test_forms_of_old_are_no_forms_of_new() -> None:
    for code in (
        "torch.compile(model)",
        "import torch as th\nth.compile(model)",
        "re.compile(p)",
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"]',
        "f(scale=1)",
    ):
        assert refused_form(TorchBounds(), "", code) is None


def test_an_edit_says_where_the_project_is_for_an_older_torch(tmp_path: Path) -> None:
    """The recorded torch has it; who installs what the project names would get an error."""
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(4, 2).cuda()\noptimizer = torch.optim.Adam(model.parameters())\n"
        "for x in loader:\n    model(x).sum().backward()\n    optimizer.step()\n"
    )
    given = Result(
        findings=[finding(Fix(title="t", kind="patch", codemod="optimizer-args", params={"fused": True}))]
    )
    for name, text, notes in (
        ("requirements.txt", "torch>=1.4.0", 1),
        ("README.md", "Requires PyTorch == 0.4.1", 1),
        ("requirements.txt", "torch>=2.1", 0),
    ):
        for old in ("requirements.txt", "README.md"):
            (tmp_path / old).unlink(missing_ok=True)
        (tmp_path / name).write_text(text)
        item = plan(given, tmp_path, torch_version="2.6").items[0]
        assert item.status == "ready" and item.change is not None
        assert sum("the files of the project name torch" in note for note in item.change.notes) == notes


def finding(fix: Fix) -> Finding:
    return Finding(
        id="TD901-1", code="TD901", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip


def test_an_edit_that_may_not_run_is_shown_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a codemod forgets: what comes out is looked at."""
    from trace_doctor.fixes import codemods as home
    from trace_doctor.program.edits import Change, Edit

    def careless(place: home.Place, params: object) -> Change:
        script = place.scripts[0]
        end = len(script.text)
        return Change(script, (Edit(end, end, "torch.compiler.set_stance('default')\n"),), 1)

    mod = home.Codemod("careless", careless, "call", ("torch",), False, "")
    monkeypatch.setattr(
        importlib.import_module("trace_doctor.fixes.resolve"), "codemods", lambda: {"careless": mod}
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    given = Result(findings=[finding(Fix(title="t", kind="patch", codemod="careless"))])
    item = plan(given, tmp_path).items[0]
    assert (item.status, item.why) == (
        "display",
        "torch.compiler.set_stance needs torch 2.6 or newer: say --torch-version",
    )
    assert plan(given, tmp_path, torch_version="2.6").items[0].status == "ready"


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_what_the_codemods_write_runs_on_the_version_of_each_case(path: Path) -> None:
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        codes = re.findall(r"^```(?:before|after)\n(.*?)\n?```$", part, re.DOTALL | re.MULTILINE)
        said = re.search(r"^torch: (.*)$", re.sub(r"(?s)```.*?```", "", part), re.MULTILINE)
        version = parse(said[1]) if said else None
        if len(codes) == 2:
            assert refused_form(TorchBounds(version, version), codes[0], codes[1]) is None, part.splitlines()[
                0
            ]


# ---------------------------------------------------------------------- the table against the installed torch


@pytest.mark.torch
@pytest.mark.parametrize(
    "form", [f for f in FORMS if re.fullmatch(r"torch[\w.]+(\([\w=-]+\))?", f.name)], ids=lambda f: f.name
)
def test_the_installed_torch_accepts_what_the_table_says(
    form: Form, recwarn: pytest.WarningsRecorder
) -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    installed = parse(torch.__version__)
    assert installed is not None
    name, _, keyword = form.name.removesuffix(")").partition("(")
    keyword = keyword.partition("=")[0]
    found = resolve(name)
    if installed < form.since:
        assert found is None or keyword, f"{form.name} is older than the table says"
        return
    assert found is not None, f"{name} is not in torch {torch.__version__}"
    if keyword:
        try:
            accepted = keyword in inspect.signature(found).parameters
        except ValueError:  # built in: its documentation has the signature
            accepted = f"{keyword}=" in (found.__doc__ or "")
        assert accepted, f"{name} takes no {keyword}"


def resolve(dotted: str) -> object | None:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found
    return None


NAMES = re.compile(r"\btorch(?:\.[A-Za-z_]\w*)+")


@pytest.mark.torch
@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_names_that_codemods_write_are_there(path: Path) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    for before, after in re.findall(
        r"^```before\n(.*?)\n?```\s+```after\n(.*?)\n?```$",
        path.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    ):
        for name in set(NAMES.findall(after)) - set(NAMES.findall(before)):
            assert resolve(name) is not None, f"{name} is no name of the installed torch"
