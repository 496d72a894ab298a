"""One of several views at a time, by radio buttons and CSS: nothing needs a script. On paper, and in browsers that do not
know `:has`, all of them stand below one another."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.reporters.html.dom import Child, Html, el

View = tuple[str, str, Child]
"""key (letters and digits), name, content"""


def views(anchor: str, shown: Sequence[View], legend: str) -> Html:
    """The first is shown first. Switches with the same keys are kept together by the script, which also writes the key
    into the address (`#rank=3`)."""
    if len(shown) == 1:
        return el("div", shown[0][2])
    box = f"{anchor}-views"
    options = [
        el(
            "label",
            el("input", type="radio", name=box, value=key, checked=n == 0),
            el("span", el("bdi", name)),
        )
        for n, (key, name, _) in enumerate(shown)
    ]
    chosen = ",".join(
        f'#{box}:has(input[value="{key}"]:checked)>.view[data-view="{key}"]' for key, _, _ in shown
    )
    rule = f"@supports selector(:has(a)){{@media screen{{#{box}>.view{{display:none}}{chosen}{{display:block}}}}}}"
    return el(
        "div",
        Html(f"<style>{rule}</style>"),
        el("fieldset", el("legend", legend), options, class_="switch"),
        [el("div", el("h3", el("bdi", name), class_="view-name"), content, class_="view", data_view=key) for key, name, content in shown],
        id=box,
    )  # fmt: skip


def key_of(rank: int, number: int, ranked: bool) -> str:
    """`3` for rank 3; `i3` for the fourth input, where ranks do not tell captures apart."""
    return str(rank) if ranked else f"i{number}"
