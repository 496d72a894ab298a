"""TD002 damaged-capture."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Rule, Table, threshold
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice


class _Spoilt(RunBuilder):
    """A trace whose text is damaged after it was written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how
        for _ in range(20):
            with self.step(), self.op("aten::mm"):
                self.launch(100)

    def json(self) -> str:
        text = super().json()
        if self._how == "truncated":
            return text[: int(0.9 * len(text))]
        if self._how == "escapes":
            return text.replace('"aten::mm"', r'"C:\Users\model.py aten::mm"', 1)
        if self._how == "negative":
            return text.replace('"dur": 100.000', '"dur": -1')
        return text


class DamagedCapture(Rule):
    """The file is not whole.

    What it does
    Says what of the file was lost, what was repaired, and how much of it is left.

    Why is this bad
    What is missing is missing from every figure of this report. A trace that a killed job left behind ends in the middle
    of a step; events whose duration was lost count as nothing.

    Evidence
    What the loader met while reading: an early end, events that could not be read, events read only after a repair
    (lone backslashes of Windows paths, NaN, invalid UTF-8), negative, missing or overflown durations.

    How the saving is estimated
    There is none: this is about the capture.

    Fix
    Record it again and let the profiler finish: leave its `with` block, or wait for the trace handler, before the process
    ends. Impossible durations come from the profiler: a newer torch, fewer activities, or no `with_stack` avoid them.

    Fix safety
    Only shown: it concerns the code that records.

    When to ignore
    When only repairs are reported: nothing was lost then.

    References
    https://docs.pytorch.org/docs/stable/profiler.html
    """

    code = "TD002"
    name = "damaged-capture"
    title = "Trace file is damaged"
    needs = (CaptureHealth,)

    max_clamped: float = threshold(
        0.01,
        "events without a possible duration, as a share of all",
        unit="share",
        source="real captures of sound runs have up to a few per million",
    )

    VALID = [
        Valid("a whole file", lambda: _Spoilt("not at all")),
        Valid("next to none without a duration", lambda: _Spoilt("negative"), thresholds={"max_clamped": 0.9}),
    ]  # fmt: skip
    INVALID = [
        Invalid("cut off", lambda: _Spoilt("truncated"), severity="warning", message="truncated"),
        Invalid("lone backslashes", lambda: _Spoilt("escapes"), severity="info", message="repair"),
        Invalid("durations of -1", lambda: _Spoilt("negative"), severity="warning", message="duration"),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        health = ctx[CaptureHealth]
        damage = health.damage
        clamped = damage.clamped if damage.clamped > self.max_clamped * max(health.events, 1) else 0
        kinds = [
            ("truncated", int(damage.truncated and not damage.given_up)),
            (f"reading stopped after {damage.given_up:,} unreadable places", damage.given_up),
            (f"{_events(damage.lost)} unreadable", damage.lost),
            (f"{_events(clamped)} without a valid duration", clamped),
            (f"{_events(damage.repaired)} repaired", damage.repaired),
        ]
        parts = [text for text, count in kinds if count]
        if not parts:
            return
        tables = [
            Table.with_units(
                "Events",
                {"what": "text", "count": "count"},
                [
                    ["read", health.events],
                    ["unreadable", damage.lost],
                    ["repaired", damage.repaired],
                    ["without a valid duration", damage.clamped],
                ],
            )
        ]
        if health.may_be_off:
            tables.append(
                Table.with_units(
                    "Effect on the step time breakdown",
                    {"what": "text", "of the window": "share"},
                    [["possible error", health.may_be_off]],
                )
            )
        if damage.notes:
            tables.append(
                Table.with_units("Reader notes", {"note": "text"}, [[note] for note in damage.notes])
            )
        yield Claim(
            message=f"The trace file is damaged: {', '.join(parts)}. {_events(health.events).capitalize()} were read.",
            confidence="high",
            severity="warning" if damage.truncated or damage.lost or clamped else "info",
            evidence=tables,
            fixes=[
                advice(
                    "Record again and let the profiler finish",
                    "with torch.profiler.profile(...) as prof:\n    ...  # leave this block before the process ends",
                    "",
                    "TD002 is gone in the new recording",
                )
            ],
            key="damage",
        )


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
