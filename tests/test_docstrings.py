"""What a newcomer calls says what it does: every public function and method has a docstring, but where it overrides one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import trace_doctor
import trace_doctor_rules


def _public_modules() -> Iterator[ModuleType]:
    for package in (trace_doctor, trace_doctor_rules):
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part.startswith("_") for part in entry.name.split(".")):
                yield importlib.import_module(entry.name)


def undocumented(module: ModuleType) -> Iterator[str]:
    """`function` or `Class.method` of those defined in the module, public and without a docstring."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) and not inspect.getdoc(thing):
            yield name
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                if method.startswith("_") or not inspect.isfunction(function) or function.__doc__:
                    continue
                overrides = any(hasattr(base, method) for base in thing.__bases__)
                if function.__qualname__ == f"{name}.{method}" and not overrides:
                    yield f"{name}.{method}"


def test_each_public_function_says_what_it_does() -> None:
    missing = [f"{module.__name__}: {name}" for module in _public_modules() for name in undocumented(module)]
    assert not missing


def test_what_overrides_a_documented_method_needs_no_text_of_its_own() -> None:
    module = ModuleType("module")
    exec(
        "def load(): ...\n"
        "def _read(): ...\n"
        "class Rule:\n"
        "    def check(self): 'Findings.'\n"
        "    def reads(self): ...\n"
        "class Idle(Rule):\n"
        "    def check(self): ...\n"
        "    def share(self): ...\n",
        vars(module),
    )
    assert list(undocumented(module)) == ["load", "Rule.reads", "Idle.share"]
