"""Evidence that lasts from one analysis of a trace to the next, and goes from one process to another: its fields as JSON
and arrays, never as code.

All evidence of this package lasts that follows from one trace and the options alone. Its fields are plain values, arrays,
and what `Facts` have: the trace, other evidence, themselves. What a field was filled with later is kept as well; what is
to be made anew is a `cached_property`.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from trace_doctor.errors import NotCaptured
from trace_doctor.loaders.columns import dtype_of
from trace_doctor.run import Capture, Run

if TYPE_CHECKING:
    from trace_doctor.evidence.base import Evidence, Facts

log = logging.getLogger("trace_doctor")

Array = npt.NDArray[Any]
E = TypeVar("E", bound="Evidence")
MADE_FROM = "made from"
"""The entry that says what the others follow from."""
_REFUSED = ""
"""no name of a field"""


def made_from(facts: Facts) -> bytes | None:
    """A hash of what lasting evidence follows from, beside the columns: the options, and what was laid over the trace when
    it was placed. None where more than one trace went into it."""
    run, options = facts.capture.run, facts.options
    if run is None or facts.capture != Capture(facts.capture.rank, run):
        return None
    parts = (run.path, facts.capture.rank, run.rank, run.meta, run.torch_version, options)
    try:
        return hashlib.sha256(msgspec.json.encode(parts, enc_hook=os.fspath)).digest()
    except (TypeError, RecursionError):  # options of a rule pack, and what is nested without end
        return None


def kept(facts: Facts, made: Mapping[type[Evidence], Evidence | NotCaptured]) -> dict[str, Array]:
    """Arrays by name that `restored` makes the same of again."""
    mark = made_from(facts)
    if mark is None:
        return {}
    found: dict[str, Array] = {MADE_FROM: np.frombuffer(mark, dtype=np.uint8)}
    for kind, evidence in made.items():
        if _lasts(kind):
            try:
                found |= _taken_apart(kind.__name__, evidence)
            except (TypeError, ValueError, RecursionError):
                log.debug("%s is not kept", kind.__name__, exc_info=True)
    return found


def usable(facts: Facts, earlier: Mapping[str, Array]) -> bool:
    """Whether these arrays follow from what is analysed now."""
    return MADE_FROM in earlier and earlier[MADE_FROM].tobytes() == made_from(facts)


def restored(kind: type[E], facts: Facts, earlier: Mapping[str, Array]) -> E | NotCaptured | None:
    """The evidence as it was made before, or refused; None where it is not there, or is not what it should be."""
    text = earlier.get(kind.__name__) if _lasts(kind) else None
    if text is None:
        return None

    def array(hint: Any, place: Any) -> Array:
        name, *shape = place
        values = earlier[f"{kind.__name__}.{name}"].reshape(shape)
        if values.dtype != dtype_of(hint):
            raise TypeError(f"array {name} is of another type")
        return values

    try:
        said = msgspec.json.decode(text.data, type=dict[str, msgspec.Raw])
        if _REFUSED in said:
            return NotCaptured(*msgspec.json.decode(said[_REFUSED], type=tuple[str, str | None]))
        values = {}
        for name, hint in _fields(kind).items():
            given = _given(hint)
            values[name] = (
                msgspec.json.decode(said[name], type=hint, dec_hook=array)
                if given is None
                else _of(facts, given)
            )
        return kind(**values)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        log.debug("%s is made anew", kind.__name__, exc_info=True)
        return None


def _lasts(kind: type[Evidence]) -> bool:
    """Not what other packages make (their code is nobody's to compare), nor what is kept with the columns already."""
    return kind.__module__.startswith(f"{__package__}.") and not kind.of_job and not kind.kept


def _taken_apart(name: str, evidence: Evidence | NotCaptured) -> dict[str, Array]:
    """Its text, and its arrays by number."""
    found: dict[str, Array] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            place = str(len(found))
            found[f"{name}.{place}"] = np.ascontiguousarray(value).ravel()
            return [place, *value.shape]
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} cannot be kept")

    fields: dict[str, Any] = {}
    if isinstance(evidence, NotCaptured):
        fields[_REFUSED] = (evidence.reason, evidence.capture)
    else:
        fields |= {
            f: getattr(evidence, f) for f, hint in _fields(type(evidence)).items() if _given(hint) is None
        }
    text = msgspec.json.encode(fields, enc_hook=plain)
    return {name: np.frombuffer(text, dtype=np.uint8), **found}


@cache
def _fields(kind: type[Evidence]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def _given(hint: Any) -> type[Run | Evidence | Facts] | None:
    """What the facts themselves have: the trace, other evidence, they as such."""
    from trace_doctor.evidence.base import Evidence, Facts

    forms = (form for form in (hint, *get_args(hint)) if inspect.isclass(form))
    return next((form for form in forms if issubclass(form, Run | Evidence | Facts)), None)


def _of(facts: Facts, form: type[Any]) -> Any:
    """What of this form the facts have."""
    if form is Run:
        return facts.run
    return facts if isinstance(facts, form) else facts.get(form)
