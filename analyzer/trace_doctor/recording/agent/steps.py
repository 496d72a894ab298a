"""Where steps end: optimizer steps, of several optimizers the one that steps least often; without any, module calls."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

OnStep = Callable[[str], None]
"""is called behind each step with what it was found by; may raise SystemExit"""


class Closing:
    """Of optimizers that step in turns, the one whose step ends the whole (a GAN's generator, not its discriminator).

    It is the one that steps least often among those that have stepped twice, of several the one that began last."""

    def __init__(self, patience: int = 64) -> None:
        self._count: dict[int, int] = {}
        self._patience = patience
        self._since = 0
        self._frozen = False
        self.chosen: int | None = None
        self.changed = False
        """whether the last call chose another one than before"""

    def ends_step(self, optimizer: int) -> bool:
        """Whether this step of this optimizer (its id) ends a step of the training."""
        self.changed = False
        self._since = 0 if optimizer == self.chosen else self._since + 1
        if self._frozen and self._since <= self._patience:
            return optimizer == self.chosen
        if self._frozen:  # it is gone: another part of the script trains with others
            self._frozen, self._count = False, {}
        self._count[optimizer] = self._count.get(optimizer, 0) + 1
        before, self.chosen = self.chosen, self._choose()
        self.changed = before is not None and before != self.chosen
        return optimizer == self.chosen

    def _choose(self) -> int:
        often = {k: n for k, n in self._count.items() if n >= 2} or dict(list(self._count.items())[:1])
        least = min(often.values())
        return [k for k, n in often.items() if n == least][-1]

    def freeze(self) -> None:
        """From now on the choice stands while the chosen one goes on stepping."""
        self._frozen = True
        self._patience = max(self._patience, 4 * sum(self._count.values()))


class Finder:
    """Watches optimizers and module calls in the thread that uses them first."""

    def __init__(self, torch: Any, on_step: OnStep, step_every: int | None) -> None:
        self.torch = torch
        self.on_step = on_step
        self.on_begin: Callable[[], None] | None = None
        """is called when an optimizer begins to step or a module is called from outside"""
        self.step_every = step_every
        self.closing = Closing()
        self.active = True
        self._thread: int | None = None
        self._depth = 0
        self._calls = 0
        self._optimizers = False
        self._stepped = 0
        self._restore_calls: Callable[[], None] | None = None

    def install(self) -> None:
        if self.step_every is None:
            self._watch_optimizers()
            self._watch_scaler()
        self._watch_modules()

    # -- optimizers

    def _watch_optimizers(self) -> None:
        """Around what torch itself puts around each step(): so the end of a step lies outside the optimizer's mark."""
        optimizer = self.torch.optim.Optimizer
        hook, init = optimizer.profile_hook_step, optimizer.__init__
        compiling = self.torch.compiler.is_compiling

        def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
            hooked = hook(step)

            @functools.wraps(step)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if compiling() or not self._mine():
                    return hooked(*args, **kwargs)
                self._depth += 1
                if self.on_begin is not None:
                    self.on_begin()
                try:
                    result = hooked(*args, **kwargs)
                finally:
                    self._depth -= 1
                if self._depth == 0:
                    self._optimizer_stepped(args[0])
                return result

            return watched

        @functools.wraps(init)
        def watched_init(this: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizers = True
            self._forget_modules()
            init(this, *args, **kwargs)

        optimizer.profile_hook_step = staticmethod(profile_hook_step)
        optimizer.__init__ = watched_init

    def _watch_scaler(self) -> None:
        """GradScaler.step() leaves the optimizer's step out where gradients overflowed: it ends a step all the same."""
        amp = getattr(self.torch, "amp", None)
        scaler = getattr(amp, "GradScaler", None) or self.torch.cuda.amp.GradScaler
        step = scaler.step

        @functools.wraps(step)
        def watched(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._stepped
            result = step(this, optimizer, *args, **kwargs)
            if self._stepped == before and self._depth == 0 and self._mine():
                self._optimizer_stepped(optimizer)
            return result

        scaler.step = watched

    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._stepped += 1
        if self.closing.ends_step(id(optimizer)):
            self.on_step(found_by())

    # -- module calls

    def _watch_modules(self) -> None:
        """Calls from outside of any module. Away again with the first optimizer, unless they were asked for."""
        module = self.torch.nn.Module
        call = module.__call__
        compiling = self.torch.compiler.is_compiling
        finder, depth = self, threading.local()

        @functools.wraps(call)
        def watched(
            self: Any, *args: Any, **kwargs: Any
        ) -> Any:  # the profiler reads the module from this `self`
            if compiling() or getattr(depth, "inside", False) or not finder._mine():
                return call(self, *args, **kwargs)
            depth.inside = True
            if finder.on_begin is not None:
                finder.on_begin()
            try:
                result = call(self, *args, **kwargs)
            finally:
                depth.inside = False
            finder._module_called()
            return result

        def restore() -> None:
            if module.__call__ is watched:
                module.__call__ = call

        module.__call__ = watched
        self._restore_calls = restore

    def _forget_modules(self) -> None:
        if self.step_every is None and self._restore_calls is not None:
            self._restore_calls()
            self._restore_calls = None

    def _module_called(self) -> None:
        if self.torch.jit.is_tracing() or (self._optimizers and self.step_every is None):
            return
        self._calls += 1
        if self._calls % (self.step_every or 1) == 0:
            self.on_step("module calls")

    def _mine(self) -> bool:
        """Whether this is the thread that trains, and somebody still wants to know."""
        if not self.active:
            return False
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        return thread == self._thread


_LIBRARIES = (
    ("transformers.trainer", "trainer"),
    ("pytorch_lightning.", "lightning"),
    ("lightning.", "lightning"),
    ("accelerate.", "accelerate"),
)


def found_by() -> str:
    """Whose loop steps the optimizer, by the modules of the callers."""
    frame = sys._getframe(1)
    found = "optimizer"
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        for prefix, library in _LIBRARIES:
            if name.startswith(prefix):
                if library != "accelerate":
                    return library
                found = library
        frame = frame.f_back  # type: ignore[assignment]
    return found
