"""Regular expressions that are compiled when first used: a run needs few of the two hundred that there are."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Pattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """What a compiled expression has; asked for once, for it is kept."""
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)
        return value


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, for the top of a module; what is wrong with the text shows at its first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
