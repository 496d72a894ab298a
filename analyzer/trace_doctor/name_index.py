"""Looking up the rows of a trace by what their names say: each distinct name is asked once, and a row is looked up instead of
sought in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I32, Bool, begins

Predicate = Callable[[str], bool]
"""of one name"""


class NameIndex:
    """The rows of each name. `name`: of each row, a number into `names`; `order`: all rows by name (`arrays.order_of`)."""

    def __init__(self, names: Sequence[str], name: I32, order: I32) -> None:
        self._names = names
        self._order = order
        self._first = begins(name, order, len(names)).tolist()
        self._answers: dict[Predicate, npt.NDArray[np.int8]] = {}

    def ids(self, predicates: Iterable[Predicate]) -> I32:
        """The names that satisfy any of the predicates."""
        satisfied = np.zeros(len(self._names), dtype=bool)
        for predicate in predicates:
            open_names = np.flatnonzero(~satisfied)
            satisfied[open_names] = self._satisfy(predicate, open_names)
        return np.flatnonzero(satisfied).astype(np.int32)

    def rows(self, ids: Iterable[int]) -> I32:
        """The rows of these names, one name after another."""
        first, order = self._first, self._order
        return np.concatenate([order[:0], *(order[first[i] : first[i + 1]] for i in ids)])

    def _satisfy(self, predicate: Predicate, ids: npt.NDArray[np.int64]) -> Bool:
        """Which of the names satisfy a predicate. The answers to functions of a module are remembered: many ask the same
        ones, and a trace may have a million names."""
        names = self._names
        if (
            not isinstance(predicate, FunctionType)
            or predicate.__closure__
            or predicate.__name__ == "<lambda>"
        ):
            return np.fromiter((predicate(names[i]) for i in ids.tolist()), dtype=bool, count=len(ids))
        answers = self._answers.setdefault(predicate, np.zeros(len(names), dtype=np.int8))
        new = ids[answers[ids] == 0]
        answers[new] = [1 if predicate(names[i]) else -1 for i in new.tolist()]
        return answers[ids] > 0
