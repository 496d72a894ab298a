"""What rules over several ranks see of each of them: its summary, and the ranks of one job side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Self, TypeVar

from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts


class Refusal(Struct, frozen=True):
    """Why a capture cannot tell, and how to record it."""

    reason: str
    capture: str | None


class RankSummary(Struct, frozen=True):
    """All that rules over several ranks, and the result, know of one rank: evidence by the name of its class. Nothing of
    it refers to the capture, so that it can be made elsewhere and kept (`distributed.summary_format`)."""

    rank: int
    path: str
    world: int | None
    """ranks of the job, where the capture names it"""
    begin: int | None
    """first event of the trace, ns on the clock of its file; None without one"""
    end: int | None
    waited_for_cpu: float | None
    """share of its time in which the training could have run and did not, where a recording says so"""
    evidence: Mapping[str, Evidence | Refusal]
    dump: tuple[int, int] | None = None
    """first call in its flight recorder dump and when this was written, ns since the epoch; None without one"""
    coarse: tuple[str, ...] = ()
    """what of it is less exact than the capture, so that it fits where it is kept"""

    @classmethod
    def of(cls, facts: Facts, kinds: Iterable[type[Evidence]]) -> Self:
        """The summary of a capture, with these kinds of evidence."""
        run, record, flight = facts.capture.run, facts.capture.record, facts.capture.flight
        world = run.meta.get("distributedInfo", {}).get("world_size") if run is not None else None
        world = world or (record.world_size if record is not None else None)
        timed = run if run is not None and len(run) else None
        return cls(
            rank=facts.rank,
            path=facts.capture.path,
            world=world if world is not None and world > 0 else None,
            begin=int(timed.ts[0]) if timed is not None else None,
            end=int(timed.end.max()) if timed is not None else None,
            waited_for_cpu=record.waited_for_cpu if record is not None else None,
            dump=(flight.span_ns or (0, flight.written_ns)) if flight is not None else None,
            evidence={kind.__name__: _built(facts, kind) for kind in kinds},
        )

    def __getitem__(self, kind: type[E]) -> E:
        evidence = self.evidence[kind.__name__]
        if isinstance(evidence, Refusal):
            raise NotCaptured(evidence.reason, evidence.capture)
        assert isinstance(evidence, kind)
        return evidence

    def get(self, kind: type[E]) -> E | None:
        """The evidence, or None where it was not captured."""
        evidence = self.evidence[kind.__name__]
        return evidence if isinstance(evidence, kind) else None


def _built(facts: Facts, kind: type[Evidence]) -> Evidence | Refusal:
    try:
        return facts[kind]
    except NotCaptured as missing:
        return Refusal(missing.reason, missing.capture)


Limits = Mapping[type[Struct], Struct]
"""thresholds by the struct that has them"""


class JobEvidence(Struct, frozen=True, dict=True):
    """Base of what the ranks of a job show together."""

    of_each: ClassVar[tuple[type[Evidence], ...]] = ()
    """what it is made of, of each rank"""
    of_dumps: ClassVar[bool] = False
    """whether the ranks are those whose flight recorders were dumped at the same time, not those traced at the same time"""

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        """Derives it from the ranks of one job, in their order. Raises NotCaptured where they cannot tell."""
        raise NotImplementedError

    @classmethod
    def build_with(cls, ranks: Sequence[RankSummary], limits: Limits) -> Self:
        """As `build`, for evidence that holds a verdict: with the thresholds that rules set for it."""
        return cls.build(ranks)


E = TypeVar("E", bound=Evidence)
J = TypeVar("J", bound=JobEvidence)
A = TypeVar("A", bound=Evidence | JobEvidence)


class Job:
    """The ranks of one job that were captured at the same time, by rank. A capture on its own is a job of one."""

    def __init__(
        self, ranks: Iterable[RankSummary], *, apart: Sequence[int] = (), limits: Limits | None = None
    ) -> None:
        self.ranks = tuple(sorted(ranks, key=lambda summary: summary.rank))
        self.limits = limits or {}
        self.apart = apart
        """other ranks of its folder that were captured at other times"""
        self._built: dict[type[JobEvidence], JobEvidence | NotCaptured] = {}

    def evidence(self, kind: type[JobEvidence]) -> JobEvidence:
        """Made once for all ranks. Raises NotCaptured."""
        if kind not in self._built:
            try:
                self._refuse_apart()
                self._built[kind] = kind.build_with(self.ranks, self.limits)
            except NotCaptured as missing:
                self._built[kind] = missing
        built = self._built[kind]
        if isinstance(built, NotCaptured):
            raise NotCaptured(built.reason, built.capture)
        return built

    def found(self, kind: type[J]) -> J | None:
        """What was made of it already; None where no rule asked for it, and where it was not captured."""
        built = self._built.get(kind)
        return built if isinstance(built, kind) else None

    def _refuse_apart(self) -> None:
        if len(self.ranks) == 1 and self.apart:
            others = ", ".join(map(str, self.apart[:8])) + " …" * (len(self.apart) > 8)
            raise NotCaptured(
                f"rank {self.ranks[0].rank} was recorded at another time than rank{'s' * (len(self.apart) > 1)} {others}",
                "record the same steps on every rank at the same time",
            )


class RankOfJob:
    """One rank as a rule over several of them sees it: its own summary, and what the job shows."""

    def __init__(
        self, summary: RankSummary, job: Job | None = None, dumped_together: Job | None = None
    ) -> None:
        self.summary = summary
        self.job = job or Job([summary])
        self.dumped_together = dumped_together or Job([summary])
        self.rank = summary.rank

    def __getitem__(self, kind: type[A]) -> A:
        evidence: Evidence | JobEvidence
        if issubclass(kind, JobEvidence):
            evidence = (self.dumped_together if kind.of_dumps else self.job).evidence(kind)
        else:
            evidence = self.summary[kind]
        assert isinstance(evidence, kind)
        return evidence

    def get(self, kind: type[A]) -> A | None:
        """The evidence, or None where it was not captured."""
        try:
            return self[kind]
        except NotCaptured:
            return None


def summarised(kinds: Iterable[type[Evidence | JobEvidence]]) -> tuple[type[Evidence], ...]:
    """The evidence of one capture that these kinds are, or are made of: each once."""
    of_one = [one for kind in kinds for one in (kind.of_each if issubclass(kind, JobEvidence) else (kind,))]
    return tuple(dict.fromkeys(of_one))


def ranks_of_jobs(summaries: Sequence[RankSummary], limits: Limits | None = None) -> list[RankOfJob]:
    """Each summary with those that belong to it, in the order given: traces in one folder, of different ranks, that were
    recorded at the same time. Where a rank has several captures, those that overlap belong together. Dumps of flight recorders
    are put together alike, each from its first call to when it was written, and over folders where each rank has one: each machine
    may have written its own. `limits`: what `JobEvidence.build_with` takes."""
    folders = [summary.path.rpartition("/")[0] for summary in summaries]
    spans = [(s.begin, s.end or 0) if s.begin is not None else None for s in summaries]
    traced = _jobs(summaries, folders, spans, limits)
    with_dump = [s.rank for s in summaries if s.dump is not None]
    one_each = len(set(with_dump)) == len(with_dump)
    places = [""] * len(folders) if one_each else folders
    dumped = _jobs(summaries, places, [s.dump for s in summaries], limits)
    return [RankOfJob(s, traced.get(id(s)), dumped.get(id(s))) for s in summaries]


def _jobs(
    summaries: Sequence[RankSummary],
    places: Sequence[str],
    spans: Sequence[tuple[int, int] | None],
    limits: Limits | None,
) -> dict[int, Job]:
    """The job of each summary that has a span, by its identity: of one place alone."""
    by_place: dict[str, list[tuple[RankSummary, tuple[int, int]]]] = {}
    for summary, place, span in zip(summaries, places, spans, strict=True):
        if span is not None:
            by_place.setdefault(place, []).append((summary, span))
    jobs: dict[int, Job] = {}
    for together in by_place.values():
        waiting = sorted(together, key=lambda each: each[1][0])
        while waiting:
            first, (_, first_end) = waiting[0]
            members = {first.rank: first}
            for summary, (begin, end) in waiting[1:]:
                if summary.rank not in members and begin < first_end:
                    members[summary.rank] = summary
                    first_end = min(first_end, end)
            apart = sorted({s.rank for s, _ in together} - {*members})
            job = Job(members.values(), apart=apart, limits=limits)
            jobs |= {id(summary): job for summary in job.ranks}
            waiting = [each for each in waiting if id(each[0]) not in jobs]
    return jobs
