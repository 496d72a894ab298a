"""What each tool answers. The words are those of the reports; nothing is written, and nothing of a capture or a script runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trace_doctor.api import analyze, diff, load, verify
from trace_doctor.errors import UsageError
from trace_doctor.loaders.discover import discover
from trace_doctor.mcp_server import answers as a
from trace_doctor.mcp_server.roots import Roots
from trace_doctor.model import Finding, Result
from trace_doctor.registry import resolve
from trace_doctor.reporters import Options
from trace_doctor.reporters.agent import finding_texts, moments_input, not_captured
from trace_doctor.reporters.diagnosis import headline
from trace_doctor.reporters.difference import render as difference_text
from trace_doctor.reporters.fix_labels import fix_words, is_patch, why_no_patch
from trace_doctor.reporters.labels import Names, facts
from trace_doctor.reporters.units import Scale
from trace_doctor.reporters.verification import render as verification_text
from trace_doctor.run import Cat, Run

_MOST_RESULTS = 4
"""diagnoses that are kept: agents ask again and again about one"""
_MOST_CAPTURES, _MOST_ROWS, _MOST_EVENTS = 500, 10, 40
_LAST_US = 9e15
"""µs that the columns hold as ns: clocks that count from the epoch are at 1.8e15"""


class Tools:
    """The tools over the folders of one server."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self._results: dict[object, Result] = {}

    # -------------------------------------------------------------------------------------------- the diagnosis

    def list_captures(self, path: str = ".") -> a.Captures:
        """Traces and memory snapshots that can be diagnosed. Call this first."""
        folders = [self.roots.inside(path)] if path != "." else self.roots.folders
        rows: list[a.CaptureRow] = []
        unread: list[str] = []
        for folder in folders:
            real = self.roots.inside(str(folder))
            found = discover([real], strict=False)
            rows += [
                a.CaptureRow(path=self.roots.shown(f.path), kind=f.kind, rank=f.rank if f.rank_how else None)
                for f in found.found
            ]
            unread += [f"{i.display}: {i.reason}" for i in found.ignored if i.unread]
        more = {"captures": len(rows) - _MOST_CAPTURES} if len(rows) > _MOST_CAPTURES else {}
        return a.Captures(
            roots=[str(folder) for folder in self.roots.folders],
            captures=rows[:_MOST_CAPTURES],
            not_captured=unread,
            left_out=more,
            next="diagnose(path) of a file, or of a folder with all ranks of one run; list_captures(path) of a folder for less"
            if rows
            else "record a run: trace-doctor record -- python train.py",
        )

    def diagnose(self, path: str, source: str = "") -> a.Diagnosis:
        """Why training is slow or runs out of memory: verdict, findings with place and saving, and what was not captured."""
        result = self._result(path, source)
        names = Names(result)
        rows = [_row(f, names) for f in result.findings]
        return a.Diagnosis(
            verdict=result.summary.verdict or headline(result),
            facts=facts(result),
            findings=rows,
            not_captured=not_captured(result),
            next=f'finding(path, "{rows[0].id}") for its evidence and fixes'
            if rows
            else _without_finding(result),
        )

    def finding(self, path: str, id: str, source: str = "") -> a.FindingDetail:
        """Evidence, moments and fixes of one finding."""
        result = self._result(path, source)
        found = _find(result, id)
        first = next((f for f in found.fixes if is_patch(f)), None)
        return a.FindingDetail(
            finding=_row(found, Names(result)),
            saving_how=found.saving.how if found.saving else "",
            evidence=[_table(found, n) for n in range(min(len(found.evidence), 2))],
            moments=[a.Moment(start_us=s.ts_us, dur_us=s.dur_us, label=s.label) for s in found.spans[:3]],
            fixes=[
                a.FixRow(
                    title=f.title,
                    kind=fix_words(f),
                    text="" if is_patch(f) else f.text,
                    risk=f.risk,
                    no_patch=why_no_patch(f),
                )
                for f in found.fixes[:3]
            ],
            not_captured=not_captured(result, rules=False),
            left_out={"fixes": len(found.fixes) - 3} if len(found.fixes) > 3 else {},
            next=f'patch(path, source, "{id}") shows the diff'
            if first
            else "patch(path, source) looks for the code in the script"
            if not source and found.fixes
            else f'explain_rule("{found.code}") says what else helps',
        )

    def explain_rule(self, code: str) -> a.RuleText:
        """What a rule checks, why it matters, its thresholds and fixes."""
        rule, *others = resolve(code)
        if others:
            raise UsageError("code is that of one rule, such as TD101; diagnose(path) names those that fired")
        limits = [f"{n} = {t.default} {t.unit}: {t.description}" for n, t in rule.known_thresholds.items()]
        return a.RuleText(
            code=rule.code,
            name=rule.name,
            title=rule.title,
            sections=rule.sections(),
            thresholds=limits,
            next=f'diagnose(path), then finding(path, "{rule.code}-1") where it fired',
        )

    # -------------------------------------------------------------------------------------------- a closer look

    def timeline(
        self,
        path: str,
        id: str = "",
        start_us: float | None = None,
        dur_us: float = 10_000.0,
        rank: int | None = None,
    ) -> a.Window:
        """The longest events in a window of one trace: of a finding's first moment, or of start_us and dur_us."""
        shown = None
        if id:
            found = _find(result := self._result(path, ""), id)
            if not found.spans:
                raise UsageError(f"{id} names no moment; give start_us and dur_us")
            start_us, dur_us = found.spans[0].ts_us, found.spans[0].dur_us
            shown = moments_input(result, found)
        run = self._trace(path, shown, rank)
        base = run.base_ns
        if start_us is None:
            span = run.span_ns
            start_us = 0.0 if span is None else (span[0] - base) / 1000.0
        if not (
            np.isfinite(start_us)
            and np.isfinite(dur_us)
            and 0 < dur_us < _LAST_US
            and abs(start_us) < _LAST_US
        ):
            raise UsageError("start_us and dur_us are microseconds, dur_us above 0")
        first = base + round(start_us * 1000)
        last = first + max(round(dur_us * 1000), 1)
        rows = np.flatnonzero((run.ts < last) & (run.end > first) & run.own)
        longest = rows[np.argsort(-run.dur[rows], kind="stable")[:_MOST_EVENTS]]
        events = [_event(run, int(r)) for r in longest]
        return a.Window(
            capture=run.path,
            start_us=start_us,
            dur_us=dur_us,
            events_in_window=len(rows),
            events=events,
            left_out={"events": len(rows) - len(events)} if len(rows) > len(events) else {},
            not_captured=[]
            if len(rows)
            else ["no event in this window: nothing was recorded there, or nothing ran"],
            next="a shorter dur_us shows smaller events"
            if len(rows)
            else "timeline(path) begins with the first event",
        )

    def kernels(self, path: str, contains: str = "", rank: int | None = None) -> a.Kernels:
        """GPU kernels by total time."""
        result = self._result(path, "")
        names = Names(result)
        rows = [
            k
            for k in result.kernels
            if contains.lower() in k.name.lower() and (rank is None or k.rank == rank)
        ]
        rows.sort(key=lambda k: -k.total_us)
        none = _none_of(
            rank, {k.rank for k in result.kernels}, "kernel", "nothing is known of the GPU's work"
        )
        return a.Kernels(
            kernels=[
                a.KernelUse(
                    name=k.name,
                    kind=k.kind,
                    where=names.place(k),
                    count=k.count,
                    total_us=k.total_us,
                    share_of_compute=round(k.share, 4),
                )
                for k in rows[:50]
            ],
            left_out={"kernels": len(rows) - 50} if len(rows) > 50 else {},
            not_captured=[*none, *not_captured(result, rules=False)],
            next="diagnose(path) says which of them a fix makes faster"
            if rows
            else "kernels(path) lists all that were recorded"
            if result.kernels
            else "trace-doctor capture says how to record them",
        )

    def memory_at(self, path: str, at: float | None = None, rank: int | None = None) -> a.Memory:
        """Memory by category at a moment of what was recorded, without one at the peak."""
        if at is not None and not np.isfinite(at):
            raise UsageError("at is a number: a position as an earlier answer has it")
        result = self._result(path, "")
        names = Names(result)
        series = [s for s in result.memory_timeline if s.at and (rank is None or s.rank == rank)]
        devices, outside = [], []
        for s in series:
            if at is not None and not s.at[0] <= at <= s.at[-1]:
                span = f"{s.at[0]:.0f} to {s.at[-1]:.0f} {s.unit}"
                outside.append(f"{names.place(s)}: only {span} was recorded, nothing is known of {at:g}")
                continue
            n = s.peak_index if at is None else max(int(np.searchsorted(s.at, at, side="right")) - 1, 0)
            ledger = next(
                (m for m in result.memory_ledger if (m.input, m.device) == (s.input, s.device)), None
            )
            parts = {k: v[n] for k, v in s.live_by_category.items() if v[n]}
            frames = ledger.by_frame[:5] if ledger is not None and at is None else []
            devices.append(
                a.MemoryUse(
                    where=names.place(s),
                    at=s.at[n],
                    recorded=[s.at[0], s.at[-1]],
                    unit=s.unit,
                    allocated_bytes=sum(parts.values()),
                    reserved_bytes=s.reserved[n],
                    by_category=parts,
                    by_frame=[f"{f}: {b} bytes" for f, b in frames],
                )
            )
        recorded = {s.rank for s in result.memory_timeline if s.at}
        none = _none_of(rank, recorded, "allocation", "memory over time is not known")
        return a.Memory(
            devices=devices,
            not_captured=[*none, *outside, *not_captured(result, rules=False)],
            next="diagnose(path) names what can be freed"
            if devices
            else "memory_at(path) is the peak"
            if recorded
            else "record a snapshot: trace-doctor record -- python train.py",
        )

    # -------------------------------------------------------------------------------------------- the fix

    def patch(self, path: str, source: str = "", id: str = "") -> a.Patches:
        """The diff for one finding or all, for the script in source. It is never applied."""
        if not source:
            raise UsageError("patch needs source, the folder or file of the training script")
        result = self._result(path, source)
        chosen = [_find(result, id)] if id else result.findings
        patches, without = [], []
        for found in chosen:
            fixes = [f for f in found.fixes if is_patch(f)]
            if not fixes:
                reasons = [r for f in found.fixes if (r := why_no_patch(f))]
                without.append(
                    f"{found.id}: {reasons[0] if reasons else 'no edit was made; finding(path, id) names its fixes'}"
                )
            patches += [
                a.PatchRow(finding=found.id, title=f.title, diff=f.diff or "", left_out=f.left_out)
                for f in fixes[:1]
            ]
        return a.Patches(
            applied=False,
            patches=patches,
            without=without,
            not_captured=not_captured(result, rules=False),
            next="let a person read the diff (left out: ask for one id with max_tokens=8000), record again with it, then verify(before, after)"
            if patches
            else "change the code as finding(path, id) says, record again, then verify(before, after)",
        )

    def verify(self, before: str, after: str, id: str = "") -> a.Compared:
        """Whether a fix held, from a capture before and one after."""
        real = [self.roots.inside(p) for p in (before, after)]
        done = verify(*real, select=[id] if id else ())
        return a.Compared(
            verdict=done.verdict,
            exit_code=done.code,
            text=verification_text(done, Options(width=100)),
            not_captured=[*done.undecided, *done.partial],
            next={
                0: "done: the next finding of diagnose(after), if there is one",
                1: "diagnose(after) shows what is left",
            }.get(done.code, "record both again under the same conditions: this decides nothing"),
        )

    def diff(self, before: str, after: str) -> a.Compared:
        """What changed between two captures of one job, beyond the noise."""
        done = diff(self.roots.inside(before), self.roots.inside(after))
        return a.Compared(
            verdict=done.verdict,
            exit_code=done.code,
            text=difference_text(done, "text", Options(width=100)),
            not_captured=[*done.undecided, *done.partial],
            next="record both again under the same conditions: not all of them was compared"
            if done.code == 3
            else "verify(before, after, id) says whether one finding is fixed",
        )

    # -------------------------------------------------------------------------------------------- reading

    def _result(self, path: str, source: str) -> Result:
        real = self.roots.inside(path)
        script = self.roots.script(source) if source else None
        key = (real, script, _state(real), _state(script) if script else ())
        if key not in self._results:
            while len(self._results) >= _MOST_RESULTS:
                del self._results[next(iter(self._results))]
            self._results[key] = analyze(real, source=script)
        return self._results[key]

    def _trace(self, path: str, shown: str | None, rank: int | None) -> Run:
        """The trace that is meant: the only one, or that of a name or a rank."""
        there = discover([self.roots.inside(path)], strict=False).found
        traces = [f for f in there if f.kind == "trace" and shown in (None, f.display)]
        found = [f for f in traces if rank in (None, f.rank)]
        if not found:
            raise UsageError(
                "timeline needs a trace, and there is none of this rank; memory_at(path) reads snapshots"
            )
        if len(found) != 1:
            raise UsageError(
                f"timeline needs one trace, or a rank: here are {len(found)} (list_captures names them)"
            )
        run = load(found[0].path)
        if not isinstance(run, Run):
            raise UsageError("timeline needs a trace of the profiler")
        return run


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells a changed file or folder from the one that was read."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return tuple((str(p), (s := p.stat()).st_size, s.st_mtime_ns) for p in files)


