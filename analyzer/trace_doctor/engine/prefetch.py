"""An analysis in the process that read the trace, for the evidence that it makes: the one of all traces finds it there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from trace_doctor.config import Config, Settings
from trace_doctor.engine.result import diagnose
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.registry import choose
from trace_doctor.run import Capture, Run

FUNCTION = f"{__name__}:evidence"


def given(settings: Settings, options: Options) -> dict[str, Any]:
    """What `evidence` has to know, for another process."""
    source = None if options.source is None else str(options.source)
    plain = msgspec.to_builtins((settings, msgspec.structs.replace(options, source=None)))
    return {"settings": plain[0], "options": plain[1], "source": source}


def evidence(run: Run, given: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """What the rules of these settings look at in a trace, as arrays for `Run.earlier`. Its verdicts are dropped: they depend
    on other ranks."""
    settings = msgspec.convert(given["settings"], Settings)
    options = msgspec.convert(given["options"], Options)
    if given["source"] is not None:
        options = msgspec.structs.replace(options, source=Path(given["source"]))
    rules = choose(settings.select, settings.ignore, settings.extend_select, preview=settings.preview)
    found: list[Facts] = []
    diagnose(
        [Capture(run.rank, run)], rules, Config(settings, {}), options, seen=lambda _, facts: found.append(facts)
    )  # fmt: skip
    return found[0].made()
