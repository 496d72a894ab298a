"""Values of a fix: which are compared, which one goes on trial, and that other runs than those of the search judge it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.model import Finding, Fix, Location, Result, Saving
from trace_doctor.model.ledgers import IdleNs, TimeLedgerRow
from trace_doctor.model.treatment import Method, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.html import treatment as page
from trace_doctor.reporters.treatment import text as treatment_text
from trace_doctor.reporters.treatment.words import verdict
from trace_doctor.treatment import launching
from trace_doctor.treatment.batches import BatchSearch
from trace_doctor.treatment.candidates import Setup, candidates
from trace_doctor.treatment.loop import NO_VALUE, Loop
from trace_doctor.treatment.measurement import Measured, RunFailed
from trace_doctor.treatment.search.halving import Halving
from trace_doctor.treatment.search.values import MODES, Values, around
from trace_doctor.treatment.trial import Clock, Rules

SCRIPT = """\
import argparse
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
for batch in DataLoader([1], shuffle=True, batch_size=8WORKERS):
    model(batch).backward()
"""
METHOD = Method(
    warmup_steps=1, timed_steps=9, figure="median", repeats=6, alpha=0.05, least_gain=0.01, loss_tolerance=0.02
)  # fmt: skip
RULES = Rules(repeats=6, least_gain=0.01, loss_tolerance=0.02, without_losses=True)


def values_of(
    result: Result,
    made: Plan,
    cores: int,
    environment: Mapping[str, str],
    command: Sequence[str] = (),
    **how: Any,
) -> Values:
    """As `treat` makes them, from a plan with the arguments `how`."""
    return Values(
        result, made, lambda r: plan(r, made.tree.root, tree=made.tree, **how), cores, environment, command
    )


@dataclass
class Pretender:
    """Step times by what a setup says: the text of its files, its variables and its options. Runs differ by chance."""

    factors: Mapping[str, float]
    fails: str = "nothing"
    scatter: float = 0.005
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    runs: list[str] = field(default_factory=list)

    def record(self, setup: Setup, name: str) -> Path:
        raise NotImplementedError

    def time(self, setup: Setup) -> Measured:
        words = [data.decode() for data in setup.files().values()] + setup.arguments
        text = " ".join([*words, *(f"{k}={v}" for k, v in setup.environment.items())])
        self.runs.append(text)
        if self.fails in text:
            raise RunFailed("exit code 1: no memory")
        factor = 1.0
        for part, times in self.factors.items():
            factor *= times if part in text else 1.0
        return Measured({(0, 0): 1e5 * factor * exp(self.draw.gauss(0, self.scatter))})


def finding(codemod: str | None = "dataloader-args", **params: object) -> Finding:
    fix = Fix(title="Set num_workers=2", kind="patch", safety="unsafe", codemod=codemod, params=params)
    if codemod is None:
        fix = Fix(title="t", kind="env", safety="unsafe", text="OMP_NUM_THREADS=4 python train.py")
    return Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="warning", confidence="high", message="m",
        fingerprint="f", location=Location(), fixes=[fix], saving=Saving(share_of_step=0.5),
    )  # fmt: skip


def values(folder: Path, one: Finding, workers: str = "", cores: int = 4, **environment: str) -> Values:
    (folder / "train.py").write_text(SCRIPT.replace("WORKERS", workers))
    result = Result(findings=[one])
    return values_of(result, plan(result, folder), cores, environment)


def treated(folder: Path, runner: Pretender, workers: str = "", cores: int = 4, **params: object) -> Loop:
    made = values(folder, finding(num_workers=2, **params), workers, cores, OMP_NUM_THREADS="1")
    loop = Loop(runner, RULES, Clock(1e9), Setup(made.plan), values_of=made.of)
    loop.run(candidates(made.plan)[0])
    return loop


def test_the_best_value_is_kept_and_its_neighbors_are_in_the_table(tmp_path: Path) -> None:
    runner = Pretender(
        {"num_workers=1": 0.8, "num_workers=2": 0.7, "num_workers=4": 0.4, "num_workers=8": 0.6},
        scatter=0.0,
    )
    loop = treated(tmp_path, runner)
    [attempt] = loop.attempts
    assert (attempt.fate, attempt.fix) == ("kept", "Set num_workers=4")
    workers = [v for v in attempt.values if v.name == "num_workers"]
    assert [v.value for v in workers] == ["1", "2", "4", "8"] and [v.best for v in workers] == [0, 0, 1, 0]
    assert workers[2].ratio == pytest.approx(0.4, rel=0.05)
    assert b"num_workers=4" in loop.setup.edits.patch() and "num_workers=4" in attempt.diff
    shown = Treatment(code=0, verdict="v", method=METHOD, attempts=loop.attempts)
    assert Treatment.from_json(shown.to_json()).attempts[0].values == attempt.values
    text = " ".join(treatment_text.render(shown, Options(width=100)).split())
    said = "searched num_workers: 1 -20.0%, 2 -30.0%, 4 -60.0% (best), 8 -40.0%"
    assert said in text and said in page.render(shown, Options())


def test_the_runs_that_picked_a_value_do_not_judge_it(tmp_path: Path) -> None:
    """Whatever the search sees, a trial of its own follows with as many pairs as any other."""
    runner = Pretender({"num_workers=2": 0.5})
    loop = treated(tmp_path, runner)
    [attempt] = loop.attempts
    assert attempt.effects.pairs == RULES.repeats
    searching = sum(v.runs for v in attempt.values if v.name == "num_workers" and v.best)
    assert sum("num_workers=2" in run for run in runner.runs) >= searching + RULES.repeats


def test_where_no_value_is_faster_no_trial_is_made(tmp_path: Path) -> None:
    runner = Pretender({"num_workers": 1.2})
    loop = treated(tmp_path, runner)
    assert [(a.fate, a.reason) for a in loop.attempts] == [("rejected", NO_VALUE)]
    assert len(runner.runs) <= 3 * 5 and loop.attempts[0].values


def test_a_value_that_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    loop = treated(tmp_path, Pretender({"num_workers=": 0.5}, fails="num_workers=8"))
    [attempt] = loop.attempts
    failed = next(v for v in attempt.values if v.value == "8")
    assert attempt.fate == "kept" and failed.ratio is None and "no memory" in failed.failure


def test_another_axis_is_kept_only_where_fresh_runs_show_that_it_adds(tmp_path: Path) -> None:
    gains = {"num_workers=2": 0.5, "prefetch_factor=8": 0.7}
    loop = treated(tmp_path, Pretender(gains), prefetch_factor=4)
    [attempt] = loop.attempts
    assert "prefetch_factor=8" in attempt.diff and "another prefetch_factor: " in attempt.reason
    assert loop.confirmed and loop.together.time is not None
    assert loop.together.time.ratio == pytest.approx(0.35, rel=0.05)
    useless = treated(tmp_path, Pretender({"num_workers=2": 0.5}), prefetch_factor=4)
    assert "prefetch_factor=4" in useless.attempts[0].diff
    assert not any(v.best for v in useless.attempts[0].values if v.name == "prefetch_factor")


def test_a_value_that_an_option_sets_is_searched_through_the_option(tmp_path: Path) -> None:
    runner = Pretender({"--workers 4": 0.5})
    loop = treated(tmp_path, runner, ", num_workers=args.workers")
    [attempt] = loop.attempts
    assert (attempt.fate, attempt.arguments) == ("kept", ["--workers", "4"])
    assert "default=0" in (tmp_path / "train.py").read_text() and b"default=" not in loop.setup.edits.patch()


@pytest.mark.parametrize(("command", "count"), [("python train.py", 3), ("bash run.sh", 0), ("./run.sh", 0)])
def test_no_option_is_added_to_what_would_not_pass_it_on(tmp_path: Path, command: str, count: int) -> None:
    made = values(tmp_path, finding(num_workers=2), ", num_workers=args.workers", cores=2)
    [candidate] = candidates(made.plan)[0]
    assert len(replace(made, command=command.split()).of(candidate)) == count


@pytest.mark.parametrize(
    ("cores", "environment", "expected"),
    [(4, {}, ["1", "2"]), (1, {}, []), (4, {"OMP_NUM_THREADS": "3"}, [])],
)
def test_threads_are_searched_on_a_cpu_unless_the_user_sets_them(
    tmp_path: Path, cores: int, environment: dict[str, str], expected: list[str]
) -> None:
    made = values(tmp_path, finding(num_workers=2), cores=cores, **environment)
    [candidate] = candidates(made.plan)[0]
    assert [v.text for v in made.of(candidate, 2)] == expected
    assert all(dict(v.candidate.environment) == {"OMP_NUM_THREADS": v.text} for v in made.of(candidate, 2))


def test_modes_of_the_compiler_are_searched_on_a_gpu(tmp_path: Path) -> None:
    setup = "import torch\nmodel = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(model.parameters())\n"
    step = "for x in data:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"
    (tmp_path / "train.py").write_text(setup + step)
    one = finding("compile-model", mode="reduce-overhead")
    row = TimeLedgerRow(
        rank=0, device=0, phase="steady", steps=1, window_ns=1, compute_ns=1, exposed_comm_ns=0, exposed_copy_ns=0,
        idle_ns=IdleNs(), step_us=1.0,
    )  # fmt: skip
    result = Result(findings=[one], time_ledger=[row])
    made = values_of(result, plan(result, tmp_path, torch_version="2.9"), 4, {}, torch_version="2.9")
    [candidate] = candidates(made.plan)[0]
    lines = {v.text: v.candidate.item.diff.decode() for v in made.of(candidate)}
    assert list(lines) == list(MODES)
    assert "+model.compile()" in lines["default"] and 'mode="max-autotune"' in lines["max-autotune"]
    assert replace(made, result=Result(findings=[one])).of(candidate) == []


def test_threads_of_a_fix_that_sets_them_are_its_values(tmp_path: Path) -> None:
    made = values(tmp_path, finding(None), cores=8)
    [candidate] = candidates(made.plan)[0]
    assert [v.text for v in made.of(candidate)] == ["1", "2", "4", "8"]


@pytest.mark.parametrize(
    ("wanted", "most", "expected"),
    [(2, 4, [1, 2, 4]), (8, 128, [2, 4, 8, 16, 32]), (3, 4, [1, 2, 3, 4]), (1, 1, [1])],
)
def test_values_are_doublings_around_the_predicted_one(wanted: int, most: int, expected: list[int]) -> None:
    assert around(wanted, most) == expected


def test_the_prediction_decides_between_values_that_runs_do_not_tell_apart() -> None:
    def best(predictions: list[float]) -> int | None:
        return Halving(predictions).run(lambda left: dict.fromkeys(left, 0.8), 0.01)

    assert best([0.9, 0.5, 0.9]) == 1
    assert best([0.5, 0.5, 0.5]) == 0  # the smallest of those that are alike


def test_what_is_dropped_is_not_run_again() -> None:
    asked: list[tuple[int, ...]] = []
    ratios = (0.9, 0.5, 0.6, 1.1)

    def measure(left: object) -> dict[int, float]:
        asked.append(tuple(left))  # type: ignore[arg-type]
        return {number: ratios[number] for number in asked[-1]}

    assert Halving([1.0] * 4).run(measure, 0.01) == 1
    assert asked == [(0, 1, 2, 3), (1, 2), (1, 2)]
    asked.clear()
    ratios = (0.9, 0.3, 0.6, 1.1)
    assert Halving([1.0] * 4).run(measure, 0.01) == 1
    assert asked == [(0, 1, 2, 3)]  # the others are far from it


BATCHES = """\
import argparse
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=8)
args = parser.parse_args()
for batch in DataLoader([1], shuffle=True, batch_size=SIZE):
    loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Steps(Pretender):
    """With the steps that a real runner has settled."""

    steps = launching.Steps(10, 40)


