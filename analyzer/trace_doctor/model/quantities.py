"""What a figure of a result can be. The schema says it, and a result that is read is held to it: nothing that is counted or
measured is less than none.

Figures that may be negative are plain numbers: moments, which count from somewhere, and devices, of which -1 is the host.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
"""also a position in a list of the result"""
Bytes = Annotated[int, Meta(ge=0)]
Ns = Annotated[int, Meta(ge=0)]
"""length of time in ns"""
Us = Annotated[float, Meta(ge=0)]
"""length of time in microseconds"""
Amount = Annotated[float, Meta(ge=0)]
"""a mean count, a ratio, or a deviation"""
Share = Annotated[float, Meta(ge=0, le=1)]
