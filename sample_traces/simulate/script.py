"""The training script that a simulated capture belongs to."""

from __future__ import annotations

from pathlib import Path

SCENARIOS = Path(__file__).resolve().parent.parent
TORCH = "site-packages/torch/"
CALL = [(TORCH + "nn/modules/module.py", 1790, "_call_impl"), (TORCH + "nn/modules/module.py", 1779, "_wrapped_call_impl")]
Frame = tuple[str, int, str]

STEPS = 8
"""of every capture, where its scenario needs no other number"""


class Script:
    """One twin of a scenario: finds the lines that stacks are to name."""

    def __init__(self, scenario: str, twin: str) -> None:
        self.file = f"{twin}.py"
        self.faulty = twin == "fault"
        self.lines = (SCENARIOS / scenario / self.file).read_text(encoding="utf-8").splitlines()

    def line(self, text: str) -> int:
        """The number of the first line that holds the text."""
        return next(i for i, line in enumerate(self.lines, 1) if text in line)

    def train(self, text: str) -> list[Frame]:
        """The stack of a line in `train`."""
        return [(self.file, self.line(text), "train"), (self.file, len(self.lines), "<module>")]

    def module(self, native: str, caller: str = "model(x)") -> list[Frame]:
        """The stack of an operator in a torch module that `train` called."""
        inside = [("??", 0, native), (TORCH + "nn/modules/linear.py", 134, "forward"), *CALL]
        return [*inside, *self.train(caller)]
