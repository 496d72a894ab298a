"""Every technique has its edit or its code, every topic a rule that names it, and the code of advice is code."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stand_ins import GIVEN

from trace_doctor import Fix
from trace_doctor.fixes.codemods import codemods
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import Technique

FUNCTIONS = {
    name: made
    for name, made in inspect.getmembers(techniques)
    if not name.startswith("_")
    and (
        isinstance(made, Technique)
        or (inspect.isfunction(made) and made.__module__.startswith(techniques.__name__))
    )
}


def fix(name: str, **more: Any) -> Fix:
    """What a technique's function makes, with stand-ins for what it has to be given."""
    function = FUNCTIONS[name]
    wanted = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    made = function(**{p: GIVEN[p] for p in wanted}, **more)
    assert isinstance(made, Fix)
    return made


@pytest.fixture(scope="module")
def page() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "techniques.py"
    spec = importlib.util.spec_from_file_location("techniques_page", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_technique_is_an_edit_that_exists_or_says_what_to_write(name: str) -> None:
    made = fix(name)
    assert made.title and made.text and made.verify
    assert (made.codemod in codemods()) if made.kind == "patch" else (made.codemod is None)


def test_all_techniques_and_codemods_are_on_the_page(page: ModuleType) -> None:
    named = {name for names in page.TOPICS.values() for name in names}
    assert named <= set(FUNCTIONS) | set(codemods())
    assert set(FUNCTIONS) <= named
    made_by_techniques = {fix(n).codemod for n in FUNCTIONS}
    assert set(codemods()) <= named | made_by_techniques


def test_every_topic_is_named_by_a_rule(page: ModuleType) -> None:
    by_rules = page.rules()
    missing = [topic for topic, names in page.TOPICS.items() if not any(by_rules.get(n) for n in names)]
    assert not missing
    assert set(by_rules) <= {name for names in page.TOPICS.values() for name in names}


@pytest.mark.parametrize("name", ["steady_shapes", "attention_libraries", "grouped_gemm", "data_parallel"])
def test_advice_is_python(name: str) -> None:
    assert fix(name).kind == "advice"
    ast.parse(fix(name).text)


# ---------------------------------------------------------------------- what can be run here


@pytest.mark.torch
def test_experts_as_one_product_give_what_a_loop_gives() -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("torch._grouped_mm needs torch 2.8")
    torch.manual_seed(0)
    experts = [torch.nn.Linear(16, 32, bias=False, dtype=torch.bfloat16) for _ in range(4)]
    x = torch.randn(40, 16, dtype=torch.bfloat16)
    expert = torch.randint(0, 4, (40,))
    names = {"torch": torch, "experts": experts, "x": x, "expert": expert}
    exec(fix("grouped_gemm").text, names)
    one_by_one = torch.stack([experts[e](t) for t, e in zip(x, expert.tolist(), strict=True)])
    torch.testing.assert_close(names["out"], one_by_one)


@pytest.mark.torch
def test_padded_batches_have_few_lengths_and_the_largest_step_leaves_no_gradient() -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    names: dict[str, Any] = {
        "torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "batch_size": 2,
        "max_length": 128, "device": "cpu",
        "loss_fn": lambda out, y: torch.nn.functional.cross_entropy(out.transpose(1, 2), y),
    }  # fmt: skip
    exec(fix("steady_shapes").text, names)
    assert all(p.grad is None for p in model.parameters())
    padded = [names["pad"](torch.ones(2, n, dtype=torch.long), 0) for n in (1, 63, 64, 65)]
    assert [tuple(p.shape) for p in padded] == [(2, 64), (2, 64), (2, 64), (2, 128)]
    assert padded[0][0].sum() == 1
