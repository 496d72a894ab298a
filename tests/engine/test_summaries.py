"""Rules over several ranks see summaries alone: written out and read again, these give the same findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from read_captures import read_captures

from trace_doctor.config import defaults
from trace_doctor.engine import Sizes, conclude, examine, judge, merged_findings, summary_kinds
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed.summary_format import decode, encode
from trace_doctor.evidence.rank_summary import RankSummary
from trace_doctor.model import Result
from trace_doctor.recording.folder import RankRecord
from trace_doctor.registry import all_rules
from trace_doctor.rule import Rule
from trace_doctor.testing import Invalid, RunBuilder, captures_of

RULES = [rule() for rule in all_rules()]
OVER_RANKS = [rule for rule in RULES if rule.over_ranks()]
JOBS = (
    "astra-sim_astra-sim/*megatron_kineto_*.json",
    "facebookresearch_param/dlrm_kineto_worker*",
    "facebookresearch_HolisticTraceAnalysis/*",
    "AMD-AGI_TraceLens/*",
    "pytorch_kineto/*",
)
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def _again(summary: RankSummary) -> RankSummary:
    return decode(encode(summary), summary_kinds(RULES) if summary.evidence else ())


def _results(everything: list[Facts], rules: Sequence[Rule] = RULES) -> list[Result]:
    """From the summaries as they are, and from the same written out and read again."""
    examinations = [
        examine(facts, rules, Sizes.among(len(everything), len(everything))) for facts in everything
    ]
    read = [
        replace(e, summary=_again(e.summary), further=tuple(map(_again, e.further))) for e in examinations
    ]
    results = []
    for each in (examinations, read):
        complete = judge(each, rules)
        merged = merged_findings(complete, defaults())
        results.append(
            conclude(complete, merged, [[]] * len(complete), [[]] * len(complete), rules, defaults())
        )
    return results


def test_rules_over_several_ranks_are_those_that_say_so() -> None:
    assert {rule.code for rule in OVER_RANKS} == {
        "TD005",
        "TD601",
        "TD602",
        "TD606",
        "TD607",
        "TD608",
        "TD708",
    }


@pytest.mark.parametrize(
    ("rule", "case"),
    [(rule, case) for rule in OVER_RANKS for case in rule.INVALID],
    ids=lambda v: getattr(v, "name", None),
)
def test_cases_say_the_same_of_summaries_that_were_kept(rule: Rule, case: Invalid) -> None:
    rules = [type(r)(**case.thresholds) if r is rule else r for r in RULES]
    now, kept = _results([Facts(c) for c in captures_of(case.build())], rules)
    assert rule.code in {f.code for f in now.findings}
    assert kept == now


@pytest.mark.parametrize("pattern", JOBS)
def test_real_jobs_say_the_same_of_summaries_that_were_kept(captures_dir: Path, pattern: str) -> None:
    captures, _ = read_captures(sorted((captures_dir / "traces").glob(pattern)))
    now, kept = _results([Facts(capture) for capture in captures])
    assert len(now.inputs) > 1
    assert kept == now


@pytest.mark.parametrize("side", ["fault", "healthy"])
def test_a_recorded_job_says_the_same_of_summaries_that_were_kept(side: str) -> None:
    captures, _ = read_captures([SAMPLES / "straggler" / "cpu" / side])
    now, kept = _results([Facts(capture) for capture in captures])
    assert now.ranks.read == [0, 1]
    assert kept == now


def test_how_many_ranks_there_are_says_the_trace_before_the_recording() -> None:
    [traced] = captures_of(RunBuilder(rank=0, world_size=2))
    [untold] = captures_of(RunBuilder())
    record = RankRecord(0, world_size=4)
    assert [RankSummary.of(Facts(replace(c, record=record)), ()).world for c in (traced, untold)] == [2, 4]
    empty = RankSummary.of(Facts(untold), ())
    assert (empty.world, empty.begin, empty.end) == (None, None, None)
