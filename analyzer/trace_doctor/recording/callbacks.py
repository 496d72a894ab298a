"""Callbacks that record a Trainer of transformers or Lightning. Either framework is imported only by its own callback.

Trainer(..., callbacks=[trainer_callback("logs")])                 # transformers
lightning.Trainer(..., callbacks=[lightning_callback("logs")])

When the training ends, the verdict is printed, of several ranks by rank 0.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trace_doctor.recording.api import InsideRecording
from trace_doctor.recording.options import RecordOptions


def trainer_callback(folder: str | os.PathLike[str] = "logs", *, stop: bool = False, **options: Any) -> Any:
    """A `TrainerCallback` of transformers. `stop`: training ends when enough is recorded. `options` as of `record`."""
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    recording = _recording(folder, options, "trainer")

    class TraceDoctorCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Records the steps of a training."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recording.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recording.step()
            with recording.quietly():
                if stop and recording.done:
                    control.should_training_stop = True

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recording.__exit__(None, None, None)
            _say(recording)

    return TraceDoctorCallback()


def lightning_callback(folder: str | os.PathLike[str] = "logs", *, stop: bool = False, **options: Any) -> Any:
    """A `Callback` of Lightning, of whichever of its two packages is in use. Arguments as of `trainer_callback`."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback  # type: ignore[import-not-found,unused-ignore]
    else:
        from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore,no-redef]

    recording = _recording(folder, options, "lightning")

    class TraceDoctorCallback(Callback):  # type: ignore[misc,unused-ignore]
        """Records the steps of a training; those that only accumulate gradients are parts of one."""

        def __init__(self) -> None:
            self._step = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            recording.__enter__()
            with recording.quietly():
                self._step = trainer.global_step

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            with recording.quietly():
                if trainer.global_step == self._step:
                    return
                self._step = trainer.global_step
            recording.step()
            with recording.quietly():
                if stop and recording.done:
                    trainer.should_stop = True

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            recording.__exit__(type(exception), exception, exception.__traceback__)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            recording.__exit__(None, None, None)
            _say(recording)

    return TraceDoctorCallback()


def _say(recording: InsideRecording) -> None:
    with recording.quietly():
        if said := recording.verdict():
            print(f"trace-doctor: {said}", flush=True)


def _recording(folder: str | os.PathLike[str], options: dict[str, Any], whose: str) -> InsideRecording:
    return InsideRecording(folder, RecordOptions(folder="", **{"let_it_run": True, **options}), whose)
