"""Where steps end: optimizer steps, of several optimizers the one that steps least often; without any, backward passes, or
without these module calls, of several modules those of the one that is called least often."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from trace_doctor.recording.agent.dynamo_ignore import Unseen
from trace_doctor.recording.agent.hand_updates import HandUpdates
from trace_doctor.recording.agent.home import Home
from trace_doctor.recording.agent.losses import grad_scaler
from trace_doctor.recording.agent.patches import Function, Patches

OnStep = Callable[[str], None]
"""is called behind each step with what ended it ("optimizer", "backward passes" or "module calls"); may raise SystemExit"""


_PATIENCE = 32
"""calls of modules in training mode, or of optimizers, in which others are still expected to turn up"""


class Closing:
    """Of optimizers that step in turns, the one whose step ends the whole (a GAN's generator, not its discriminator); and of
    modules that are called in turns, the one whose call does (the loss behind the model).

    It is the one that steps least often among those that have stepped twice, of several the one that began last."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._patience = 64
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

    def optimizer_made(self, optimizer: int) -> None:
        """There is an optimizer (its id) that may take steps."""
        self._waiting.add(optimizer)

    def inside(self, optimizer: int) -> None:
        """This one steps inside another's step."""
        self._waiting.discard(optimizer)

    @property
    def sure(self) -> bool:
        """Whether the choice can be trusted: each optimizer that there is has stepped twice, or will not step at all."""
        calls = self._count.values()
        return min(calls, default=0) >= 2 and (self._waiting <= self._count.keys() or sum(calls) >= _PATIENCE)

    @property
    def optimizers(self) -> int:
        """How many have taken steps."""
        return len(self._count)

    def freeze(self) -> None:
        """From now on the choice stands while the chosen one goes on stepping."""
        self._frozen = True
        self._patience = max(self._patience, 4 * sum(self._count.values()))


class Finder:
    """Watches optimizers and module calls in the thread that uses them first, and once it has ended in the next."""

    def __init__(self, torch: Any, on_step: OnStep, step_every: int | None) -> None:
        self.torch = torch
        self.on_step = on_step
        self.on_training: Callable[[], None] = lambda: None
        """is called when the first optimizer is made, or a backward pass runs without one"""
        self.on_begin: Callable[[], None] | None = None
        """is called when an optimizer begins to step or a module is called from outside"""
        self.step_every = step_every
        self.closing = Closing()
        self.calling = Closing()
        """the same of modules, where there is no optimizer"""
        self.by_hand = HandUpdates()
        self.active = True
        self._home = Home()
        self._depth = 0
        self._inside = False
        self._unseen = Unseen(torch)
        self._calls = 0
        self._optimizers = False
        self._trained = 0
        self._stepped = 0
        self._patches = Patches()
        self._module_patch = Patches()

    def install(self) -> None:
        """Whatever is found by, calls of modules are watched until there is an optimizer, or if they were asked for. What it
        wraps for these is undone first: nobody else may have wrapped it since, as `Losses` does."""
        torch = self.torch
        if self.step_every is None:
            # around what torch itself puts around each step(): so the end of a step lies outside the optimizer's mark
            self._patches.wrap(torch.optim.Optimizer, "profile_hook_step", self._around_hook, static=True)
            self._patches.wrap(torch.optim.Optimizer, "__init__", self._around_new_optimizer)
            self._patches.wrap(grad_scaler(torch), "step", self._around_scaled_step)
            self._module_patch.wrap(torch.autograd, "backward", self._around_backward)
        self._module_patch.wrap(torch.nn.Module, "__call__", self._around_call)

    def uninstall(self) -> None:
        """Undoes `install`: no step is seen any more."""
        self.active = False
        self._patches.undo()
        self._module_patch.undo()

    # -- optimizers

    def _around_hook(self, hook: Function) -> Function:
        compiling, unseen = self._unseen.compiling, self._unseen.call

        def profile_hook_step(step: Function) -> Function:
            hooked = hook(step)

            @functools.wraps(step)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if compiling() or not unseen(self._enter):
                    return hooked(*args, **kwargs)
                try:
                    result = hooked(*args, **kwargs)
                finally:
                    unseen(self._exit)
                unseen(self._optimizer_returned, args[0])
                return result

            self._unseen.skip(watched)
            return watched

        return profile_hook_step

    def _enter(self) -> bool:
        """Whether the step of an optimizer begins that counts."""
        if not self._mine():
            return False
        self._depth += 1
        self._begin()
        return True

    def _exit(self) -> None:
        self._depth -= 1

    def _optimizer_returned(self, optimizer: Any) -> None:
        if self._depth == 0:
            self._optimizer_stepped(optimizer)
        else:
            self.closing.inside(id(optimizer))

    def _around_new_optimizer(self, init: Function) -> Function:
        unseen = self._unseen.call

        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            unseen(self._optimizer_made, optimizer)
            init(optimizer, *args, **kwargs)

        self._unseen.skip(watched)
        return watched

    def _optimizer_made(self, optimizer: Any) -> None:
        self.closing.optimizer_made(id(optimizer))
        if not self._optimizers:
            self._optimizers = True
            self._module_patch.undo()
            self.on_training()

    def _around_scaled_step(self, step: Function) -> Function:
        """GradScaler.step() leaves the optimizer's step out where gradients overflowed: it ends a step all the same."""
        unseen = self._unseen.call

        def watched(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._stepped
            result = step(scaler, optimizer, *args, **kwargs)
            if self._stepped == before:
                unseen(self._step_left_out, optimizer)
            return result

        self._unseen.skip(watched)
        return watched

    def _step_left_out(self, optimizer: Any) -> None:
        if self._depth == 0 and self._mine():
            self._optimizer_stepped(optimizer)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._stepped += 1
        if self.closing.ends_step(id(optimizer)):
            self.on_step("optimizer")

    # -- backward passes without an optimizer

    def _around_backward(self, backward: Function) -> Function:
        compiling, unseen = self._unseen.compiling, self._unseen.call

        def watched(*args: Any, **kwargs: Any) -> Any:
            if compiling() or self._inside or not unseen(self._mine):
                return backward(*args, **kwargs)
            unseen(self.by_hand.backward_begins)
            result = backward(*args, **kwargs)
            unseen(self._backward_ended)
            return result

        self._unseen.skip(watched)
        return watched

    def _backward_ended(self) -> None:
        if not self.by_hand.trains:
            self.on_training()
        if self.by_hand.backward_ended():
            self.on_step("backward passes")

    # -- module calls

    def _around_call(self, call: Function) -> Function:
        """Around calls from outside of any module."""
        finder, unseen = self, self._unseen.call
        compiling = self._unseen.compiling

        def watched(
            self: Any, *args: Any, **kwargs: Any
        ) -> Any:  # the profiler reads the module from this `self`
            if compiling() or not unseen(finder._enter_module, self):
                return call(self, *args, **kwargs)
            try:
                result = call(self, *args, **kwargs)
            finally:
                finder._inside = False
            unseen(finder._module_called, self)
            return result

        self._unseen.skip(watched)
        return watched

    def _enter_module(self, module: Any) -> bool:
        """Whether a call from outside begins, in the thread that trains."""
        if not self._mine() or self._inside:
            return False
        self._begin()
        if self.step_every is None and self.by_hand.called(module):
            self.on_step("backward passes")
        self._inside = True
        return True

    def _module_called(self, module: Any) -> None:
        if self.torch.jit.is_tracing() or (
            self.step_every is None and (self._optimizers or self.by_hand.trains)
        ):
            return
        if self.step_every is None and not self.calling.ends_step(id(module)):
            return
        if self.step_every is None and module.training and self.torch.is_grad_enabled():
            self._trained += 1  # training: an optimizer is still to come
            if self._trained < _PATIENCE:
                return
        self._calls += 1
        if self._calls % (self.step_every or 1) == 0:
            self.on_step("module calls")

    def _begin(self) -> None:
        if self.on_begin is not None:
            self.on_begin()

    def _mine(self) -> bool:
        """Whether this is the thread that trains, and somebody still wants to know."""
        return self.active and self._home.takes()


_LIBRARIES = (
    ("transformers.trainer", "trainer"),
    ("pytorch_lightning.", "lightning"),
    ("lightning.", "lightning"),
    ("accelerate.", "accelerate"),
)


def whose_loop() -> str:
    """Who steps the optimizer, by the modules of the callers."""
    frame = sys._getframe(1)
    owner = "optimizer"
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        for prefix, library in _LIBRARIES:
            if name.startswith(prefix):
                if library != "accelerate":
                    return library
                owner = library
        frame = frame.f_back  # type: ignore[assignment]
    return owner
