"""Where the time of one analysis goes: `python bench/where.py TRACE [options of trace-doctor analyze]`.

Cpu seconds of every piece of evidence, rule and output, each without what it asked others for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

LEAST = 0.005
"""Seconds below which a line is left out."""


class Spent:
    """Time by label; time inside an inner label counts for that one only."""

    def __init__(self) -> None:
        self.by_label: Counter[str] = Counter()
        self._inner: list[float] = []

    def __call__(self, label: str, call: Callable[[], Any]) -> Any:
        self._inner.append(0.0)
        started = time.process_time()
        try:
            return call()
        finally:
            took = time.process_time() - started
            self.by_label[label] += took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took


def main(options: list[str]) -> None:
    from trace_doctor import reporters
    from trace_doctor.cli import run as command
    from trace_doctor.engine import rule_runs as executor
    from trace_doctor.evidence.base import Facts
    from trace_doctor.loading import load_file

    spent = Spent()
    spent.by_label["start"] = time.process_time()

    def timed(owner: Any, name: str, label: Callable[..., str]) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *a, **k: spent(label(*a), lambda: inner(*a, **k)))

    timed(Facts, "__getitem__", lambda _, kind: f"evidence {kind.__name__}")
    timed(executor, "_run", lambda _, rule: f"rule {rule.code}")
    timed(reporters, "render", lambda _, form, *rest: f"output {form}")
    timed(load_file, "load", lambda *_: "load")
    sys.argv = ["trace-doctor", "analyze", *options, "--no-progress"]
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.suppress(SystemExit),
    ):
        spent("all else", command)
    for label, seconds in spent.by_label.most_common():
        if seconds >= LEAST:
            print(f"{seconds:8.3f}  {label}")
    print(f"{time.process_time():8.3f}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
