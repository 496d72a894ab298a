"""Trainer and Lightning themselves, where they are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trace_doctor import analyze, record
from trace_doctor.recording.callbacks import lightning_callback, trainer_callback

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs the torch extra")

SHORT: dict[str, Any] = {
    "phases": ("warmup", "timing", "light"),
    "timing_steps": 4,
    "max_warmup_steps": 3,
    "stop": True,
}


def only(base: Path) -> dict[str, Any]:
    (folder,) = base.iterdir()
    assert (folder / "recording.json").exists() and (folder / "steps.csv").exists()
    return json.loads((folder / "rank0.recording.json").read_text())


def check_printed(base: Path, printed: str) -> None:
    (folder,) = base.iterdir()
    assert f"trace-doctor: {analyze(folder).summary.verdict}\n" in printed


def test_a_trainer_stops_when_enough_is_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
    check_printed(tmp_path / "logs", capfd.readouterr().out)


def test_lightning_stops_when_enough_is_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
    check_printed(tmp_path / "logs", capfd.readouterr().out)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frameworks' base classes, which do nothing by themselves, where they are not installed."""
    for name, base in (("transformers", "TrainerCallback"), ("lightning.pytorch", "Callback")):
        module = ModuleType(name)
        setattr(module, base, object)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("framework", ["trainer", "lightning"])
def test_the_verdict_is_printed_when_the_training_ends(
    framework: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    state = SimpleNamespace(global_step=0, should_stop=False, should_training_stop=False)
    make, begin, end_step, end = {
        "trainer": (trainer_callback, "on_train_begin", "on_step_end", "on_train_end"),
        "lightning": (lightning_callback, "on_train_start", "on_train_batch_end", "on_train_end"),
    }[framework]
    callback = make(tmp_path / "logs", **SHORT)
    arguments = (None, None, state) if framework == "trainer" else (state, None)
    getattr(callback, begin)(*arguments)
    while not (state.should_stop or state.should_training_stop) and state.global_step < 200:
        layer(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        state.global_step += 1
        getattr(callback, end_step)(*arguments)
    assert state.global_step < 200
    assert "trace-doctor: " not in capfd.readouterr().out
    getattr(callback, end)(*arguments)
    check_printed(tmp_path / "logs", capfd.readouterr().out)


class Refusing:
    """What a framework hands over, and nobody may read or change."""

    __slots__ = ()


@pytest.mark.usefixtures("stand_ins")
def test_what_a_framework_refuses_does_not_reach_the_training(tmp_path: Path) -> None:
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


STARTS_THE_OTHER = """
import os, subprocess, sys
from types import ModuleType, SimpleNamespace

sys.modules["lightning"], base = ModuleType("lightning"), ModuleType("lightning.pytorch")
sys.modules["lightning.pytorch"], base.Callback = base, object
import torch
from trace_doctor.recording.callbacks import lightning_callback

first = os.environ.setdefault("RANK", "0") == "0"
other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"}) if first else None
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=1 - first, world_size=2)
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
state = SimpleNamespace(global_step=0, should_stop=False)
phases = ("warmup", "timing", "light")
callback = lightning_callback(sys.argv[2], stop=True, phases=phases, timing_steps=4, max_warmup_steps=3)
callback.on_train_start(state, None)
while not state.should_stop and state.global_step < 200:
    layer(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    state.global_step += 1
    callback.on_train_batch_end(state, None)
assert state.should_stop
callback.on_train_end(state, None)
sys.exit(other.wait() if other else 0)
"""


def test_the_verdict_of_two_ranks_is_printed_once(tmp_path: Path) -> None:
    """Rank 0 starts the other one itself, as Lightning does: both record into one folder."""
    script = tmp_path / "train.py"
    script.write_text(STARTS_THE_OTHER)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rendezvous"), str(tmp_path / "logs")],
        env={**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    assert {"recording.json", "rank0.light.json.gz", "rank1.light.json.gz"} <= {
        p.name for p in folder.iterdir()
    }
    assert [line for line in done.stdout.splitlines() if "trace-doctor" in line] == [
        f"trace-doctor: {analyze(folder).summary.verdict}"
    ]


def test_where_another_rank_does_not_end_its_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("trace_doctor.recording.api._RANKS_SECONDS", 0.1)
    with record(tmp_path, phases=("warmup", "timing")) as recording:
        recording.step()
    (folder,) = tmp_path.iterdir()
    said = f"not all 2 ranks have ended here; for the verdict: trace-doctor analyze {folder}"
    assert recording.verdict() == said
