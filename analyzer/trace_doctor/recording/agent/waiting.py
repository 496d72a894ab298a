"""Waits for the script to import torch, without importing it: processes that never do pay nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from trace_doctor.recording import process_log


class TorchWatch:
    """On `sys.meta_path`: lets the others find torch, and hears when it has been executed."""

    def __init__(self, options_file: str) -> None:
        self._options_file = options_file
        self._folder = os.path.dirname(options_file)
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for all but the first look for torch, whose loader then tells when it has been loaded."""
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._hear_of(spec.loader)
        return spec

    def _hear_of(self, loader: Any) -> None:
        execute = loader.exec_module

        def watched(module: ModuleType) -> None:
            del loader.exec_module
            self._quietly(self._prepare)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._quietly(lambda: self._begin(module))

        loader.exec_module = watched

    def _prepare(self) -> None:
        """torch reads these when it is imported, and writes to the folder when something is compiled."""
        from trace_doctor.recording.options import TORCH_TRACE_FOLDER, RecordOptions
        from trace_doctor.recording.plan import TRACED

        options = RecordOptions.read(Path(self._options_file))
        if set(TRACED) & set(options.phases):
            os.environ.setdefault("TORCH_TRACE", os.path.join(options.folder, TORCH_TRACE_FOLDER))
        if options.kernel_lines:
            os.environ.setdefault("INDUCTOR_PROVENANCE", "2")

    def _begin(self, torch: ModuleType) -> None:
        from trace_doctor.recording.agent.copy_up import watch_saves
        from trace_doctor.recording.agent.session import begin
        from trace_doctor.recording.options import RecordOptions

        process_log.say(self._folder, process_log.TORCH)
        watch_saves(torch)
        begin(torch, RecordOptions.read(Path(self._options_file)))

    def _quietly(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            process_log.say(self._folder, process_log.FAILED, why=process_log.told(error))


def wait_for_torch(options_file: str) -> None:
    """Begins a session when torch has been imported."""
    sys.meta_path.insert(0, TorchWatch(options_file))