def batch_search(folder: Path, runner: Steps, size: str, *command: str) -> tuple[BatchSearch, Loop]:
    (folder / "train.py").write_text(BATCHES.replace("SIZE", size))
    result = Result()
    made = values_of(result, plan(result, folder), 2, {}, ["python", "train.py", *command])
    loop = Loop(runner, RULES, Clock(1e9), Setup(made.plan))
    found = BatchSearch()
    found.run(loop, made, runner, lambda line: None)  # type: ignore[arg-type]
    return found, loop


def test_a_batch_size_is_judged_by_samples_per_second_and_has_a_patch_of_its_own(tmp_path: Path) -> None:
    """Twice the batch takes 1.2 times as long, four times the batch four times."""
    runner = Steps({"batch_size=16": 1.2, "batch_size=32": 4.0}, fails="batch_size=64", scatter=0.0)
    found, loop = batch_search(tmp_path, runner, "8")
    [attempt] = found.attempts
    assert (attempt.fate, attempt.samples, attempt.effects.losses) == ("kept", 2.0, None)
    assert attempt.effects.time is not None and attempt.effects.time.ratio == pytest.approx(0.6, rel=0.02)
    assert [(v.value, v.best, bool(v.failure)) for v in attempt.values] == [
        ("2", True, False),
        ("4", False, False),
        ("8", False, True),
    ]
    assert b"batch_size=16" in found.patch and found.patch.startswith(b"# unsafe: BATCH")
    assert loop.setup.fixes == () and runner.steps == Steps.steps
    shown = verdict(Treatment(code=0, verdict="", method=METHOD, batch=found.attempts))
    assert shown.code == 0
    assert (
        shown.verdict
        == "no finding has a fix to try; Increase the batch size 2×: 1.67× the samples per second"
    )
    assert "1.67× the samples per second" in page.render(shown, Options())


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ((), ["--batch-size", "16"]),
        (("-b", "64"), ["--batch-size", "128"]),
        (("-b64",), ["--batch-size", "128"]),
        (("--batch=64",), ["--batch-size", "128"]),
    ],
)
def test_a_batch_size_that_the_command_passes_is_what_is_multiplied(
    tmp_path: Path, command: tuple[str, ...], arguments: list[str]
) -> None:
    runner = Steps(
        {" ".join(arguments): 1.0, f"{2 * int(arguments[1])}": 8.0, f"{4 * int(arguments[1])}": 16.0}
    )
    found, _ = batch_search(tmp_path, runner, "args.batch_size", *command)
    assert [(a.fate, a.arguments) for a in found.attempts] == [("kept", arguments)]
    assert found.patch == b""


