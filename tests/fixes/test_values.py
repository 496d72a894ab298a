"""Values that an option of the command or a configuration file sets stay there: a search goes through what sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.fixes.plan import plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import Finding, Fix, Location, Result
from trace_doctor.program.edits import Option

SCRIPT = """\
import argparse
import json
import yaml
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", "-n", type=int, default=4)
parser.add_argument("--config", default="train.yaml")
args = parser.parse_args()
with open("train.yaml") as file:
    named = yaml.safe_load(file)
anywhere = yaml.safe_load(open(args.config))
settings = json.load(open("settings.json"))["loader"]
for batch in DataLoader([1], shuffle=True, num_workers=WORKERS):
    model(batch).backward()
"""


def resolved(folder: Path, workers: str, codemod: str = "dataloader-args", **params: object) -> PlannedFix:
    (folder / "train.py").write_text(SCRIPT.replace("WORKERS", workers))
    (folder / "train.yaml").write_text("lr: 0.1\ndata:\n  workers: 0  # for now\n")
    (folder / "settings.json").write_text('{"loader": {"workers": 3}}\n')
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod=codemod, params=params)
    finding = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="warning", confidence="high", message="m",
        fingerprint="f", location=Location(), fixes=[fix],
    )  # fmt: skip
    [item] = plan(Result(findings=[finding]), folder).items
    return item


def test_an_option_of_the_command_stays_what_sets_the_value(tmp_path: Path) -> None:
    item = resolved(tmp_path, "args.num_workers", num_workers=2, exact=True, persistent_workers=True)
    assert item.change is not None and item.change.options == (
        Option("--num-workers", "2", ("--num-workers", "-n")),
    )
    assert b"+for batch in DataLoader" in item.diff and b"args.num_workers > 0" in item.diff
    assert b"default=2" not in item.diff
    item = resolved(tmp_path, "args.num_workers", num_workers=2, exact=True)
    assert (item.status, item.diff) == ("ready", b"") and item.change is not None and item.change.options


@pytest.mark.parametrize(
    ("workers", "file", "line"),
    [
        ("named['data']['workers']", "train.yaml", "+  workers: 2  # for now"),
        ("anywhere['data'].get('workers', 1)", "train.yaml", "+  workers: 2  # for now"),
        ("settings['workers']", "settings.json", '+{"loader": {"workers": 2}}'),
    ],
)
def test_a_key_of_a_configuration_file_is_set_there(
    tmp_path: Path, workers: str, file: str, line: str
) -> None:
    item = resolved(tmp_path, workers, num_workers=2, exact=True)
    assert item.change is not None, item.why
    assert [text.name for text, _ in item.change.files] == [file]
    assert line in item.diff.decode().splitlines()


def test_a_key_that_two_files_hold_is_left_to_people(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("data:\n  workers: 1\n")
    item = resolved(tmp_path, "anywhere['data']['workers']", num_workers=2)
    assert item.status == "display" and "set somewhere else" in item.why


def test_a_batch_size_of_a_configuration_file_is_multiplied_there(tmp_path: Path) -> None:
    item = resolved(tmp_path, "0, batch_size=settings['workers']", "batch-size", times=2)
    assert '+{"loader": {"workers": 6}}' in item.diff.decode().splitlines(), item.why
