"""A result as notebooks show it: the report in a frame of its own. To import this module is to have it."""

from __future__ import annotations

from html import escape

from trace_doctor.model import Result, results

__all__ = ["Result"]


def frame(result: Result) -> str:
    """The report in a frame whose scripts see nothing of the notebook."""
    from trace_doctor.reporters import render

    page = render(result, "html", zoom=False)
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" title="trace-doctor report" '
        'width="100%" height="720" frameborder="0"></iframe>'
    )


results.in_notebooks = frame
