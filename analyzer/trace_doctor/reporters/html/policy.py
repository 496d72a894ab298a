"""What a page may do in a browser: run and apply what it was made with, told by hashes, and ask for nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256

from trace_doctor.reporters.html.dom import Html


def digest(source: bytes) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(sha256(source).digest()).decode('ascii')}'"


TRACE = "trace"
"""Address of the trace that is served beside a page, relative to it"""


def policy(scripts: Sequence[str], styles: Sequence[str], *, served: bool = False) -> Html:
    """The element that puts it in force; `scripts` and `styles` are digests. It stands before all that it is about. Where a
    trace is served beside it, a page may ask for that."""
    rules = (
        "default-src 'none'",
        f"script-src {' '.join(scripts)}",
        f"style-src {' '.join(styles)}",
        *(["connect-src 'self'"] if served else []),
        "base-uri 'none'",
        "form-action 'none'",
    )
    # written as it is: base64 and quotation marks of this kind are harmless between double ones
    return Html(f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">')
