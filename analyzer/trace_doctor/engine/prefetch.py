"""An analysis in the process that read the trace, for the evidence that it makes: the one of all traces finds it there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy.typing as npt

from trace_doctor.config import Config, Settings
from trace_doctor.engine.result import diagnose
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.run import Capture, Run

FUNCTION = f"{__name__}:evidence"


def given(settings: Settings, options: Options) -> dict[str, Any]:
    """What `evidence` has to know, for another process."""
    plain: dict[str, Any] = msgspec.to_builtins(
        {"settings": settings, "options": options}, enc_hook=os.fspath
    )
    return plain


def evidence(run: Run, given: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """What the rules of these settings look at in a trace, as arrays for `Run.earlier`. Its verdicts are dropped: they depend
    on other ranks."""
    settings = msgspec.convert(given["settings"], Settings)
    options = msgspec.convert(given["options"], Options, dec_hook=lambda path, text: path(text))
    found: list[Facts] = []
    diagnose(
        [Capture(run.rank, run)], settings.chosen(), Config(settings, {}), options,
        seen=lambda _, facts: found.append(facts),
    )  # fmt: skip
    return found[0].made()
