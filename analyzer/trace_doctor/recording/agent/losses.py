"""What backward() is called on: the losses of a step, read long after it, and how many backward passes it has."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Losses:
    """Copies the scalars that backward() starts from. Nothing of it waits for the device or draws random numbers."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.keep = True
        """False: count only, for phases in which a copy would be seen"""
        self.before_backward: Callable[[], None] | None = None
        self._losses: list[Any] = []
        self._count = 0
        self._unscaled: tuple[Any, Any] | None = None
        self._thread = threading.get_ident()

    def install(self) -> None:
        backward = self.torch.autograd.backward
        compiling = self.torch.compiler.is_compiling

        @functools.wraps(backward)
        def watched(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not compiling():
                self._seen(tensors, grad_tensors)
            return backward(tensors, grad_tensors, *args, **kwargs)

        self.torch.autograd.backward = watched
        self._watch_scaling()

    def _watch_scaling(self) -> None:
        """The loss is what the script gave to GradScaler.scale(), not what came out."""
        scaler = self.torch.amp.GradScaler
        scale = scaler.scale

        @functools.wraps(scale)
        def watched(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if scaled is not outputs and isinstance(scaled, self.torch.Tensor):
                self._unscaled = (weakref.ref(scaled), weakref.ref(outputs))
            return scaled

        scaler.scale = watched

    def _seen(self, tensors: Any, gradients: Any) -> None:
        try:
            if threading.get_ident() != self._thread:
                return
            self._count += 1
            if self.before_backward is not None:
                self.before_backward()
            if self.keep and gradients is None:
                several = isinstance(tensors, (list, tuple))
                for tensor in tensors if several else [tensors]:
                    self._copy(tensor)
        except Exception:
            self.keep = False

    def _copy(self, tensor: Any) -> None:
        if self._unscaled and self._unscaled[0]() is tensor:
            tensor = self._unscaled[1]() if self._unscaled[1]() is not None else tensor
        cuda = self.torch.cuda
        if tensor.numel() == 1 and not (cuda.is_initialized() and cuda.is_current_stream_capturing()):
            self._losses.append(tensor.detach().clone())

    def take(self) -> tuple[list[Any], int]:
        """The losses (tensors of one element) and the number of backward passes since the last call."""
        taken = self._losses, self._count
        self._losses, self._count = [], 0
        return taken


def total(losses: list[Any]) -> float | None:
    """The sum of the losses of a step, in their order; waits for the device. None where there is none."""
    return sum(float(x.item()) for x in losses) if losses else None
