"""Trainer and Lightning themselves, where they are installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trace_doctor.recording.callbacks import lightning_callback, trainer_callback

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

SHORT: dict[str, Any] = {
    "phases": ("warmup", "timing"),
    "timing_steps": 4,
    "max_warmup_steps": 3,
    "stop": True,
}


def only(base: Path) -> dict[str, Any]:
    (folder,) = base.iterdir()
    assert (folder / "recording.json").exists() and (folder / "steps.csv").exists()
    return json.loads((folder / "rank0.recording.json").read_text())


def test_a_trainer_stops_when_enough_is_recorded(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:
            return {"loss": self.layer(x).pow(2).mean()}

    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=500,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    data = [{"x": torch.ones(4), "labels": torch.tensor(0)} for _ in range(4000)]
    callback = trainer_callback(tmp_path / "logs", **SHORT)
    trained = transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()
    said = only(tmp_path / "logs")
    assert said["found_steps_by"] == "trainer" and said["ended"] == "enough"
    assert said["backward_passes_per_step"] == 2
    assert trained.global_step == said["phases"][-1]["last_step"] + 1


def test_lightning_stops_when_enough_is_recorded(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=500, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path / "out",
        callbacks=[lightning_callback(tmp_path / "logs", **SHORT)],
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4000, 4), batch_size=2))
    said = only(tmp_path / "logs")
    assert said["found_steps_by"] == "lightning" and said["ended"] == "enough"
    assert said["backward_passes_per_step"] == 2
    assert trainer.global_step == said["phases"][-1]["last_step"] + 1


class Refusing:
    """What a framework hands over, and nobody may read or change."""

    __slots__ = ()


def test_what_a_framework_refuses_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, base in (("transformers", "TrainerCallback"), ("lightning.pytorch", "Callback")):
        module = ModuleType(name)
        setattr(module, base, object)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    trainer = trainer_callback(tmp_path / "trainer", **SHORT)
    trainer.on_train_begin(None, None, Refusing())
    for _ in range(20):
        trainer.on_step_end(None, None, Refusing())
    trainer.on_train_end(None, None, Refusing())
    assert "recorder failed" in str(only(tmp_path / "trainer")["warnings"])
    lightning = lightning_callback(tmp_path / "lightning", **SHORT)
    lightning.on_train_start(Refusing(), None)
    lightning.on_train_batch_end(Refusing(), None)
    lightning.on_train_end(Refusing(), None)
