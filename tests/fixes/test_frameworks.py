"""The tables of frameworks' arguments against the frameworks themselves, where they are installed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping

import pytest

from trace_doctor.fixes.frameworks.trainers import (
    ACCELERATE,
    DYNAMO,
    FABRIC,
    LIGHTNING,
    TRAINING_ARGUMENTS,
    Setting,
)
from trace_doctor.program.versions import parse

CLASSES: list[tuple[str, str, Mapping[str, Setting]]] = [
    ("transformers", "transformers.TrainingArguments", TRAINING_ARGUMENTS),
    ("trl", "trl.SFTConfig", TRAINING_ARGUMENTS),
    ("accelerate", "accelerate.Accelerator", {**ACCELERATE, **DYNAMO}),
    ("lightning", "lightning.pytorch.Trainer", LIGHTNING),
    ("lightning", "lightning.fabric.Fabric", FABRIC),
]


def found(qualified: str) -> object:
    module, _, name = qualified.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("package", "name", "table"), CLASSES, ids=lambda c: c if isinstance(c, str) else "")
def test_the_installed_release_takes_what_is_written(
    package: str, name: str, table: Mapping[str, Setting]
) -> None:
    installed = parse(str(pytest.importorskip(package, reason=f"{package} is not installed").__version__))
    taken = set(inspect.signature(found(name)).parameters)  # type: ignore[arg-type]
    assert installed is not None
    for setting in table.values():
        plugin = setting.plugin
        if max(setting.since or (0, 0), (plugin.since if plugin else None) or (0, 0)) > installed:
            continue
        assert (plugin.name if plugin else setting.name) in taken
        if plugin is not None:
            inside = {f.name for f in dataclasses.fields(found(plugin.constructor))}  # type: ignore[arg-type]
            assert setting.name in inside


def test_every_setting_says_its_value_in_python() -> None:
    for _, _, table in CLASSES:
        for setting in table.values():
            compile(setting.value.format("1"), setting.name, "eval")
