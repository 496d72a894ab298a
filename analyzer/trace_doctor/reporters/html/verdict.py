"""The top of the page: in ten seconds, is the run healthy and what is it worth to change."""

from __future__ import annotations

from trace_doctor.model import Finding, Result, Saving, ranks_text
from trace_doctor.reporters.diagnosis import not_judged, verdict
from trace_doctor.reporters.engine_steps import kinds_words
from trace_doctor.reporters.fix_labels import bytes_of_fix, first_shown, fixed_with, how_made
from trace_doctor.reporters.html import captures
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import badge, gain, gain_look, mini_bar, term, tile
from trace_doctor.reporters.labels import (
    SEVERITIES,
    Names,
    busy_parts,
    by_hand,
    bytes_words,
    how_known,
    main_rows,
    peak_words,
    skipped_words,
    where,
    where_briefly,
)
from trace_doctor.reporters.units import duration, estimate_duration, estimate_share, plural, share, size

_TOP = 3


def is_cpu(result: Result) -> bool:
    """Whether the analyzed device is the host: a capture without GPU work."""
    return bool(result.time_ledger) and all(row.device < 0 for row in result.time_ledger)


def render(result: Result) -> Html:
    """The head of the page: what was captured, the verdict, and the figures beside it."""
    first, *others = verdict(result)
    each = captures.verdicts(result)
    if each and len({i.job for i in result.inputs}) > 1:
        others = []  # a sentence for each job, which the table has
    return el(
        "section",
        el("p", _subject(result), class_="subject"),
        el("h1", first, id="verdict-title"),
        [el("p", f"{sentence}.", class_="lead") for sentence in others],
        each,
        el(
            "dl",
            None if without_time(result) else [_step(result), _busy(result)],
            None if _only(result, "flight_recorder") else [_memory(result), _saving(result)],
            _counts(result),
            class_="tiles",
        ),
        _first_things(result),
        id="verdict",
        aria_labelledby="verdict-title",
    )


def without_time(result: Result) -> bool:
    """Whether no trace was given: the page then has nothing to say about time."""
    return _only(result, "snapshot", "flight_recorder")


def _only(result: Result, *kinds: str) -> bool:
    return bool(result.inputs) and all(i.kind in kinds for i in result.inputs)


def _subject(result: Result) -> list[Child]:
    names = [i.path for i in result.inputs]
    devices = list(dict.fromkeys(i.device_name for i in result.inputs if i.device_name))
    ranks = len({i.rank for i in result.inputs})
    parts: list[Child] = [el("span", el("bdi", names[0]), class_="file") if names else "no capture"]
    if len(names) > 1:
        parts.append(f"and {plural(len(names) - 1, 'more file')}")
    parts += [el("bdi", d) for d in devices[:2]]
    if result.ranks.note:
        parts.append(result.ranks.note)
    elif ranks > 1 and len(names) > 1:
        parts.append(plural(ranks, "rank"))
    return [
        [el("span", " · ", class_="dot", aria_hidden="true") if n else None, part]
        for n, part in enumerate(parts)
    ]


def _missing(name: Child, why: str) -> Html:
    return tile(name, "–", why, class_="missing")


def _step(result: Result) -> Html:
    us = result.summary.step_us
    if us is None:
        return _missing("Step time", "no steps recorded" if result.time_ledger else "no trace given")
    captures = len({r.input for r in result.time_ledger})
    plain = result.summary.plain_step_us
    beside = "" if plain is None else f"; {duration(plain)} without the profiler"
    if captures > 1:
        return tile("Step time", duration(us), f"mean of the slowest of {captures:,} captures{beside}")
    steps = max((r.steps for r in result.time_ledger if r.phase == "steady"), default=0)
    note = [
        "mean of ",
        f"{steps:,} ",
        term("steady", "steady " + ("step" if steps == 1 else "steps")),
        kinds_words(result),
    ]
    return tile("Step time", duration(us), [*note, beside] if steps else f"mean{beside}")


