"""Where a job runs."""

from __future__ import annotations

from trace_doctor import Fix
from trace_doctor_rules.techniques._making import patch


def one_image(dockerfile: str, verify: str, *, torch: str, cuda: str) -> Fix:
    """`dockerfile`: one with the captured versions, for people who have none."""
    return patch(
        "Run all ranks from one image",
        "pin-container",
        dockerfile,
        "the driver is the host's: it has to be new enough for the image's CUDA",
        verify,
        safety="display",
        params={"torch": torch, "cuda": cuda},
    )
