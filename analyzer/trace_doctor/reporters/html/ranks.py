"""A job of several process groups: who delays it, the excess time of each rank in each step, and what groups wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from trace_doctor.model import Column, ExcessRow, GroupLag, JobDelays, JobRoot, Result, ranks_text
from trace_doctor.reporters.html import lanes
from trace_doctor.reporters.html.charts.heatmap import NONE, heatmap
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import (
    MOST_FINDINGS,
    Columns,
    Row,
    data_table,
    more,
    section,
    showing,
    step_name,
)
from trace_doctor.reporters.units import duration, plural

_LEVELS = (0.005, 0.01, 0.02, 0.04, 0.08)
"""share of the step from which on a cell has the next color"""
_MOST_JOBS, _MOST_NAMED = 4, 8
_LONGEST = 13
"""characters beside a row"""
PartOf = Callable[[int], str]
"""the address within the page of what it shows of a rank; empty where it shows nothing of its own"""


def ranks(result: Result) -> list[Html]:
    """The panel of each job; none where no job of several process groups was given."""
    jobs = (result.jobs or [])[:_MOST_JOBS]
    return [
        _panel(result, job, "ranks" if not n else f"ranks-{n}", len(jobs) > 1) for n, job in enumerate(jobs)
    ]


def _panel(result: Result, job: JobDelays, anchor: str, several: bool) -> Html:
    part = _part_of(result, job)
    which = f" of job {job.job}" if several else ""
    return section(
        anchor,
        f"Excess time by rank and step{which}",
        el("p", _shortage(job), class_="limit") if _shortage(job) else None,
        _roots(job, part) if job.roots else None,
        _map(result, job, anchor, part) if job.rows and job.steps else None,
        more("Wait of process groups", _groups(job)) if job.groups else None,
        lead=[
            "Compute, copies and idle time with a known cause, beyond the median of ranks with the same role. ",
            f"A step takes {job.slowdown:.2f} times as long as with even work and transfers; with even work alone ",
            f"{job.slowdown_own:.2f} times, with even transfers alone {job.slowdown_transfer:.2f} times.",
        ],
    )


def _shortage(job: JobDelays) -> str:
    """What the figures are not of."""
    said = []
    if job.read < job.world:
        unread = f": {ranks_text(job.unread)}" if job.unread else ""
        said.append(f"{plural(job.world - job.read, 'rank')} of {job.world:,} not read{unread}.")
    if job.unknown_clocks:
        said.append(f"The clocks of {plural(job.unknown_clocks, 'rank')} could not be compared.")
    return " ".join(said)


def _roots(job: JobDelays, part: PartOf) -> Html:
    columns: Columns = ["Delays the job", Column("Saved without", "us"), "Slow in", "Cause"]
    hosts = {rank: row.host for row in job.rows for rank in row.ranks}
    rows: list[Row] = [
        [
            _who(root, hosts, part),
            root.gain_us,
            f"{root.steps:,} of {plural(job.of_steps, 'step')}",
            _why(root),
        ]
        for root in job.roots
    ]
    usual = [
        el("span", "For comparison, usual ranks with the same role: "),
        [[", " if n else None, _linked(f"rank {rank}", part(rank))] for n, rank in enumerate(job.usual)],
        ".",
    ]
    table = data_table("What delays the job", columns, rows, hide_caption=True)
    return el("div", table, el("p", usual, class_="limit") if job.usual else None)


def _who(root: JobRoot, hosts: dict[int, str], part: PartOf) -> Html:
    if root.unread:
        return el("span", f"{ranks_text(root.unread)}, not read")
    if root.kind == "link":
        return el("span", f"transfers between {ranks_text(root.ranks)}")
    host = hosts.get(root.ranks[0], "") if root.ranks else ""
    linked = _linked(ranks_text(root.ranks), part(root.ranks[0]) if root.ranks else "")
    return el("span", linked, [" on ", el("bdi", host)] if host else None)


def _why(root: JobRoot) -> str:
    if root.kind in ("rank", "host"):
        return root.cause or "not explained"
    return "own time or transfers" if root.unread else "transfers"


def _linked(name: str, address: str) -> Child:
    return el("a", name, href=address) if address else name


def _part_of(result: Result, job: JobDelays) -> PartOf:
    """The timeline of the rank on its own, else the first finding that names it."""
    alone = lanes.on_their_own(result)
    addresses: dict[int, str] = {}
    for finding in result.findings[:MOST_FINDINGS]:
        if finding.input < len(result.inputs) and result.inputs[finding.input].job == job.job:
            for rank in finding.location.about_ranks or [result.inputs[finding.input].rank]:
                addresses.setdefault(rank, f"#{finding.id}")
    for number, key in alone.items():
        if number < len(result.inputs) and result.inputs[number].job == job.job:
            addresses[result.inputs[number].rank] = f"#rank={key}"
    return lambda rank: addresses.get(rank, "")


def _map(result: Result, job: JobDelays, anchor: str, part: PartOf) -> Html:
    names = [ranks_text(row.ranks) + (f" on {row.host}" if row.host else "") for row in job.rows]
    blamed = set(job.blamed)
    late = [n for n, row in enumerate(job.rows) if blamed & set(row.ranks)]
    shown = _labels(job.rows, late)
    title = "Excess time by rank and step"
    largest = max(job.rows, key=_largest)
    description = (
        f"{plural(len(names), 'row')}, {plural(len(job.steps), 'step')}. The largest excess has rank {largest.worst}: "
        f"{duration(_largest(largest))}. The table below has all figures."
    )
    picture = heatmap(
        f"{anchor}-map", title, description, [[_level(us, job) for us in row.excess_us] for row in job.rows], shown, job.steps
    )  # fmt: skip
    first = late[0] if late else job.rows.index(largest)
    return el(
        "div",
        _legend(job),
        picture,
        showing(len(job.steps), job.of_steps, "steps: those with the largest excess"),
        more("Show as a table", _table(result, job, names, part)),
        data_heat="Rank, by its excess time",
        data_first=first,
    )


def _labels(rows: Sequence[ExcessRow], late: Sequence[int]) -> dict[int, str]:
    """Of rows by position: of those that are late, then of about every 24th; where hosts are known the first row of a host has
    its name."""
    hosts = _brief({row.host for row in rows}) if all(row.host for row in rows) else {}
    first = {row.host: n for n, row in reversed(list(enumerate(rows)))} if hosts else {}
    others = sorted(first.values()) or range(len(rows))
    named = {n: _short(rows[n], hosts) for n in late[:_MOST_NAMED]}
    for n in others[:: max(1, len(others) // 24)]:
        named.setdefault(n, hosts.get(rows[n].host) or _short(rows[n], hosts))
    return named


def _short(row: ExcessRow, hosts: Mapping[str, str]) -> str:
    if len(row.ranks) == 1:
        return f"rank {row.ranks[0]}"
    return hosts.get(row.host) or f"{min(row.ranks)}–{max(row.ranks)}"


def _brief(hosts: Collection[str]) -> dict[str, str]:
    """Names of hosts that fit beside a row: without their domain where that tells no two apart, and of longer ones the end."""
    first = {host: host.split(".")[0] for host in hosts}
    if len(set(first.values())) < len(hosts):
        first = {host: host for host in hosts}
    return {
        host: name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :] for host, name in first.items()
    }


def _largest(row: ExcessRow) -> float:
    return max((us for us in row.excess_us if us is not None), default=0)


def _level(us: int | None, job: JobDelays) -> int:
    return NONE if us is None else sum(us >= bound * job.step_us for bound in _LEVELS) if job.step_us else 0


def _legend(job: JobDelays) -> Html:
    """The bounds of the colors, as time."""
    named = [(f"heat-{n}", f"from {duration(bound * job.step_us)}") for n, bound in enumerate(_LEVELS, 1)]
    named.insert(0, ("heat-0", f"less than {duration(_LEVELS[0] * job.step_us)}"))
    if any(us is None for row in job.rows for us in row.excess_us):
        named.append(("heat-none", "not captured, or no rank to compare with"))
    swatches = [
        el("li", el("svg", el("rect", width=14, height=14, rx=3, class_=level), class_="swatch", viewBox="0 0 14 14", aria_hidden="true"), words)
        for level, words in named
    ]  # fmt: skip
    several = any(len(row.ranks) > 1 for row in job.rows)
    which = (
        "a host: the largest of its ranks"
        if all(row.host for row in job.rows)
        else "several ranks: the largest of them"
    )
    of = el("li", f"a row is {which}") if several else None
    return el("ul", [*swatches, of], class_="keys")


def _table(result: Result, job: JobDelays, names: list[str], part: PartOf) -> Html:
    number = next((n for n, i in enumerate(result.inputs) if i.job == job.job and i.kind == "trace"), 0)
    columns: Columns = [
        "Rank",
        Column("Largest", "us"),
        *(Column(step_name(result, number, step), "us") for step in job.steps),
    ]
    rows: list[Row] = []
    for row, name in zip(job.rows, names, strict=True):
        worst = f" (rank {row.worst})" if len(row.ranks) > 1 else ""
        told = any(us is not None for us in row.excess_us)
        figures = [_largest(row) if told else None, *row.excess_us]
        rows.append([el("span", _linked(f"{name}{worst}", part(row.worst)), class_="place"), *figures])
    return data_table("Excess time of each rank in each step", columns, rows, hide_caption=True)


def _groups(job: JobDelays) -> Html:
    columns: Columns = [
        "Process group",
        "Kind of collective",
        Column("Wait per step", "us"),
        Column("Transfers, times the usual", "count"),
    ]
    columns += ["Last to arrive"]
    rows: list[Row] = [
        [_group(lag), ", ".join(lag.kinds), lag.wait_us, _rounded(lag.transfer), _last(lag, job)]
        for lag in job.groups
    ]
    return data_table(
        "Process groups: the wait of a rank until the last has arrived, and the time of transfers over the median of other groups of this size",
        columns, rows, of=job.of_groups,
    )  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _group(lag: GroupLag) -> Html:
    part = f" (only {lag.read:,} read)" if lag.read < lag.size else ""
    first, last = (lag.ranks[0], lag.ranks[-1]) if lag.ranks else (0, 0)
    if last - first + 1 == len(lag.ranks) == lag.size > 2:
        return el("span", f"ranks {first}–{last}{part}")
    if lag.size > len(lag.ranks):
        return el("span", f"ranks {', '.join(map(str, lag.ranks[:3]))} and others, {lag.size:,} in all{part}")
    return el("span", f"{ranks_text(lag.ranks)}{part}")


_HANDS_ON = 0.1
"""part of the wait of a group below which the excess time of its last rank does not explain it"""


def _last(lag: GroupLag, job: JobDelays) -> str:
    """With a word where that rank only hands on what it waited for in another group."""
    if lag.last is None:
        return "not captured"
    own = next((row.excess_us for row in job.rows if row.ranks == [lag.last]), [None])
    known = [us for us in own if us is not None]
    excess = sum(known) / len(known) if known else None
    hands_on = lag.wait_us and excess is not None and excess < _HANDS_ON * lag.wait_us
    note = ", with no excess time of its own" if hands_on else ""
    return f"rank {lag.last}, {lag.last_in:,} of {lag.collectives:,}{note}"
