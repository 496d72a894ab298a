"""How often the diagnosis is right: `python bench/accuracy [--output table.md] [--only samples|others]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cases import cases
from figures import Count, Figures

from trace_doctor import analyze
from trace_doctor.config import defaults


def main() -> None:
    options = _options()
    all_together, by_kind = Figures(), {"real": Figures(), "simulated": Figures(), "others": Figures()}
    for case in cases():
        if (options.only == "samples" and case.kind == "others") or (
            options.only == "others" and case.kind != "others"
        ):
            continue
        result = analyze(*case.paths, source=case.script, config=defaults(preview=case.preview))
        for figures in (all_together, by_kind[case.kind]):
            figures.add(case, result)
    text = table(all_together, by_kind)
    print(text)
    for code, count in sorted(all_together.rules.items()):
        for name in count.missed:
            print(f"missed  {code}  {name}")
        for name in count.false:
            print(f"false   {code}  {name}")
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


def table(all_together: Figures, by_kind: dict[str, Figures]) -> str:
    """Two Markdown tables: by origin of the captures, and by rule."""
    origin = {
        "real": "our scripts, recorded",
        "simulated": "our scripts, simulated",
        "others": "captures of others, labelled by hand",
    }
    lines = [
        "| captures | number | healthy | of these with a false alarm | faults | precision | recall | right first fix | right line |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, figures in [*by_kind.items(), ("all", all_together)]:
        total = figures.overall()
        lines.append(
            f"| {origin.get(kind, '**all**')} | {figures.cases} | {figures.healthy} | {figures.healthy_with_alarm} "
            f"| {total.found + len(total.missed)} | {_share(total.precision)} | {_share(total.recall)} "
            f"| {_of(figures.first_fixes)} | {_of(figures.lines)} |"
        )
    lines += [
        "",
        "| rule | faults | found | false alarms | precision | recall |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(code, count) for code, count in sorted(all_together.rules.items())]
    return "\n".join(lines)


def _row(code: str, count: Count) -> str:
    faults = count.found + len(count.missed)
    return f"| {code} | {faults} | {count.found} | {len(count.false)} | {_share(count.precision)} | {_share(count.recall)} |"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _of(right: list[bool]) -> str:
    return f"{sum(right)} of {len(right)}" if right else "–"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the tables to this file")
    parser.add_argument("--only", choices=["samples", "others"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
