"""What is kept of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.recording.command_line import masked


@pytest.mark.parametrize(
    ("word", "secret"),
    [
        ("--token=s3cr3t", "s3cr3t"),
        ("--hub_token=s3cr3t", "s3cr3t"),
        ("--wandb-api-key=s3cr3t", "s3cr3t"),
        ("WANDB_API_KEY=s3cr3t", "s3cr3t"),
        ("logger.wandb.apiKey=s3cr3t", "s3cr3t"),
        ("--db-password=s3cr3t", "s3cr3t"),
        ("https://me:s3cr3t@example.org/data", "s3cr3t"),
        ("--note=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
        ("sk-abcdefghijklmnop1234", "sk-abcdefghijklmnop1234"),
        ("AWS_ACCESS_KEY_ID=AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ],
)
def test_secrets_are_hidden(word: str, secret: str) -> None:
    shown = masked(["python", "train.py", word, "--lr", "0.1"])
    assert secret not in shown
    assert "***" in shown
    assert shown.endswith("--lr 0.1")


def test_the_value_behind_a_secret_option_is_hidden() -> None:
    assert masked(["train", "--token", "abc", "--epochs", "3"]) == "train --token *** --epochs 3"
    assert masked(["train", "--use_auth_token", "--epochs", "3"]) == "train --use_auth_token --epochs 3"


@pytest.mark.parametrize(
    "word",
    ["--max_new_tokens=12", "--pad-token-id=3", "--tokenizer=gpt2", "--monitor=val/loss", "--max-tokens=9"],
)
def test_settings_that_sound_alike_stay(word: str) -> None:
    assert masked(["train", word]) == f"train {word}"


def test_the_home_folder_names_its_user() -> None:
    shown = masked([str(Path.home() / "venv/bin/python"), "train.py"])
    assert shown == "~/venv/bin/python train.py"


def test_a_shell_reads_it_as_it_was() -> None:
    assert masked(["python", "-c", "print('a b')"]) == """python -c 'print('"'"'a b'"'"')'"""
