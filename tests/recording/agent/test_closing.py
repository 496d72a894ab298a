"""Which of several optimizers ends a step."""

from __future__ import annotations

import pytest

from trace_doctor.recording.agent.step_detection import Closing


@pytest.mark.parametrize(
    ("turn", "closing"),
    [
        ("S", "S"),
        ("DG", "G"),
        ("GD", "D"),
        ("DDDG", "G"),
        ("GDDDDD", "G"),
        ("ABC", "C"),
        ("AABBC", "C"),
        ("".join(map(chr, range(40, 140))), chr(139)),
    ],
)
def test_the_one_that_steps_least_often_ends_the_step(turn: str, closing: str) -> None:
    choice = Closing()
    for name in set(turn):
        choice.optimizer_made(ord(name))
    for _ in range(3):
        for name in turn:
            choice.ends_step(ord(name))
    assert choice.sure
    choice.freeze()
    ended = [choice.ends_step(ord(name)) for name in turn * 5]
    assert ended == [name == closing for name in turn * 5]


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever() -> None:
    choice = Closing()
    choice.optimizer_made(1)
    choice.optimizer_made(2)
    calls = 0
    while not choice.sure:
        choice.ends_step(1)
        calls += 1
    assert 2 < calls < 100


def test_an_optimizer_inside_another_is_not_waited_for() -> None:
    choice = Closing()
    choice.optimizer_made(1)
    choice.optimizer_made(2)
    choice.inside(2)
    choice.ends_step(1)
    choice.ends_step(1)
    assert choice.sure


def test_another_training_of_the_same_script_has_steps_too() -> None:
    choice = Closing()
    for _ in range(5):
        choice.ends_step(1)
    choice.freeze()
    ended = [choice.ends_step(2) for _ in range(500)]
    assert not any(ended[:50]) and all(ended[-50:])
