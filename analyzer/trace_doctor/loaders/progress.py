"""How far the reading of files has come, for whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[int], None]] = ContextVar("listener")


class Progress:
    """What an analysis tells whoever waits for it. This one keeps quiet."""

    def __call__(self, phase: str, what: str) -> None:
        """A phase begins: "reading", or the code of a rule; `what` is the file it works on."""

    def expect(self, count: int) -> None:
        """So many bytes of files are to be read."""

    def read(self, count: int) -> None:
        """So many more bytes have been read."""


@contextmanager
def listening(listener: Callable[[int], None]) -> Iterator[None]:
    """Within the block the listener is told of every piece of a file that is read: how many bytes of the file."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def advanced(count: int) -> None:
    """Called by what reads files, a few times per MB at most."""
    listener = _listener.get(None)
    if listener is not None:
        listener(count)
