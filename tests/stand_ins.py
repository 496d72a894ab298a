"""What the functions of `trace_doctor_rules.techniques` ask for, by the names of their parameters."""

from __future__ import annotations

from typing import Any

from trace_doctor import Target

GIVEN: dict[str, Any] = {
    "verify": "v", "risk": "r", "target": None, "name": "x", "dim": 0, "size": 64, "factor": 2, "dockerfile": "FROM x",
    "torch": "2.6.0", "cuda": "12.6", "inference": False, "workers": 4, "pin": True, "prefetch": 2, "late": "late.",
    "operator": "aten::nonzero", "device_wide": True, "place": Target(file="train.py", line=8, function="forward"),
}  # fmt: skip
