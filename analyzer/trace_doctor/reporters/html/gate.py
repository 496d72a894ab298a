"""What `check` decided: the verdict, the findings that fail it, and every budget with what was found."""

from __future__ import annotations

from trace_doctor.model import Budget, Gate, Result
from trace_doctor.reporters.html.dom import Html, el
from trace_doctor.reporters.html.parts import Row, anchors, data_table, links, section
from trace_doctor.reporters.labels import amount, budget_outcome
from trace_doctor.reporters.units import plural

_STATUS = {
    "passed": ("✔ passed", "gate-passed"),
    "failed": ("✖ failed", "gate-failed"),
    "undecided": ("? undecided", "gate-undecided"),
}


def gate(result: Result) -> Html | None:
    """Nothing for a result of `analyze`, which decides nothing."""
    decided = result.gate
    if decided is None:
        return None
    identifiers = anchors(result)
    lines = [
        el("p", "Failing: ", links(decided.failing, identifiers)) if decided.failing else None,
        el("p", "In the baseline: ", links(decided.known, identifiers)) if decided.known else None,
        [el("p", f"Undecided: {reason}") for reason in decided.undecided],
        [el("p", note, class_="limit") for note in decided.notes],
        el(
            "p",
            f"{plural(len(result.suppressed), 'finding')} silenced by comments or configuration.",
            class_="limit",
        )
        if result.suppressed
        else None,
    ]
    return section("gate", "CI check", lines, _budgets(decided), lead=_lead(decided))


def _lead(decided: Gate) -> list[Html]:
    name = {0: "passed", 1: "failed"}.get(decided.code, "undecided")
    return [el("strong", decided.verdict, class_=_STATUS[name][1])]


def _budgets(decided: Gate) -> Html | None:
    if not decided.budgets:
        return None
    titles = ("Budget", "Outcome", "Found", "At most", "Baseline", "Noise", "Runs", "Why")
    return data_table("Budgets", titles, [_row(b) for b in decided.budgets])


def _row(budget: Budget) -> Row:
    """Each budget has its own unit, so the cells are written, not scaled together."""
    word, kind = _STATUS[budget.status]
    warned = budget.status == "failed" and budget.level == "warning"
    return [
        el("code", budget.name),
        el("span", "▲ exceeded (warning)" if warned else word, class_="gate-undecided" if warned else kind),
        *(amount(value, budget.unit) for value in (budget.found, budget.limit, budget.baseline)),
        f"±{amount(budget.noise, budget.unit)}" if budget.noise else "",
        ", ".join(amount(value, budget.unit) for value in budget.values[:20]),
        budget_outcome(budget),
    ]
