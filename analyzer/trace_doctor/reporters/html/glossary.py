"""The terms that the page explains, each beside where it stands and all of them at its end."""

from __future__ import annotations

GLOSSARY: dict[str, tuple[str, str]] = {
    "busy": (
        "GPU busy",
        "The share of the analyzed window in which at least one stream of the device was working. Copies and communication count too; from 5% of the time alone, they are named.",
    ),
    "idle": (
        "Idle, by cause",
        "Time in which no stream of the device worked. Each gap is split along the host's timeline and charged to what the host was doing; the parts sum exactly to the window.",
    ),
    "exposed": (
        "Exposed communication, exposed copies",
        "The part of collectives or copies that no compute hides. It is not a saving by itself: a rank may be waiting for a slower one, or the host may be the limit.",
    ),
    "steady": (
        "Steady step",
        "A step after warm-up. It runs to its last kernel. Shares, severities and savings are over steady steps; steps that compile, autotune or first allocate memory are warm-up and counted apart.",
    ),
    "saving": (
        "“Up to” and “about”",
        "“Up to” is an upper bound: the step without the cause. “About” is an estimate for work that replaces other work, with an 80% range. Savings are combined by one simulation, never added.",
    ),
    "basis": (
        "Measured, simulated, upper bound, estimated",
        "Where a saving comes from: read off the capture; from re-timing the captured steps without the cause; at most what the step time breakdown allows; or estimated from published figures. An estimate never makes a finding worse than info.",
    ),
    "confidence": (
        "Confidence",
        "How well the evidence carries the finding: high, medium or low. It caps the severity: medium is at most a warning, low at most info.",
    ),
    "allocated": (
        "Allocated and reserved",
        "Allocated is what tensors requested. Reserved is what PyTorch's caching allocator has taken from the device, including what it keeps for later.",
    ),
    "safety": (
        "Fix safety",
        "Unsafe: may change numerics, randomness, memory or checkpoints. Manual (“display” in the JSON): for you to do or, where there is an edit, to decide: it is made only if named with --select.",
    ),
    "skipped": (
        "Skipped rule",
        "The capture does not hold what the rule needs. Skipped is not passed: nothing is known.",
    ),
}
"""anchor: the term, and what it means"""
