"""Results in the trackers themselves, offline, where they are installed."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from trace_doctor import analyze
from trace_doctor.errors import UsageError
from trace_doctor.model import Result
from trace_doctor.testing import RunBuilder
from trace_doctor.trackers import PAGE, log, scalars


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The GPU waits for the loader half of the time."""
    folder = tmp_path_factory.mktemp("logs")
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            b.loader(1000)
            with b.op("aten::mm"):
                b.launch(1000)
            b.sync()
    b.write(folder / "rank0.json")
    return analyze(folder)


def test_the_parts_of_the_step_are_all_of_it_and_nothing_unknown_is_named(result: Result) -> None:
    figures = scalars(result)
    parts = {name: value for name, value in figures.items() if name.startswith("breakdown/")}
    assert math.isclose(sum(parts.values()), 1) and parts["breakdown/data_loading"] > 0.3
    assert figures["step_ms"] == result.summary.step_us / 1e3 and figures["saving/TD101"] > 0.3
    assert figures["findings/critical"] == sum(f.severity == "critical" for f in result.findings)
    assert "peak_allocated_mib" not in figures and "plain_step_ms" not in figures
    unjudged = [replace(i, too_little="no step in it") for i in result.inputs]
    assert not any("findings" in name for name in scalars(replace(result, inputs=unjudged)))
    assert scalars(Result()) == {}


def test_what_is_no_tracker_is_refused(result: Result) -> None:
    with pytest.raises(UsageError, match="no tracker: a PosixPath"):
        log(result, Path("runs"))


class Writer:
    """What `log` uses of a SummaryWriter."""

    def __init__(self, folder: Path) -> None:
        self.log_dir = str(folder)
        self.logged: list[str] = []

    def add_scalar(self, name: str, *_: object) -> None:
        self.logged.append(name)

    add_text = add_scalar

    def flush(self) -> None: ...


def test_only_a_report_is_replaced(tmp_path: Path, result: Result) -> None:
    """Nor is anything logged where the report is refused."""
    writer = Writer(tmp_path)
    log(result, writer)
    log(result, writer)
    assert _is_page(tmp_path / PAGE, result)
    (tmp_path / PAGE).write_text("somebody's")
    writer.logged.clear()
    with pytest.raises(UsageError, match="no report of ours"):
        log(result, writer)
    with pytest.raises(UsageError, match="cannot write"):
        log(result, Writer(tmp_path / "nowhere"))
    assert (tmp_path / PAGE).read_text() == "somebody's" and not writer.logged


def _is_page(path: Path, result: Result) -> bool:
    return path.is_file() and result.summary.verdict.rstrip(".") in path.read_text(encoding="utf-8")


def test_tensorboard_has_the_scalars_and_the_page_lies_next_to_its_events(
    tmp_path: Path, result: Result
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    board = pytest.importorskip("torch.utils.tensorboard", reason="torch is not installed")
    with board.SummaryWriter(str(tmp_path)) as writer:
        log(result, writer, step=7)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in scalars(result).items():
        [point] = events.Scalars(f"trace_doctor/{name}")
        assert point.step == 7 and math.isclose(point.value, value, rel_tol=1e-5, abs_tol=1e-6)
    assert _is_page(tmp_path / PAGE, result)


def test_mlflow_has_them_in_its_run(tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store of its light package
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"file:{tmp_path}/store")
    with mlflow.start_run() as run:
        log(result, mlflow, step=7)
    kept = mlflow.get_run(run.info.run_id)
    assert kept.data.metrics == pytest.approx({f"trace_doctor/{n}": v for n, v in scalars(result).items()})
    assert kept.data.tags["trace_doctor/verdict"] == result.summary.verdict
    assert _is_page(
        Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path=PAGE)), result
    )


def test_wandb_has_them_offline(tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    run = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True))
    try:
        log(result, run)
        kept: dict[str, Any] = dict(run.summary)
        assert kept["trace_doctor/verdict"] == result.summary.verdict
    finally:
        run.finish()
    [written] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data = b""
    for _ in range(300):  # a process of W&B's own writes it, and may end after finish() does
        data = written.read_bytes()
        if b"trace_doctor/step_ms" in data and b"trace-doctor-report" in data:
            break
        time.sleep(0.1)
    assert b"trace_doctor/step_ms" in data and b"trace-doctor-report" in data
