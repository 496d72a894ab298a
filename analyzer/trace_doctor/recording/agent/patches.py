"""Functions of torch that are replaced while something is recorded, and put back afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Patches:
    """Replaces attributes; `undo` puts back those that nobody has replaced since."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(
        self, owner: Any, name: str, around: Callable[[Function], Function], static: bool = False
    ) -> None:
        """`around` gets the function and returns what stands in for it; does nothing where there is no such function."""
        original = getattr(owner, name, None)
        if original is None:
            return
        before = vars(owner).get(name)
        function: Any = functools.wraps(original)(around(original))
        stand_in = staticmethod(function) if static else function
        setattr(owner, name, stand_in)
        self._done.append((owner, name, stand_in, before))

    def undo(self) -> None:
        """Puts back what was there before, but for what others have replaced since."""
        for owner, name, stand_in, before in reversed(self._done):
            if vars(owner).get(name) is not stand_in:
                continue
            if before is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, before)
        self._done = []