def _busy(result: Result) -> Html:
    if is_cpu(result):
        return _main_thread(result)
    name = term("busy", "GPU busy")
    busy = result.summary.gpu_busy_share
    if busy is None:
        some = any(row.device >= 0 for row in result.time_ledger)
        without = "not every capture has GPU work" if some else "no GPU work in the capture"
        return _missing(name, without if result.time_ledger else "no trace given")
    idle = result.summary.gpu_idle_share
    captures = len({r.input for r in result.time_ledger})
    of = f" of {captures:,} captures together" if captures > 1 else ""
    parts = [busy_parts(result), f"idle {share(idle if idle is not None else 1 - busy)}{of}"]
    note = ", ".join(filter(None, parts))
    return tile(name, share(busy), note, extra=mini_bar(busy, "compute"))


def _main_thread(result: Result) -> Html:
    """Of captures without GPU work: the share of its time in which the main thread ran operators."""
    rows = main_rows(result)
    window = max(1, sum(r.window_ns for r in rows))
    busy = 1 - sum(r.idle_ns.total() for r in rows) / window
    note = f"not computing {share(1 - busy)}"
    return tile("Main thread busy", share(busy), note, extra=mini_bar(busy, "compute"))


def _memory(result: Result) -> Html:
    peak, reserved = result.summary.peak_allocated_bytes, result.summary.peak_reserved_bytes
    if peak is None and reserved is None:
        most = max(result.memory_held, key=lambda r: r.held_bytes, default=None)
        if most is not None:
            when = f"when the snapshot was written; {size(most.reserved_bytes)} "
            return tile("Allocated memory", size(most.held_bytes), [when, term("allocated", "reserved")])
        some = any(i.kind == "snapshot" or i.recorded.memory for i in result.inputs)
        return _missing("Peak memory", "not known from what was recorded" if some else "no memory recorded")
    name = ["Peak memory"]
    if peak is None:
        return tile(name, size(reserved or 0), term("allocated", "reserved"))
    note = (
        [size(reserved), " ", term("allocated", "reserved"), " at most"]
        if reserved is not None
        else term("allocated", "allocated")
    )
    captures = len({r.input for r in result.memory_ledger})
    return tile(name, size(peak), [note, f"; the highest of {captures:,} captures"] if captures > 1 else note)


def _saving(result: Result) -> Html:
    if result.outcomes and all(o.outcome == "skipped" for o in result.outcomes):
        return _missing("Saving", "no rule could run")
    if not_judged(result):
        return _missing("Saving", "not judged")
    upto = result.summary.saving_up_to
    most = by_hand(result)
    look = "gain" if _certain(result) else "gain uncertain"
    name = ["Saving, ", term("saving", how_known(upto if most is None else most))]
    if upto.share_of_step:
        time = f"{estimate_duration(upto.time_us_per_step)}/step" if upto.time_us_per_step else "of the step"
        more = f", {bytes_words(upto)(upto.bytes)} of memory" if upto.bytes else ""
        gain = estimate_share(upto.share_of_step)
        time += _whose(result)
        if most is not None:  # what the page's title says is not to be had by a patch
            return tile(
                name,
                estimate_share(most.share_of_step or 0.0),
                f"by a manual fix{_of(result, most)}; by patches alone {gain}, {time}{more}",
                class_=look,
            )
        return tile(name, gain, time + more, class_=look)
    if upto.bytes:
        first = max(
            (f.saving for f in result.findings if f.saving), key=lambda s: s.bytes or 0, default=Saving()
        )
        return tile(name, bytes_words(upto)(upto.bytes), f"of {peak_words(first)}", class_=look)
    if most is not None:
        return tile(
            name,
            estimate_share(most.share_of_step or 0.0),
            f"of the step, manual fix{_of(result, most)}",
            class_=look,
        )
    of_fixes = [f for f in map(first_shown, result.findings) if f is not None and f.saving and f.saving.bytes]
    if of_fixes and (saving := of_fixes[0].saving):
        return tile(
            name, bytes_words(saving)(saving.bytes or 0), f"of memory: {of_fixes[0].title}", class_=look
        )
    return tile(name, "none", "no finding claims one") if result.findings else _missing(name, "nothing found")


