"""Trainer and Lightning themselves, where they are installed."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
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


class Unsettable:
    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("not mine to set")

    @property
    def global_step(self) -> int:
        raise RuntimeError("not there")


def stand_in(name: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework, as far as a callback needs it, whether it is installed or not."""
    module = types.ModuleType(name)
    setattr(module, base, type(base, (), {}))
    monkeypatch.setitem(sys.modules, name, module)


def steps(callback: Any) -> None:
    """A training in whose loop an exception of the callback would come up."""
    callback.on_train_begin(None, None, Unsettable())
    for _ in range(20):
        callback.on_step_end(None, None, Unsettable())
    callback.on_train_end(None, None, Unsettable())


def test_what_fails_in_a_trainer_s_callback_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in("transformers", "TrainerCallback", monkeypatch)
    steps(trainer_callback(tmp_path / "logs", **SHORT))
    (line,) = capfd.readouterr().err.splitlines()
    assert "RuntimeError" in line and "switched itself off" in line
    only(tmp_path / "logs")
    (tmp_path / "file").touch()
    steps(trainer_callback(tmp_path / "file", **SHORT))
    (line,) = capfd.readouterr().err.splitlines()
    assert "switched itself off" in line


def test_what_fails_in_lightning_s_callback_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    stand_in("lightning", "x", monkeypatch)
    stand_in("lightning.pytorch", "Callback", monkeypatch)
    callback = lightning_callback(tmp_path / "logs", **SHORT)
    callback.on_train_start(Unsettable(), None)
    for _ in range(3):
        callback.on_train_batch_end(Unsettable(), None)
    callback.on_exception(Unsettable(), None, RuntimeError())
    callback.on_train_end(Unsettable(), None)
    (line,) = capfd.readouterr().err.splitlines()
    assert "RuntimeError" in line and "switched itself off" in line