def test_where_no_larger_batch_helps_accumulation_is_searched(tmp_path: Path) -> None:
    runner = Steps({"batch_size=16": 2.0, "batch_size=32": 4.0, "batch_size=64": 8.0, "batch_size=4": 0.9})
    found, _ = batch_search(tmp_path, runner, "8")
    assert [(a.label, a.fate, a.samples) for a in found.attempts] == [
        ("BATCH.1", "rejected", None),
        ("BATCH.2", "kept", 1.0),
    ]
    assert b"batch_size=4" in found.patch and b"% 2 == 0" in found.patch


def test_a_batch_size_that_is_not_found_is_said(tmp_path: Path) -> None:
    found, _ = batch_search(tmp_path, Steps({}), "size()")
    assert found.attempts == [] and "--search-batch" in found.notes[0]


def test_the_same_fix_of_another_finding_is_not_searched_again(tmp_path: Path) -> None:
    """Its best value was put on trial and rejected there: the losses, say."""
    made = values(tmp_path, finding(num_workers=2), OMP_NUM_THREADS="1")
    [first] = candidates(made.plan)[0]
    twin = replace(first, item=replace(first.item, finding=replace_struct(first.item.finding, id="TD103-1")))
    runner = Pretender({"num_workers=4": 0.5})
    rules = replace(RULES, without_losses=False)  # no loss is seen: nothing is kept
    loop = Loop(runner, rules, Clock(1e9), Setup(made.plan), values_of=made.of)
    loop.run([first, twin])
    assert [a.fate for a in loop.attempts] == ["rejected", "not_tried"]
    assert "the same edit as TD101-1" in loop.attempts[1].reason
