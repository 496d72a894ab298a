"""Columns of one length that grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_LEAST, _GROWTH = 1 << 10, 4


class Table:
    """Columns that grow at their ends. What is reserved ahead takes no memory before it is written."""

    def __init__(self, kinds: Mapping[str, type[np.generic]], room: int = 0) -> None:
        self.room = max(room, _LEAST)
        self.columns: dict[str, npt.NDArray[Any]] = {
            key: np.empty(self.room, kind) for key, kind in kinds.items()
        }
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def reserve(self, least: int) -> None:
        """Makes room for at least so many rows in all."""
        room = max(least, _GROWTH * self.room)
        for key, column in self.columns.items():  # one after another: a second copy of one column at a time
            self.columns[key] = np.empty(room, column.dtype)
            self.columns[key][: self._count] = column[: self._count]
        self.room = room

    def extend(self, count: int) -> None:
        """Takes as rows what was written behind the last one."""
        self._count += count

    def add(self, part: Mapping[str, npt.NDArray[Any]]) -> None:
        """Column -> values of further events, all of one length; makes room where that is short."""
        old, new = self._count, self._count + len(part["ts"])
        if new > self.room:
            self.reserve(new)
        for key, column in self.columns.items():
            column[old:new] = part[key]
        self._count = new

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, which leave the table."""
        columns = {key: column[: self._count] for key, column in self.columns.items()}
        self.columns = {}
        return columns