def _find(result: Result, id: str) -> Finding:
    for found in result.findings:
        if found.id == id:
            return found
    there = ", ".join(f.id for f in result.findings[:20]) or "none"
    raise UsageError(f"no finding of this id; it has {there}")


def _none_of(rank: int | None, recorded: set[int], what: str, so: str) -> list[str]:
    """What to say where nothing of this kind was recorded, or nothing of the rank that was asked for."""
    if not recorded:
        return [f"no {what} was recorded: {so} (trace-doctor capture says how)"]
    if rank is None or rank in recorded:
        return []
    there = ", ".join(map(str, sorted(recorded)[:20]))
    return [f"no {what} of rank {rank} was recorded: {so}; recorded were those of rank {there}"]


def _row(found: Finding, names: Names) -> a.FindingRow:
    place, where, saving = finding_texts(found, names)
    return a.FindingRow(
        id=found.id,
        name=found.name,
        severity=found.severity,
        confidence=found.confidence,
        place=place,
        where=where,
        saving=saving,
        message=found.message,
        patch=any(map(is_patch, found.fixes)),
    )


def _table(found: Finding, n: int) -> a.EvidenceTable:
    table = found.evidence[n]
    scales = [Scale.of(c.unit, [r[i] for r in table.rows if i < len(r)]) for i, c in enumerate(table.columns)]
    rows = [[s.with_unit(v) for s, v in zip(scales, r, strict=False)] for r in table.rows[:_MOST_ROWS]]
    return a.EvidenceTable(title=table.title, columns=[c.title for c in table.columns], rows=rows)


def _event(run: Run, row: int) -> a.EventRow:
    return a.EventRow(
        start_us=(int(run.ts[row]) - run.base_ns) / 1000.0,
        dur_us=int(run.dur[row]) / 1000.0,
        name=run.text(row),
        kind=Cat(int(run.cat[row])).name.lower(),
        device=int(run.device[row]),
        stream=int(run.stream[row]),
    )


def _without_finding(result: Result) -> str:
    if result.incomplete or any(o.outcome == "skipped" for o in result.outcomes):
        return "trace-doctor capture says what to record for skipped rules"
    return "kernels(path) shows where the time goes"