def _certain(result: Result) -> bool:
    """Whether the finding that saves most is more than a note: an info finding is not certain, and the title says so."""
    savings = [
        (f.saving.share_of_step or f.saving.share_of_peak or 0.0, f) for f in result.findings if f.saving
    ]
    return bool(savings) and max(savings, key=lambda s: s[0])[1].severity != "info"


def _of(result: Result, saving: Saving) -> str:
    """Of several captures the one whose step a saving is a share of."""
    finding = next(f for f in result.findings if f.saving == saving)
    whose = Names(result).of(finding.input)
    return f" of {whose}" if whose else ""


def _whose(result: Result) -> str:
    """Of several captures the saving of the patches is that of one: the one that gains the largest share."""
    gains: list[tuple[float, int]] = []
    for number in dict.fromkeys(w.input for w in result.what_if):
        steps = [w.step_us for w in result.what_if if w.input == number]
        gains.append((1 - min(steps) / steps[0] if steps[0] else 0.0, -number))
    patched = (f for f in result.findings if any(fix.safety != "display" for fix in f.fixes))
    gains = gains or [(f.saving.share_of_step or 0.0, -f.input) for f in patched if f.saving]
    whose = Names(result).of(-max(gains)[1]) if gains else ""
    return f" of {whose}" if whose else ""


def _counts(result: Result) -> Html:
    counts = [(s, sum(f.severity == s for f in result.findings)) for s in SEVERITIES]
    tallies = [el("span", f"{n:,} ", badge(s), class_="tally") for s, n in counts if n]
    skipped = [o for o in result.outcomes if o.outcome == "skipped"]
    note = el("a", skipped_words(skipped), href="#skipped") if skipped else "all rules ran"
    if not result.outcomes:
        note = Html("")
    return tile("Findings", f"{len(result.findings):,}", [*tallies, el("span", note)], class_="counts")


def _first_things(result: Result) -> Html | None:
    """The findings to begin with, so that nobody has to scroll for them."""
    others = [f for f in result.findings if not fixed_with(f, result)]
    worth = [f for f in others if f.severity != "info"][:_TOP] or others[:_TOP]
    if not worth:
        return None
    more = len(result.findings) - len(worth)
    return el(
        "div",
        el("h2", "Top fixes"),
        el("ol", [_first(f, result) for f in worth]),
        el("p", el("a", f"{plural(more, 'more finding')} below", href="#findings")) if more else None,
        class_="first",
    )


def _seen_on(finding: Finding, names: Names) -> str:
    """Which of several captures it is of, or which rank it names."""
    ranks = finding.location.about_ranks
    return ranks_text(ranks) if names.ranked and ranks and names.several else names.of(finding.input)


def _first(finding: Finding, result: Result) -> Html:
    names = Names(result)
    return el(
        "li",
        badge(finding.severity),
        el("a", finding.title or finding.name, href=f"#{finding.id}"),
        el("span", gain(finding.saving), class_=gain_look(finding)),
        el("code", where_briefly(finding.location), class_="where") if where(finding.location) else None,
        el("bdi", _seen_on(finding, names), class_="where"),
        _change(finding),
    )


def _change(finding: Finding) -> Html | None:
    """What to do about it."""
    if (fix := first_shown(finding)) is None:
        return None
    gives = f" ({words})" if (words := bytes_of_fix(fix)) else ""
    return el(
        "p",
        f"{fix.title}{gives} ",
        el("span", how_made(fix), class_=f"tag safety-{fix.safety}"),
        class_="change",
    )
