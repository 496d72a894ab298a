"""One of several views at a time, by radio buttons and CSS: nothing needs a script. In browsers that do not
know `:has`, all of them stand below one another."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.reporters.html.dom import Child, Html, el

MOST = 12
"""Views of one switch: more are not shown"""
_SELECTORS = ",".join(
    f".views:has(label:nth-of-type({n}) :checked)>.view:nth-of-type({n})" for n in range(1, MOST + 1)
)
RULES = f"@supports selector(:has(a)){{@media screen{{.views>.view{{display:none}}{_SELECTORS}{{display:block}}}}}}"
"""For the style of a page: of each switch the view with the place of the checked button is shown"""
View = tuple[str, str, Child]
"""key (letters and digits), name, content"""


def views(anchor: str, choices: Sequence[View], legend: str) -> Html:
    """The first is shown first. Switches with the same keys are kept together by the script, which also writes the key
    into the address (`#rank=3`)."""
    if len(choices) == 1:
        return el("div", choices[0][2])
    options = [
        el(
            "label",
            el("input", type="radio", name=f"{anchor}-views", value=key, checked=n == 0),
            el("span", el("bdi", name)),
        )
        for n, (key, name, _) in enumerate(choices[:MOST])
    ]
    elements = [
        el("div", el("h3", el("bdi", name), class_="view-name"), content, class_="view", data_view=key)
        for key, name, content in choices[:MOST]
    ]
    return el("div", el("fieldset", el("legend", legend), options, class_="switch"), elements, class_="views")


def key_of(rank: int, number: int, ranked: bool) -> str:
    """`3` for rank 3; `i3` for the fourth input, where ranks do not tell captures apart."""
    return str(rank) if ranked else f"i{number}"
