"""Fixes on trial, one by one: what is kept, what is rejected and why, what an interruption leaves. The script is not run:
a pretender says how long its steps take."""

from __future__ import annotations

import random
import string
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.model import Finding, Fix, Location, Result, Safety, Saving
from trace_doctor.model.treatment import Attempt, ByHand, Method, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.embedded_json import extract
from trace_doctor.reporters.html import treatment
from trace_doctor.reporters.treatment import text as treatment_text
from trace_doctor.reporters.treatment.words import verdict
from trace_doctor.treatment.candidates import Setup, candidates
from trace_doctor.treatment.launching import _last_words, _of_dotenv
from trace_doctor.treatment.loop import Loop, key
from trace_doctor.treatment.measurement import LONG_STEPS, Measured, RunFailed
from trace_doctor.treatment.trial import Clock, Rules

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(3, 3)
loader = DataLoader([1, 2], batch_size=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def make_fix(codemod: str | None, safety: Safety = "unsafe", **params: Any) -> Fix:
    return Fix(
        title=f"do {codemod}",
        kind="patch" if codemod else "advice",
        safety=safety,
        codemod=codemod,
        params=params,
    )


WORKERS = make_fix("dataloader-args", num_workers=2)
PIN = make_fix("dataloader-args", pin_memory=True)
ALLOCATOR = make_fix("allocator-setting", key="expandable_segments", value=True)
FOREACH = make_fix("optimizer-args", foreach=True)
ZERO = make_fix("set-call-args", callee="zero_grad", args={}, remove=["set_to_none"])
ENV = Fix(title="set it", kind="env", safety="unsafe", text="SETTING=on:1 python train.py")


def make_finding(code: str, share: float, *fixes: Fix) -> Finding:
    return Finding(
        id=f"{code}-1", code=code, name=code.lower(), title=code, severity="warning", confidence="high", message="m",
        fingerprint=code, location=Location(), fixes=list(fixes), saving=Saving(share_of_step=share),
    )  # fmt: skip


@dataclass
class Pretender:
    """Step times by the labels of the fixes that are made: 100 ms times their factors, each run a little different."""

    factors: Mapping[str, float]
    peaks: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    fails: frozenset[str] = frozenset()
    noise: tuple[float, ...] = (1.0, 1.004, 0.997, 1.002, 0.999, 1.006, 0.995)
    drift: float = 1.0
    waited_for_cpu: float | None = None
    before_run: Callable[[int], None] = lambda number: None
    runs: list[tuple[str, ...]] = field(default_factory=list)

    def record(self, setup: Setup, name: str) -> Path:
        raise NotImplementedError

    def time(self, setup: Setup) -> Measured:
        labels = tuple(c.label for c in setup.fixes)
        number = len(self.runs)
        self.before_run(number)
        self.runs.append(labels)
        if self.fails & set(labels):
            raise RunFailed("exit code 1: ValueError: no")
        time, loss, peak = 1e5 * self.noise[number % len(self.noise)] * self.drift**number, 1.0, 1e9
        for label in labels:
            time *= self.factors.get(label, 1.0)
            loss *= self.losses.get(label, 1.0)
            peak *= self.peaks.get(label, 1.0)
        steps = {(0, step): time * (5 if step == 7 else 1) for step in range(5, 15)}
        losses = {(0, step): loss / (1 + step) for step in range(15)}
        peak_bytes = int(peak) if self.peaks else None
        return Measured(steps, losses, peak_bytes, waited_for_cpu=self.waited_for_cpu)


RULES = Rules(repeats=6, least_gain=0.01, loss_tolerance=0.02, without_losses=False)


@pytest.fixture
def treated(source: Path) -> Callable[..., tuple[Loop, Pretender]]:
    """Runs the loop over findings with a pretender, and hands back both."""

    def run(
        runner: Pretender, *findings: Finding, max_trials: int | None = None, clock: Clock | None = None,
        rules: Rules = RULES, unsafe: bool = True, decided: Mapping[str, Attempt] | None = None,
        after_each: Callable[[Loop], None] = lambda loop: None,
    ) -> tuple[Loop, Pretender]:  # fmt: skip
        made: Plan = plan(Result(findings=list(findings)), source, unsafe=unsafe, torch_version="2.1")
        loop = Loop(runner, rules, clock or Clock(1e9), Setup(made), decided=decided or {})
        loop.after_each = lambda: after_each(loop)
        with suppress(KeyboardInterrupt):
            loop.run(candidates(made)[0], max_trials)
        return loop, runner

    return run


Run = Callable[..., tuple[Loop, Pretender]]
METHOD = Method(
    warmup_steps=1,
    timed_steps=9,
    figure="median",
    repeats=6,
    alpha=0.05,
    least_gain=0.01,
    loss_tolerance=0.02,
)
THREE = (
    make_finding("TD101", 0.5, WORKERS),
    make_finding("TD102", 0.3, PIN),
    make_finding("TD304", 0.4, FOREACH),
)


def fates(loop: Loop) -> dict[str, str]:
    return {a.label: a.fate for a in loop.attempts}


def test_what_helps_is_kept_on_top_of_what_helped_before(treated: Run) -> None:
    loop, runner = treated(Pretender({"TD101-1": 0.5, "TD304-1": 1.0, "TD102-1": 0.8}), *THREE)
    assert [a.label for a in loop.attempts] == ["TD101-1", "TD304-1", "TD102-1"]  # by what they promise
    assert fates(loop) == {"TD101-1": "kept", "TD304-1": "rejected", "TD102-1": "kept"}
    assert [c.label for c in loop.setup.fixes] == ["TD101-1", "TD102-1"]
    assert ("TD101-1", "TD102-1") in runner.runs and ("TD101-1", "TD304-1") in runner.runs
    assert loop.confirmed
    assert loop.together.time is not None
    assert loop.together.time.ratio == pytest.approx(0.4, rel=0.02)


def test_what_gives_nothing_beside_later_fixes_is_not_in_the_patch(
    treated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ways to take the same waiting time out: the second takes out more, and the first adds nothing to it."""
    time = Pretender.time

    def second_makes_the_first_needless(self: Pretender, setup: Setup) -> Measured:
        labels = {c.label for c in setup.fixes}
        self.factors = {"TD101-1": 1.0, "TD304-1": 0.5} if "TD304-1" in labels else {"TD101-1": 0.8}
        return time(self, setup)

    monkeypatch.setattr(Pretender, "time", second_makes_the_first_needless)
    loop, runner = treated(Pretender({}), *THREE)
    assert fates(loop) == {"TD101-1": "rejected", "TD304-1": "kept", "TD102-1": "rejected"}
    assert "not next to the others: no gain" in loop.attempts[0].reason
    assert [c.label for c in loop.setup.fixes] == ["TD304-1"]
    assert loop.together.time is not None and loop.together.time.ratio == pytest.approx(0.5, rel=0.02)
    assert ("TD304-1",) in runner.runs


def test_a_small_gain_that_a_second_trial_does_not_show_stays_in_the_patch(
    treated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine gets restless once both were kept: 10% on average, in every second pair more than the other way."""
    time = Pretender.time

    def restless_later(self: Pretender, setup: Setup) -> Measured:
        both = sum(len(labels) == 2 for labels in self.runs)
        late = len(setup.fixes) == 2 and both >= RULES.repeats
        self.noise = ((0.8, 1.25)[both % 2],) if late else (1.0,)
        return time(self, setup)

    monkeypatch.setattr(Pretender, "time", restless_later)
    loop, _ = treated(Pretender({"TD101-1": 0.9, "TD304-1": 0.5}), THREE[0], THREE[2])
    assert fates(loop) == {"TD101-1": "kept", "TD304-1": "kept"}


def test_the_patch_holds_what_helped_alone_and_applies(treated: Run, source: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)
    loop, _ = treated(Pretender({"TD101-1": 0.5, "TD102-1": 0.8}), *THREE)
    patch = loop.setup.edits.patch()
    assert b"num_workers=2" in patch and b"pin_memory" in patch and b"foreach" not in patch
    subprocess.run(["git", "apply", "-"], input=patch, cwd=source, check=True)
    assert (source / "train.py").read_bytes() == loop.setup.files()["train.py"]


def test_a_fix_without_effect_is_rejected_soon_and_says_what_would_have_shown(treated: Run) -> None:
    loop, runner = treated(Pretender({}), THREE[0])
    [attempt] = loop.attempts
    assert attempt.fate == "rejected"
    assert "no gain beyond the noise" in attempt.reason and "detection limit" in attempt.reason
    assert len(runner.runs) < 2 * RULES.repeats
    assert loop.setup.fixes == () and loop.confirmed is None


def test_runs_take_turns_so_that_a_drift_is_no_gain(treated: Run) -> None:
    slower_and_slower = Pretender({}, noise=(1.0,), drift=0.9)
    loop, runner = treated(slower_and_slower, THREE[0])
    assert fates(loop) == {"TD101-1": "rejected"}
    assert runner.runs[:4] == [("TD101-1",), (), (), ("TD101-1",)]


def test_a_gain_within_what_runs_differ_by_is_not_believed(treated: Run) -> None:
    restless = Pretender({"TD101-1": 0.97}, noise=(1.0, 1.3, 0.8, 1.1, 1.2, 0.9, 0.7))
    loop, _ = treated(restless, THREE[0])
    assert fates(loop) == {"TD101-1": "rejected"}


def test_one_long_step_does_not_decide(treated: Run) -> None:
    """The pretender's runs all have one step of five times the length: a median does not see it."""
    loop, _ = treated(Pretender({"TD101-1": 0.9}), THREE[0])
    [attempt] = loop.attempts
    assert attempt.effects.time is not None
    assert attempt.effects.time.before == pytest.approx(1e5, rel=0.01)


def test_the_reason_names_what_is_slower(treated: Run) -> None:
    loop, _ = treated(Pretender({"TD101-1": 1.5}), THREE[0])
    assert loop.attempts[0].fate == "rejected"


@pytest.mark.parametrize(("factor", "fate"), [(1.001, "kept"), (1.2, "rejected")])
def test_losses_must_agree(treated: Run, factor: float, fate: str) -> None:
    finding = make_finding("TD102", 0.5, PIN)
    loop, runner = treated(Pretender({"TD102-1": 0.5}, losses={"TD102-1": factor}), finding)
    assert fates(loop) == {"TD102-1": fate}
    if fate == "rejected":
        assert "losses differ" in loop.attempts[0].reason
        assert len(runner.runs) < 2 * RULES.repeats  # a fast wrong script is not measured to the end


def test_where_no_loss_is_seen_an_unsafe_fix_is_kept_only_if_that_was_asked_for(
    treated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Pretender.time
    monkeypatch.setattr(Pretender, "time", lambda self, setup: replace(time(self, setup), losses={}))
    runner = {"TD101-1": 0.5, "TD102-1": 0.5}
    loop, _ = treated(Pretender(runner), THREE[0])
    assert fates(loop) == {"TD101-1": "rejected"}
    assert "--without-losses" in loop.attempts[0].reason
    loop, _ = treated(Pretender(runner), *THREE[:2], rules=replace(RULES, without_losses=True))
    assert set(fates(loop).values()) == {"kept"}


def test_a_run_that_fails_rejects_the_fix_with_what_the_script_said(treated: Run) -> None:
    loop, runner = treated(Pretender({"TD304-1": 0.5}, fails=frozenset(["TD101-1"])), *THREE)
    assert fates(loop)["TD101-1"] == "rejected" and fates(loop)["TD304-1"] == "kept"
    assert "ValueError: no" in loop.attempts[0].reason
    assert sum("TD101-1" in run for run in runner.runs) == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Traceback\n  File 'x'\nmy.DataError: no data\n", "my.DataError: no data"),
        ("no exception, then\nthe last line\n=====\n", "the last line"),
        (
            "[rank0]: FileNotFoundError: no data\n[rank1]: RuntimeError: lost rank 0\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===\nexitcode  : 1\n===\n",
            "FileNotFoundError: no data",
        ),
    ],
)
def test_of_what_a_failed_script_said_the_failure_is_told(tmp_path: Path, said: str, shown: str) -> None:
    (tmp_path / "log").write_text(said)
    assert _last_words(tmp_path / "log", ["train.py"], {}) == f": {shown}"


@pytest.mark.parametrize(
    "dotenv",
    [
        b"# mine\nexport API_KEY='Kf83hVzQp2'\nBATCH=32\n",
        b"\xef\xbb\xbfAPI_KEY=Kf83hVzQp2\n",
        b"# mine\rAPI_KEY=Kf83hVzQp2\rBATCH=32\r",
        b"NAME=Ren\xe9\nAPI_KEY=Kf83hVzQp2\n",
        "API_KEY=Kf83hVzQp2\n".encode("utf-16"),
        b"# " + b"x" * 100_000 + b"\nAPI_KEY=Kf83hVzQp2\n",
        b"OTHER=Kf83hVzQp2\nAPI_KEY=${OTHER}\n",
    ],
    ids=["plain", "BOM", "CR", "latin-1", "UTF-16", "long", "of another"],
)
def test_secrets_of_a_dotenv_are_hidden_in_the_last_line(tmp_path: Path, dotenv: bytes) -> None:
    (tmp_path / ".env").write_bytes(dotenv)
    (tmp_path / ".env.local").write_bytes(b"\xff")
    (tmp_path / "log").write_text("ValueError: refused Kf83hVzQp2 at batch 32\n")
    said = _last_words(tmp_path / "log", ["train.py"], _of_dotenv(tmp_path))
    assert said == ": ValueError: refused *** at batch 32"


def test_a_dotenv_that_is_not_read_whole_hides_nothing_and_is_none_at_all(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()  # as some call a virtual environment
    assert _of_dotenv(tmp_path) == {}
    with (tmp_path / ".env.prod").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(OSError, match="larger than"):
        _of_dotenv(tmp_path)


def test_secrets_are_hidden_before_the_last_line_is_cut(tmp_path: Path) -> None:
    secret = "".join(random.Random(1).choices(string.ascii_letters, k=40))
    for length in range(140, 200):
        (tmp_path / "log").write_text(f"DataError: {'- ' * (length // 2)}{secret}\n")
        said = _last_words(tmp_path / "log", ["train.py", "--token", secret], {})
        assert len(said) <= 202 and secret[:2] not in said, said


def test_where_nothing_shows_a_busy_machine_is_named(treated: Run) -> None:
    for waited in (0.4, 0.01):
        loop, _ = treated(Pretender({}, waited_for_cpu=waited), THREE[0])
        assert ("waited 40% of the time for a CPU" in loop.attempts[0].reason) == (waited == 0.4)


def test_less_memory_at_the_same_pace_is_kept_and_a_trade_is_not(treated: Run) -> None:
    loop, _ = treated(Pretender({}, peaks={"TD101-1": 0.7}), THREE[0])
    assert fates(loop) == {"TD101-1": "kept"}
    assert "less memory" in loop.attempts[0].reason
    loop, _ = treated(Pretender({"TD101-1": 1.3}, peaks={"TD101-1": 0.7}), THREE[0])
    assert fates(loop) == {"TD101-1": "rejected"}
    assert "trade" in loop.attempts[0].reason


def test_what_was_decided_before_is_not_tried_again(treated: Run) -> None:
    """Interrupted in the third trial: the next treatment goes on there, and combines what helped in both."""
    factors = {"TD101-1": 0.5, "TD304-1": 1.0, "TD102-1": 0.7}
    first, _ = treated(Pretender(factors), *THREE, max_trials=2)
    assert fates(first) == {"TD101-1": "kept", "TD304-1": "rejected", "TD102-1": "not_tried"}
    renumbered = [msgspec.structs.replace(f, id=f.id.replace("-1", "-7")) for f in THREE]
    decided = {key(a): a for a in first.attempts if a.fate != "not_tried"}
    pretender = Pretender({k.replace("-1", "-7"): v for k, v in factors.items()})
    second, runs = treated(pretender, *renumbered, decided=decided)
    assert fates(second) == {"TD101-7": "kept", "TD304-7": "rejected", "TD102-7": "kept"}
    assert second.attempts[0].effects == first.attempts[0].effects
    assert runs.runs[0] in (("TD101-7", "TD102-7"), ("TD101-7",)), "the first run is of the third fix"
    assert second.confirmed
    other = [msgspec.structs.replace(f, fixes=[PIN]) for f in THREE]  # another edit was not tried yet
    assert fates(treated(pretender, *other, decided=decided)[0]) != fates(second)


def test_what_is_decided_is_handed_on_while_the_rest_is_tried(treated: Run) -> None:
    """So that it can be kept where a kill does not reach."""
    seen: list[tuple[dict[str, str], bool]] = []

    def look(loop: Loop) -> None:
        seen.append((fates(loop), b"num_workers" in loop.setup.edits.patch()))

    treated(Pretender({"TD101-1": 0.5}), *THREE, after_each=look)
    assert seen[0] == ({"TD101-1": "kept"}, True)
    assert [len(each) for each, _ in seen] == [1, 2, 3]


def test_an_interruption_keeps_what_was_known(treated: Run) -> None:
    def interrupt(number: int) -> None:
        if number == 14:  # in the second trial
            raise KeyboardInterrupt

    loop, _ = treated(Pretender({"TD101-1": 0.5}, before_run=interrupt), *THREE)
    assert fates(loop) == {"TD101-1": "kept", "TD304-1": "not_tried"}
    assert "interrupted" in loop.attempts[1].reason
    assert b"num_workers" in loop.setup.edits.patch()


def test_budgets_end_it_with_what_is_known(treated: Run) -> None:
    runner = {"TD101-1": 0.5, "TD304-1": 0.5, "TD102-1": 0.5}
    loop, _ = treated(Pretender(runner), *THREE, max_trials=1)
    assert fates(loop) == {"TD101-1": "kept", "TD304-1": "not_tried", "TD102-1": "not_tried"}
    ticks = iter(range(10_000))
    loop, _ = treated(Pretender(runner), *THREE, clock=Clock(45.0, now=lambda: float(next(ticks))))
    assert fates(loop)["TD101-1"] == "kept" and "--max-minutes" in loop.attempts[-1].reason


def test_a_run_that_the_time_limit_cuts_short_has_not_failed(treated: Run) -> None:
    seconds = 0.0

    def cut_short(number: int) -> None:
        nonlocal seconds
        if number == 14:  # in the second trial
            seconds = 40.0
            raise RunFailed("no step in 30 s, then it was stopped")

    pretender = Pretender({"TD101-1": 0.5, "TD304-1": 0.5}, before_run=cut_short)
    loop, _ = treated(pretender, *THREE, clock=Clock(30.0, now=lambda: seconds))
    assert fates(loop) == {"TD101-1": "kept", "TD304-1": "not_tried", "TD102-1": "not_tried"}
    assert "--max-minutes" in loop.attempts[1].reason


def test_the_second_of_two_edits_at_odds_is_tried_only_if_the_first_did_not_help(treated: Run) -> None:
    findings = (
        make_finding("TD101", 0.5, make_fix("dataloader-args", num_workers=2)),
        make_finding("TD102", 0.3, make_fix("dataloader-args", num_workers=4)),
    )
    loop, _ = treated(Pretender({"TD101-1": 0.5}), *findings)
    assert fates(loop) == {"TD101-1": "kept", "TD102-1": "not_tried"}
    loop, _ = treated(Pretender({"TD102-1": 0.5}), *findings)
    assert fates(loop) == {"TD101-1": "rejected", "TD102-1": "kept"}


def test_the_same_edit_is_not_tried_twice(treated: Run) -> None:
    loop, _ = treated(Pretender({}), make_finding("TD101", 0.5, WORKERS), make_finding("TD103", 0.4, WORKERS))
    assert fates(loop) == {"TD101-1": "rejected", "TD103-1": "not_tried"}
    assert "TD101-1, which was rejected" in loop.attempts[1].reason


def test_variables_are_tried_where_no_edit_does_the_same(treated: Run) -> None:
    loop, _ = treated(Pretender({"TD402-1": 0.5}), make_finding("TD402", 0.2, ENV))
    assert loop.setup.environment == {"SETTING": "on:1"} and loop.setup.edits.patch() == b""
    made = Treatment(
        code=0, verdict="", method=METHOD, attempts=loop.attempts, environment=loop.setup.environment
    )
    for shown in (treatment_text.render(made, Options(width=80)), treatment.render(made, Options())):
        assert "tart the command with SETTING=on:1" in shown
    loop, _ = treated(Pretender({}), make_finding("TD402", 0.2, PIN, ENV))
    assert list(fates(loop)) == ["TD402-1.1"]


def test_what_is_unsafe_or_changes_the_work_or_is_advice_is_left_to_the_person(source: Path) -> None:
    more = make_fix("gradient-accumulation", steps=4)
    findings = [
        make_finding("TD101", 0.5, WORKERS),
        make_finding("TD308", 0.4, more),
        make_finding("TD204", 0.1, make_fix(None)),
    ]
    queue, left = candidates(plan(Result(findings=findings), source, unsafe=False, torch_version="2.1"))
    assert queue == []
    assert {b.label: b.why.split(":")[0] for b in left}["TD101-1"] == "unsafe"
    queue, left = candidates(plan(Result(findings=findings), source, torch_version="2.1"))
    assert [c.label for c in queue] == ["TD101-1"]
    assert {b.label for b in left} == {"TD308-1", "TD204-1"}


def test_one_figure_a_run_and_the_mean_where_the_time_lies_in_few_long_steps() -> None:
    steady = {(0, n): 100.0 for n in range(40)}
    compiles = {**steady, (0, 20): 4000.0}
    waits = {**compiles, **{(1, n): 150.0 for n in range(40)}}
    assert Measured(compiles).time_us() == 100.0 and Measured(waits).time_us() == 150.0
    assert Measured(steady).in_long_steps() == 0.0 and Measured(compiles).in_long_steps() > LONG_STEPS
    assert Measured(compiles, by="mean").time_us() == pytest.approx(197.5)


def test_the_verdict_says_what_helped_and_what_the_exit_code_is(treated: Run) -> None:
    helped, _ = treated(Pretender({"TD101-1": 0.5, "TD102-1": 0.8}), *THREE)
    made = Treatment(code=0, verdict="", method=METHOD, attempts=helped.attempts, together=helped.together)
    assert verdict(made).code == 0
    assert "TD101-1, TD102-1" in verdict(made).verdict and "59.8" in verdict(made).verdict
    assert verdict(replace_struct(made, confirmed=False)).code == 1
    assert verdict(made, 143).code == 143 and "interrupted" in verdict(made, 143).verdict
    useless, _ = treated(Pretender({}), *THREE)
    assert verdict(replace_struct(made, attempts=useless.attempts)).code == 1
    assert verdict(replace_struct(made, attempts=[])).code == 0
    held = [ByHand(label="TD101-1", fix="f", why="unsafe: needs --unsafe-fixes")]
    assert "1 fix with --unsafe-fixes" in verdict(replace_struct(made, attempts=[], by_hand=held)).verdict


@pytest.mark.parametrize("ascii", [False, True])
def test_the_table_fits_the_terminal_and_the_page_holds_the_result(treated: Run, ascii: bool) -> None:
    loop, _ = treated(
        Pretender({"TD101-1": 0.5}, fails=frozenset(["TD304-1"]), peaks={"TD101-1": 0.9}), *THREE
    )
    made = verdict(
        Treatment(code=0, verdict="", method=METHOD, attempts=loop.attempts, together=loop.together)
    )
    shown = treatment_text.render(made, Options(width=80, ascii=ascii))
    assert max(map(len, shown.splitlines())) <= 80 and shown.isascii() == ascii
    for said in ("kept", "rejected", "TD101-1", "ValueError: no", "100 ms", made.verdict):
        assert said in " ".join(shown.split())
    assert extract(treatment.render(made, Options())) == made.to_json()
    assert Treatment.from_json(made.to_json()) == made
