"""The errors trace-doctor raises on purpose. Each message is one line that a user can act on."""

from __future__ import annotations

import re

_ANYWHERE = re.compile(r"##(?=\w*\[)", re.ASCII)
_AT_THE_START = re.compile(r"^(\s*)::(?=[\w-]+( [^:\n]*)?::)", re.MULTILINE)


class TraceDoctorError(Exception):
    """Base of every deliberate error; the command line prints its message and exits with 2."""


class UsageError(TraceDoctorError):
    """The command line or the configuration asks for something that cannot be done."""


class NoCaptures(TraceDoctorError):
    """Nothing readable was found below the paths given."""


class NothingRecorded(NoCaptures):
    """There is nothing to choose from or to mend: a recording has to be made first."""


class NotACapture(TraceDoctorError):
    """The file is no PyTorch trace or snapshot. The message names what it is when that is known."""


class UnusableResult(NotACapture):
    """A result of trace-doctor that is damaged, or asks for what none of its fixes does. It is not read at all."""


class DamagedCapture(TraceDoctorError):
    """The file is one of ours, but nothing could be read from it."""


class TooLarge(DamagedCapture):
    """Reading the file would need more memory or time than allowed: it is too large for this machine, or made to be."""


class UnreadableScript(TraceDoctorError):
    """A Python file whose bytes do not decode or whose syntax LibCST does not know. It is left alone."""


def printable(text: str) -> str:
    """Text as it may reach a terminal or the log of a CI server: names in files and of files can hold escape sequences,
    and commands to a runner."""
    printable_text = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return no_command_at_start(no_commands(printable_text))


def no_commands(text: str) -> str:
    """Text that no CI server obeys: Azure and GitHub take `##vso[…]` and `##[…]` for commands anywhere in a line, TeamCity
    `##teamcity[…]` at its start."""
    return _ANYWHERE.sub("## ", text)


def no_command_at_start(text: str) -> str:
    """Lines that GitHub does not obey: it takes `::name::` at the start of one for a command."""
    return _AT_THE_START.sub(r"\1:", text)


def unbroken(text: str) -> str:
    """Text as one line that may be printed, with the blanks that it has."""
    return printable(text.replace("\n", " "))


def one_line(text: str) -> str:
    """Text of any kind as one line that may be printed."""
    return printable(" ".join(text.split()))


class NotCaptured(Exception):
    """Evidence that was not recorded. A rule that needs it ends `skipped`, never `passed`.

    `reason` says what is missing ("no CUDA kernel in the window"), `capture` how to record it
    ("activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"); None where the capture could show it and the run has no such
    thing, as no collective in a job of one process.
    """

    def __init__(self, reason: str, capture: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.capture = capture


def by_signal(error: BaseException) -> bool:
    """Whether a signal ends the program, which is an interrupt, or a SystemExit with 128 and its number: others come from code
    of strangers that would end us."""
    exits = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128
    return exits or isinstance(error, KeyboardInterrupt)
