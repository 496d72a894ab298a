"""What our sentences may not contain, and how long they may be: the linter of messages, help texts and documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

BANNED: Mapping[str, str] = {
    r"(?:ns|µs|us|ms|\ds|MiB|GiB|kernels|launches|times|copies|calls|fills) (?:of )?a step\b": "per step",
    r"\b(?:could|can|able to|has to|must) (?:not )?(?:be able to )?look\b": "runs, is skipped",
    r"\blooked at\b": "checked",
    r"\bcould not (?:decide|be decided)\b": "is inconclusive",
    r"\bpromis(?:e|es|ed|ing)\b": "predict, predicted saving",
    r"\bby hand\b": "manual, manually",
    r"\bin pieces\b": "unfused",
    r"\bproducts?\b": "matmul, GEMM",
    r"\bmath form\b": "math backend",
    r"\bmultiprocessors?\b": "SMs",
    r"\bordinary memory\b": "pageable memory",
    r"\bgiven back\b": "freed",
    r"\btaken again\b": "reallocated",
    r"\blive (?:tensors?|memory|bytes)\b": "allocated",
    r"\bkept for backward\b": "saved for backward",
    r"\blost lead\b|\bits lead\b|\bthe lead\b": "run-ahead",
    r"\bwaits? for data\b": "data-loading stall",
    r"\bheld up\b": "preempted, blocked",
    r"\bother programs\b": "other processes",
    r"\b(?:bit by bit|last bits?)\b": "bitwise identical, not bitwise identical",
    r"\bmended\b": "fixed",
    r"\bledgers?\b": "breakdown",
    r"\bmarks? of (?:the )?steps?\b|\bsteps? marks?\b": "step markers",
    r"\bplain (?:runs?|steps?|times?)\b|\bms plain\b": "without profiler",
    r"\bunder the profiler\b": "with profiler",
    r"\bbeside\b": "alongside, next to",
    r"\bso many\b": "the number",
    r"\bstill there\b": "not fixed",
    r"\bunseen before\b": "newly checked",
    r"\bwould have shown\b": "detection limit",
    r"\bserious fault\b": "warning",
    r"\bnobody knows\b|\bwithout a word\b|\bhow sure\b|\bwas trained\b|\bfirst uses\b": "the term of WORDS",
    r"\d %": "10%, without a space",
    r"\b\w*(?:colour|behaviour|favour|neighbour|labell|cancell(?=ed|ing))\w*": "US spelling",
    r"\banalys(?:e|ed|ing)\b|\b(?:optimis|recognis|initialis|vectoris|synchronis|serialis|organis)(?:e|es|ed|ing)\b": "US spelling",
}
"""pattern, without regard to case -> what is said instead"""

MESSAGE_WORDS, PAGE_WORDS, TITLE_WORDS = 25, 40, 8
"""the longest sentence of a message and of a page, the longest title"""


def banned(text: str) -> list[str]:
    """One line for each banned phrase of a text."""
    return [
        f"{match[0]!r}: say {better!r}"
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def faults(text: str, words: int) -> list[str]:
    """One line for each banned phrase of a text without markup, and for each sentence of more words than that."""
    long = [
        f"{count} words: {sentence}"
        for sentence in re.split(r"(?<=[.!?])[)”\"*]*\s+", text)
        for count in [len(re.findall(r"\w\S*", sentence))]
        if count > words
    ]
    return [*banned(text), *long]


def title_faults(title: str) -> list[str]:
    """As `faults`, for the title of a rule or of a fix, which stands alone."""
    dependent = re.match(r"(?:Or|Then|The same)\b", title)
    return [*faults(title, TITLE_WORDS), *([f"does not stand alone: {title}"] if dependent else [])]


def page_faults(markdown: str) -> list[str]:
    """As `faults`, for a page: its sentences without code and tables, its phrases without code only."""
    return [
        fault
        for block, words in _blocks(_without_code(markdown))
        for fault in faults(" ".join(block.split()), words)
    ]


def _without_code(markdown: str) -> str:
    fenced = re.sub(r"^( *)```.*?^\1```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    code = re.sub(r"(`+).+?\1", "code", fenced, flags=re.DOTALL)
    return re.sub(r"\]\([^)\s]+\)|[\[*]", "", code)


def _blocks(text: str) -> Iterator[tuple[str, int]]:
    """Headings, paragraphs, items of lists and rows of tables, with the words that a sentence of each may have."""
    for block in re.split(r"\n(?=\s*(?:-|\d+\.|#+|\|)\s)|\n\s*\n", text):
        yield block, len(block) if block.lstrip().startswith("|") else PAGE_WORDS
