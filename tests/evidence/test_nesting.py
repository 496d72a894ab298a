from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.run import Cat

OP, PY = Cat.CPU_OP, Cat.PYTHON


def test_events_belong_to_the_innermost_that_holds_them_on_their_thread(facts: Callable[..., Facts]) -> None:
    made = facts(
        [
            (PY, "outer", 0, 100, {}),
            (OP, "a", 10, 20, {}),
            (OP, "b", 12, 5, {}),
            (OP, "other thread", 13, 5, {"thread": 1}),
            (OP, "c", 30, 5, {}),
            (Cat.KERNEL, "k", 14, 5, {}),
        ]
    )
    nesting, run = made[Nesting], made.run
    names = [run.text(r) for r in range(len(run))]
    parent = {names[r]: (names[p] if p >= 0 else None) for r, p in enumerate(nesting.parent.tolist())}
    assert parent == {"outer": None, "a": "outer", "b": "a", "other thread": None, "c": "outer", "k": None}
    b = names.index("b")
    assert [names[r] for r in nesting.ancestors(b)] == ["a", "outer"]
    assert [names[r] for r in nesting.open_at(0, 14_000)] == ["outer", "a", "b"]
    assert [names[r] for r in nesting.open_at(0, 29_000)] == ["outer", "a"]
    assert nesting.open_at(0, 200_000) == []
    assert [names[r] for r in nesting.children(names.index("outer"))] == ["a", "c"]
    assert nesting.depth[b] == 2
    assert nesting.depth[names.index("k")] == -1


@pytest.mark.parametrize(("end", "parent"), [(11, "a"), (25, None)])
def test_an_overlap_belongs_where_most_of_it_lies(
    facts: Callable[..., Facts], end: float, parent: str | None
) -> None:
    made = facts([(OP, "a", 0, 10, {}), (OP, "b", 5, end - 5, {}), (OP, "c", 5.5, 1, {})])
    nesting, run = made[Nesting], made.run
    b = next(r for r in range(3) if run.text(r) == "b")
    assert (run.text(nesting.parent[b]) if nesting.parent[b] >= 0 else None) == parent
    c = next(r for r in range(3) if run.text(r) == "c")
    assert run.text(nesting.parent[c]) == "b"


def test_outermost_drops_what_lies_in_another(facts: Callable[..., Facts]) -> None:
    made = facts([(OP, "x", 0, 10, {}), (PY, "f", 1, 8, {}), (OP, "x", 2, 2, {}), (OP, "x", 20, 5, {})])
    rows = np.flatnonzero(made.run.cat == OP)
    assert made.run.ts[made[Nesting].outermost(rows)].tolist() == [0, 20_000]


def test_enclosing_is_the_innermost_that_lasts_all_through(facts: Callable[..., Facts]) -> None:
    made = facts([(PY, "f", 0, 100, {}), (PY, "g", 10, 50, {}), (OP, "a", 10, 5, {}), (OP, "b", 20, 30, {})])
    nesting, run = made[Nesting], made.run
    pieces = np.array([[10, 15], [10, 40], [20, 50], [30, 70], [50, 101]]) * 1000
    names = [run.text(r) if r >= 0 else None for r in nesting.enclosing(0, pieces).tolist()]
    assert names == ["a", "g", "b", "f", None]
