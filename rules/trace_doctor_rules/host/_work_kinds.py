"""What host work is, by its name: which advice of `techniques.off_the_step` is for it."""

from __future__ import annotations

import re

_KINDS = (
    ("checkpoint", r"save|checkpoint|state_dict|serializ"),
    ("evaluation", r"eval|valid|test"),
    ("rollout", r"rollout|(?:\b|_)(?:act|actions?|envs?|generate)(?:\b|_)"),
    ("garbage", r"\bgc\b|collect\b"),
    ("log", r"log|wandb|tensorboard|write|print|metric|report|plot"),
    ("copy", r"(?:\b|_)(?:copy|move|transfer|to)_(?:\w+_)?(?:to_)?(?:gpu|cuda|device)|host_to_device|h2d"),
    ("data", r"token|preprocess|process|collat|augment|decode|transform|load|batch|sample"),
)


def kind_of_work(name: str) -> str:
    """By the words of an annotation, or of a function and its file; folders say nothing (`transformers/trainer.py`)."""
    what = re.sub(r"(?<=\()\S*[/\\]", "", name)
    return next((kind for kind, words in _KINDS if re.search(words, what, re.IGNORECASE)), "other")
