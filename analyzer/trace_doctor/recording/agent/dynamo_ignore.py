"""Calls that torch.compile neither compiles nor sees: the recorder's functions can be called in the middle of its work."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

Call = Callable[..., Any]
"""call(function, *arguments)"""


class Unseen:
    """Works on what torch.compile hooks into Python with, which is there without importing torch.compile."""

    def __init__(self, torch: Any) -> None:
        dynamo = getattr(torch._C, "_dynamo", None)
        self._frames = getattr(dynamo, "eval_frame", None)
        self.compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)
        """whether what calls this is being compiled; torch.compile knows the answer while it looks at the caller"""
        self.call = self._around_calls()

    def _around_calls(self) -> Call:
        evaluate = getattr(self._frames, "set_eval_frame", None)
        if evaluate is None:
            return lambda function, *arguments: function(*arguments)

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            before = evaluate(None)
            try:
                return function(*arguments)
            finally:
                evaluate(before)

        self.skip(call)
        return call

    def skip(self, function: Any) -> None:
        """The function's own frame is run as it is; what it calls is not affected."""
        code: CodeType = function.__code__
        frames: Any = self._frames
        if hasattr(frames, "set_code_exec_strategy"):
            action = frames._FrameAction
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
        elif hasattr(frames, "skip_code"):  # before torch 2.6
            frames.skip_code(code)
