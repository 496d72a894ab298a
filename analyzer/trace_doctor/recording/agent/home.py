"""A thread that is known again: its number is that of another one once it has ended."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class Home:
    """Of no thread, until `settle`."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._mark: Callable[[], object] = lambda: None

    def settle(self) -> None:
        """It is this thread from now on."""
        mark = _Mark()
        self._of_thread.mark = mark
        self._mark = weakref.ref(mark)

    @property
    def here(self) -> bool:
        """Whether it is this thread."""
        return getattr(self._of_thread, "mark", self) is self._mark()

    def takes(self) -> bool:
        """The same; where there is no such thread, or it has ended, it is this one from now on."""
        if self._mark() is None:
            self.settle()
        return self.here


class _Mark:
    """Goes with its thread."""
