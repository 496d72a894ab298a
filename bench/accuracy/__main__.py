"""How often the diagnosis is right: `python bench/accuracy [--output table.md] [--only samples|others] [--held-out DIR...]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cases import Case, cases, held_out
from figures import Count, Figures
from savings import built, coverage, not_promised, promises, public, recorded
from savings import table as savings_table

from trace_doctor import analyze
from trace_doctor.model import Result

ORIGINS = {
    "real": "our scripts, recorded",
    "simulated": "our scripts, simulated",
    "others": "captures of others, labeled manually",
    "blind": "never seen before",
    "seen": "seen before, in no set",
    "second": "never seen before, second set",
    "third": "never seen before, third set",
    "third-made": "third set, made for it",
    "fourth": "never seen before, fourth set",
    "fourth-made": "fourth set, made for it",
    "fifth": "never seen before, fifth set",
    "fifth-made": "fifth set, made for it",
    "sixth": "never seen before, sixth set",
    "seventh": "never seen before, seventh set",
    "seventh-made": "seventh set, made for it",
    "eighth": "never seen before, eighth set",
    "eighth-made": "eighth set, made for it",
    "ninth": "never seen before, ninth set",
    "tenth": "never seen before, tenth set",
}
HELD_OUT = tuple(kind for kind in ORIGINS if kind not in ("real", "simulated", "others"))


def main() -> None:
    options = _options()
    if options.held_out:
        text, figures = _held_out(options.held_out)
    else:
        text, figures = _project(options.only)
    print(text)
    for code, count in sorted(figures.rules.items()):
        for name in count.missed:
            print(f"missed  {code}  {name}")
        for name in count.false:
            print(f"false   {code}  {name}")
    if options.output:
        kind = "captures it had not seen" if options.held_out else "labeled captures"
        options.output.write_text(f"# Accuracy on {kind}\n\n{text}\n", encoding="utf-8")


def _project(only: str | None) -> tuple[str, Figures]:
    """The samples, and the captures of others where they are there."""
    chosen = [c for c in cases() if only is None or (c.kind == "others") == (only == "others")]
    results = _analysed(chosen)
    text, figures = _tables(results, ("real", "simulated", "others"))
    found = list(promises({name: x for name, x in results.items() if x[0].kind != "others"}))
    if not found:
        return text, figures
    every = [*found, *built(), *recorded(), *public()]
    silent = ", ".join(not_promised()) or "none"
    return f"{text}\n\n{savings_table(every)}\n\n{coverage(every)}\n\nNothing promised: {silent}", figures


def _held_out(folders: list[Path]) -> tuple[str, Figures]:
    found, absent = held_out(folders)
    if not found:
        raise SystemExit(
            "skipped: no capture of bench/accuracy/heldout.toml lies in " + ", ".join(map(str, folders))
        )
    there = {case.kind for case in found}
    text, figures = _tables(_analysed(found), tuple(kind for kind in HELD_OUT if kind in there))
    if absent:
        text += f"\n\n{len(absent)} of {len(found) + len(absent)} captures are not in these folders."
    return text, figures


def _analysed(chosen: list[Case]) -> dict[str, tuple[Case, Result]]:
    return {case.name: (case, analyze(*case.paths, source=case.script)) for case in chosen}


def _tables(results: dict[str, tuple[Case, Result]], kinds: tuple[str, ...]) -> tuple[str, Figures]:
    all_together, by_kind = Figures(), {kind: Figures() for kind in kinds}
    for case, result in results.values():
        for figures in (all_together, by_kind[case.kind]):
            figures.add(case, result)
    return table(all_together, by_kind), all_together


def table(all_together: Figures, by_kind: dict[str, Figures]) -> str:
    """Two Markdown tables: by origin of the captures, and by rule."""
    lines = [
        "| captures | number | healthy | of these with a false alarm | faults | found | of these above info "
        "| precision | recall | right first fix | right line |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, figures in [*by_kind.items(), ("all", all_together)]:
        total = figures.overall()
        lines.append(
            f"| {ORIGINS.get(kind, '**all**')} | {figures.cases} | {figures.healthy} | {figures.healthy_with_alarm} "
            f"| {total.found + len(total.missed)} | {total.found} | {total.warned} "
            f"| {_share(total.precision)} | {_share(total.recall)} "
            f"| {_of(figures.first_fixes)} | {_of(figures.lines)} |"
        )
    lines += [
        "",
        "| rule | faults | found | above info | false alarms | precision | recall |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(code, count) for code, count in sorted(all_together.rules.items())]
    return "\n".join(lines)


def _row(code: str, count: Count) -> str:
    faults = count.found + len(count.missed)
    return (
        f"| {code} | {faults} | {count.found} | {count.warned} | {len(count.false)} "
        f"| {_share(count.precision)} | {_share(count.recall)} |"
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _of(right: list[bool]) -> str:
    return f"{sum(right)} of {len(right)}" if right else "–"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the tables to this file")
    parser.add_argument("--only", choices=["samples", "others"])
    parser.add_argument(
        "--held-out",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="the captures of heldout.toml instead, where these folders hold them",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
