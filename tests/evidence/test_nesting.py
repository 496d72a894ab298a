from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.nesting import Nesting, inside, nest
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
    tree, run = made[Nesting], made.run
    names = [run.text(r) for r in range(len(run))]
    parent = {names[r]: (names[p] if p >= 0 else None) for r, p in enumerate(tree.parent.tolist())}
    assert parent == {"outer": None, "a": "outer", "b": "a", "other thread": None, "c": "outer", "k": None}
    b = names.index("b")
    assert [names[r] for r in tree.ancestors(b)] == ["a", "outer"]
    innermost = tree.innermost(0, np.array([14_000, 29_000, 5_000, 200_000]))
    assert [names[r] if r >= 0 else None for r in innermost] == ["b", "a", "outer", None]
    assert [names[r] for r in tree.children(names.index("outer"))] == ["a", "c"]
    assert tree.depth[b] == 2
    assert tree.depth[names.index("k")] == -1


@pytest.mark.parametrize(("end", "parent"), [(11, "a"), (25, None)])
def test_an_overlap_belongs_where_most_of_it_lies(
    facts: Callable[..., Facts], end: float, parent: str | None
) -> None:
    made = facts([(OP, "a", 0, 10, {}), (OP, "b", 5, end - 5, {}), (OP, "c", 5.5, 1, {})])
    tree, run = made[Nesting], made.run
    b = next(r for r in range(3) if run.text(r) == "b")
    assert (run.text(tree.parent[b]) if tree.parent[b] >= 0 else None) == parent
    c = next(r for r in range(3) if run.text(r) == "c")
    assert run.text(tree.parent[c]) == "b"


def test_outermost_drops_what_lies_in_another(facts: Callable[..., Facts]) -> None:
    made = facts([(OP, "x", 0, 10, {}), (PY, "f", 1, 8, {}), (OP, "x", 2, 2, {}), (OP, "x", 20, 5, {})])
    rows = np.flatnonzero(made.run.cat == OP)
    assert made.run.ts[made[Nesting].outermost(rows)].tolist() == [0, 20_000]


def test_what_lies_in_the_first_event_lies_in_it_with_and_without_the_accelerator(
    facts: Callable[..., Facts],
) -> None:
    tree = facts([(OP, "x", 0, 10, {}), (PY, "f", 1, 8, {}), (OP, "y", 2, 2, {}), (OP, "z", 20, 5, {})])[
        Nesting
    ]
    rows, chosen = np.arange(4), np.array([True, False, False, False])
    assert tree.inside(rows, chosen).tolist() == [False, True, True, False]
    assert inside(tree.parent, chosen, rows).tolist() == [False, True, True, False]


def test_enclosing_is_the_innermost_that_lasts_all_through(facts: Callable[..., Facts]) -> None:
    made = facts([(PY, "f", 0, 100, {}), (PY, "g", 10, 50, {}), (OP, "a", 10, 5, {}), (OP, "b", 20, 30, {})])
    tree, run = made[Nesting], made.run
    pieces = np.array([[10, 15], [10, 40], [20, 50], [30, 70], [50, 101]]) * 1000
    names = [run.text(r) if r >= 0 else None for r in tree.enclosing(0, pieces).tolist()]
    assert names == ["a", "g", "b", "f", None]


def test_reaching_is_what_ends_later_than_all_before_it_on_its_thread(facts: Callable[..., Facts]) -> None:
    made = facts(
        [
            (PY, "f", 0, 10, {}),
            (OP, "inside", 2, 3, {}),
            (OP, "elsewhere", 3, 90, {"thread": 1}),
            (OP, "sticks out", 8, 7, {}),
            (OP, "ends alike", 9, 6, {}),
            (OP, "later", 20, 5, {}),
        ]
    )
    tree, run = made[Nesting], made.run
    assert [run.text(r) for r in tree.reaching(0)] == ["f", "sticks out", "later"]
    assert [run.text(r) for r in tree.reaching(1)] == ["elsewhere"]


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([0, 1, 2, 3, 5, 8, 13, 21, 34, 55])), max_size=60
    )
)
def test_the_parent_is_the_nearest_event_before_that_is_open_and_holds_the_middle(
    spans: list[tuple[int, int]],
) -> None:
    spans.sort(key=lambda s: (s[0], -s[1]))
    ts = np.array([start for start, _ in spans], dtype=np.int64)
    end = ts + np.array([dur for _, dur in spans], dtype=np.int64)
    parent, depth = [], [-1]
    for i, (start, dur) in enumerate(spans):
        holding = [j for j in range(i) if end[j] > start and end[j] >= start + dur // 2]
        parent.append(max(holding, default=-1))
        depth.insert(i, depth[parent[-1]] + 1)
    found, levels = nest(ts, end)
    assert found.tolist() == parent
    assert levels.tolist() == depth[:-1]
