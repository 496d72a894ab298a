"""What takes long once in several steps, and where. A step sleeps: how long it does so is not asserted."""

from __future__ import annotations

import inspect
import time

from trace_doctor.recording.agent.periodic_work import PeriodicWork

_LOADER: dict[str, object] = {"sleep": time.sleep}
exec(
    compile("def fetch(seconds): sleep(seconds)", "/site-packages/torch/utils/data/dataloader.py", "exec"),
    _LOADER,
)
fetch = _LOADER["fetch"]


def evaluate() -> None:
    time.sleep(0.1)


def forward(seconds: float) -> None:
    time.sleep(seconds)


def _observed(
    steps: int, *, evaluates: int = 0, lengthens: int = 0, fetches: int = 0, phase: str = "timing"
) -> PeriodicWork:
    """Every so many steps one evaluates first, one takes long in the model as well, or waits for data."""
    work = PeriodicWork()
    work.phase(phase)  # type: ignore[arg-type]
    for n in range(steps):
        began = time.perf_counter()
        if evaluates and n % evaluates == evaluates - 1:
            evaluate()
        if fetches and n % fetches == fetches - 1:
            fetch(0.1)  # type: ignore[operator]
        forward(0.1 if lengthens and n % lengthens == lengthens - 1 else 0.01)
        seconds = time.perf_counter() - began
        work.step_ended(n, seconds)
        work.measured(n, phase, seconds * 1e3)  # type: ignore[arg-type]
    work.phase(None)
    return work


def test_work_that_comes_twice_is_named_with_its_share() -> None:
    found = _observed(14, evaluates=4).summary([])
    assert found is not None
    assert found["steps"] == [3, 7, 11] and found["every"] == 4
    assert [(p["function"], p["calls"]) for p in found["places"]] == [("_observed", "evaluate")]
    assert found["share"] > 0.5


def test_long_steps_of_the_training_itself_and_waits_for_data_are_none() -> None:
    assert _observed(14, lengthens=4).summary([]) == {}
    assert _observed(14, fetches=4).summary([]) == {}


def test_what_came_once_is_waited_for_and_is_no_periodic_work() -> None:
    work = _observed(14, evaluates=10)
    assert work.summary([]) == {}
    assert work.steps_to_wait(13) == 7, "to step 18, and two more"
    assert work.steps_to_wait(13) == 0, "once"
    assert _observed(14, evaluates=4).steps_to_wait(13) == 0, "it has come again"


def test_a_script_may_lie_in_a_folder_named_torch() -> None:
    moved = {**globals()}
    exec(compile(inspect.getsource(_observed), "/home/me/torch/train.py", "exec"), moved)
    assert moved["_observed"](9, evaluates=4).summary([])["places"][0]["calls"] == "evaluate"


def test_too_little_is_no_answer() -> None:
    assert _observed(2).summary([]) is None
    assert _observed(14, evaluates=4, phase="light").summary([]) is None
