"""Where steps end without an optimizer, by what happens to gradients."""

from __future__ import annotations

import pytest
import torch

from trace_doctor.recording.agent.hand_updates import HandUpdates

pytestmark = pytest.mark.torch


def _ends(batches: int, every: int, clear: str, early: bool = True) -> list[int]:
    """Batches at whose forward pass a step ends. Gradients are cleared before each `every`th one, or behind its forward pass."""
    steps, model, ended = HandUpdates(), torch.nn.Linear(2, 1), []
    for batch in range(batches):
        clears = batch % every == 0
        if clears and early:
            _clear(model, clear)
        if steps.called(model):
            ended.append(batch)
        loss = model(torch.ones(1, 2)).sum()
        if clears and not early:
            _clear(model, clear)
        steps.backward_begins()
        loss.backward()
        assert not steps.backward_ended()
    return ended


def _clear(model: torch.nn.Module, how: str) -> None:
    for parameter in model.parameters():
        if how == "none":
            parameter.grad = None
        elif parameter.grad is not None:
            (parameter.grad if how == "zero" else parameter.grad.data).zero_()


def test_gradients_that_are_kept_accumulate() -> None:
    for how in ("none", "zero"):
        assert _ends(9, 1, how) == [*range(1, 9)]
        assert _ends(9, 3, how) == [3, 6]


def test_gradients_may_be_cleared_behind_the_forward_pass() -> None:
    assert _ends(9, 1, "none", early=False) == [*range(2, 9)]


def test_clearing_that_cannot_be_seen_is_believed_in_the_end() -> None:
    assert _ends(60, 1, "data")[-5:] == [*range(55, 60)]


def test_without_modules_a_step_ends_with_its_backward_pass() -> None:
    steps, weight = HandUpdates(), torch.ones(2, requires_grad=True)
    steps.backward_begins()
    weight.sum().backward()
    assert steps.backward_ended() and steps.trains
    assert not steps.called(torch.nn.MSELoss())


def test_evaluation_ends_the_last_step_of_an_epoch_and_none_of_its_own() -> None:
    steps, model, loss = HandUpdates(), torch.nn.Linear(2, 1), torch.nn.MSELoss()
    steps.called(model)
    steps.backward_begins()
    model(torch.ones(1, 2)).sum().backward()
    steps.backward_ended()
    _clear(model, "none")
    model.eval()
    assert [steps.called(module) for module in (model, loss, model, loss)] == [True, False, False, False]
