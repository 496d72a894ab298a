"""Where steps end in a training without an optimizer, which changes its parameters by itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_MOST_BATCHES = 32
"""backward passes in which gradients are expected to be cleared; `grad.data.zero_()` cannot be seen"""


class HandUpdates:
    """Such a step ends where a module is called next after a backward pass, whatever for: the update lies in between, and an
    evaluation behind it is no part of the step. Where gradients were left as they are until then, they accumulate."""

    def __init__(self) -> None:
        self.trains = False
        """whether there was a backward pass"""
        self._parameter: Callable[[], Any] = lambda: None
        self._left: Any = None
        """the gradient as the last backward pass left it; None: not known"""
        self._pending = False
        self._kept = 0
        self._cleared_late = False

    def backward_begins(self) -> None:
        """Gradients that are cleared only now, after the forward pass, do not accumulate."""
        if self._kept and self._gradient() != self._left:
            self._cleared_late = True

    def backward_ended(self) -> bool:
        """Gradients are there. Whether a step ends: there are no modules whose next call could tell."""
        self.trains = True
        self._left = self._gradient()
        self._pending = self._parameter() is not None
        return not self._pending

    def called(self, module: Any) -> bool:
        """A module is called from outside of any other. Whether that ends a step."""
        pending, self._pending = self._pending, False
        ends = pending and self._used()
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                self._parameter = weakref.ref(parameter)
                break
        return ends

    def _used(self) -> bool:
        if not self._cleared_late and self._left is not None and self._gradient() == self._left:
            self._kept += 1
            self._cleared_late = self._kept >= _MOST_BATCHES
            return False
        self._kept = 0
        return True

    def _gradient(self) -> Any:
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        return None if gradient is None else (id(gradient), gradient._version)
