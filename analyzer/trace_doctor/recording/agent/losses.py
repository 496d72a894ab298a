"""What backward() is called on: the losses of a step, read long after it, and how many backward passes it has."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from trace_doctor.recording.agent.dynamo_ignore import Unseen
from trace_doctor.recording.agent.home import Home
from trace_doctor.recording.agent.patches import Function, Patches


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
        self._home = Home()
        self._patches = Patches()
        self._unseen = Unseen(torch)

    def install(self) -> None:
        """Wraps `backward` and the gradient scaler, until `uninstall`."""
        self._patches.wrap(self.torch.autograd, "backward", self._around_backward)
        self._patches.wrap(grad_scaler(self.torch), "scale", self._around_scale)

    def uninstall(self) -> None:
        """Undoes `install` and forgets the losses."""
        self._patches.undo()
        self.keep = False
        self.take()

    def _around_backward(self, backward: Function) -> Function:
        compiling, unseen = self._unseen.compiling, self._unseen.call

        def watched(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not compiling():
                unseen(self._observe, tensors, grad_tensors)
            return backward(tensors, grad_tensors, *args, **kwargs)

        self._unseen.skip(watched)
        return watched

    def _around_scale(self, scale: Function) -> Function:
        """The loss is what the script gave to GradScaler.scale(), not what came out."""
        unseen = self._unseen.call

        def watched(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            unseen(self._scaled, scaled, outputs)
            return scaled

        self._unseen.skip(watched)
        return watched

    def _scaled(self, scaled: Any, outputs: Any) -> None:
        if scaled is not outputs and isinstance(scaled, self.torch.Tensor):
            self._unscaled = (weakref.ref(scaled), weakref.ref(outputs))

    def _observe(self, tensors: Any, gradients: Any) -> None:
        try:
            if not self._home.takes():
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
        losses_and_count = self._losses, self._count
        self._losses, self._count = [], 0
        return losses_and_count


def total(losses: list[Any]) -> float | None:
    """The sum of the losses of a step, in their order; waits for the device. None where there is none."""
    return sum(float(x.item()) for x in losses) if losses else None


def grad_scaler(torch: Any) -> Any:
    """The class of all gradient scalers; before torch 2.3 there was CUDA's alone."""
    return getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
