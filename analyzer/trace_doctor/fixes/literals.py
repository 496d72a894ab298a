"""Values as they stand in a script."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

Value = bool | int | float | str | None | Mapping[str, "Value"]


def source_text(value: Value) -> str:
    """The source text of a value, which is never more than a value. Raises ValueError for a number that has no literal."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # its escapes are Python's as well
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{source_text(str(k))}: {source_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no literal")
    return repr(value)
