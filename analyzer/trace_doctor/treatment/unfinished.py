"""What a treatment has decided so far, on disk while it runs, so that a process that is killed loses no decision."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.files import replacing
from trace_doctor.fixes.journal import state_folder
from trace_doctor.model.treatment import Treatment


class Unfinished:
    """The file of the one treatment that can run of a project: JSON as of `--output json`, in the user's state folder, not
    in the project, whose files are compared. Without such a folder nothing is kept, and `path` is None."""

    def __init__(self, source: Path) -> None:
        self.path: Path | None = None
        name = hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]
        with contextlib.suppress(UsageError, OSError):
            self.path = state_folder() / "treat" / f"{name}.json"

    def left_behind(self) -> bool:
        """Whether an earlier treatment was killed after it had decided something."""
        return self.path is not None and self.path.is_file()

    def save(self, treatment: Treatment) -> None:
        """Replaces what was saved before. A full disk is no reason to end the trials."""
        if self.path is not None:
            with contextlib.suppress(UsageError, OSError):
                self.path.parent.mkdir(mode=0o700, exist_ok=True)
                with replacing(self.path) as file:
                    file.write(treatment.to_json())

    def discard(self) -> None:
        """All outputs are written."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
