"""Which commands of launch scripts get an option: a script that is plainly a word of one command, and nothing else of the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Fix, Location, Result

SCRIPT = """\
from transformers import HfArgumentParser, Trainer, TrainingArguments


def main():
    parser = HfArgumentParser((TrainingArguments,))
    (training_args,) = parser.parse_args_into_dataclasses()
    trainer = Trainer(model=None, args=training_args)
    trainer.train()


if __name__ == "__main__":
    main()
"""
AUTOCAST: dict[str, object] = {"dtype": "bfloat16", "device": "cuda"}


def planned(
    root: Path, name: str, text: str, codemod: str = "autocast", params: dict[str, object] = AUTOCAST
) -> Plan:
    (root / "train.py").write_text(SCRIPT)
    (root / name).write_text(text)
    fix = Fix(title="t", kind="patch", codemod=codemod, params=params, framework="trainer")
    finding = Finding(
        id="TD301-1", code="TD301", name="a-rule", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", location=Location(file="train.py", line=7, function="main"), fixes=[fix],
    )  # fmt: skip
    return plan(Result(findings=[finding]), root, unsafe=True)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --bf16 False",
        "A=1 srun python ./train.py --bf16 False --name 'a b'",
        "cd src && python train.py --bf16 False && python eval.py --bf16 False",
        "python train.py --bf16 False>log",
        "python train.py --bf16 False||exit 1",
        "python train.py --bf16 False 2>&1 | tee log",
        "python train.py --bf16 False; echo x",
        "python train.py --bf16 False&",
        "$(PYTHON) train.py \\\n  --bf16 False \\\n  --lr 1",
    ],
)
def test_the_one_command_gets_it(tmp_path: Path, line: str) -> None:
    made = planned(tmp_path, "run.sh", f"{line}\n")
    assert {n: data.decode() for n, (_, data) in made.outputs.items()} == {
        "run.sh": f"{line}\n".replace("--bf16 False", "--bf16 True", 1)
    }


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("run.sh", 'bash -c "python train.py --bf16 False"'),
        ("run.sh", "ssh h 'python train.py --bf16 False'"),
        ("run.sh", "(python train.py --bf16 False)"),
        ("run.sh", "x=$(python train.py --bf16 False)"),
        ("run.sh", "echo python train.py --bf16 False"),
        ("run.sh", 'MSG="use python train.py --bf16 False"'),
        ("run.sh", 'alias t="python train.py --bf16 False"'),
        ("run.sh", "python train.py \\\n  # --bf16 False \\\n  --lr 1"),
        ("Dockerfile", 'CMD ["python", "train.py", "--bf16", "False"]'),
    ],
)
def test_what_is_not_plainly_one_command_is_left_alone(tmp_path: Path, name: str, line: str) -> None:
    assert not planned(tmp_path, name, f"{line}\n").outputs


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("python train.py --bf16 False --lr 1 --bf16 False", "--bf16 is passed more than once"),
        ('python train.py --bf16 False "${ARGS[@]}"', "may hold the options as well"),
        ('python train.py "$@"', "may hold the options as well"),
        ("python train.py --bf16 False $EXTRA", "may hold the options as well"),
    ],
)
def test_a_command_of_which_another_word_decides_is_left_alone(tmp_path: Path, line: str, why: str) -> None:
    made = planned(tmp_path, "run.sh", f"{line}\n")
    assert not made.outputs and why in str(made)


def test_a_variable_that_is_the_value_of_an_option_decides_nothing(tmp_path: Path) -> None:
    [(_, edited)] = planned(tmp_path, "run.sh", "python train.py --lr $LR --bf16 False\n").outputs.values()
    assert edited == b"python train.py --lr $LR --bf16 True\n"


def test_a_refusal_says_whose_option_it_is(tmp_path: Path) -> None:
    [item] = planned(tmp_path, "run.sh", "python train.py --bf16 $BF16\n").items
    assert (item.why, item.fix.framework) == ("--bf16 comes from $BF16", "transformers")


@pytest.mark.parametrize(("now", "then"), [("3", "4"), ("4", "4"), ("5", "5"), ("²", "4")])
def test_a_number_is_raised_and_never_lowered(tmp_path: Path, now: str, then: str) -> None:
    line = "python train.py --dataloader_num_workers {}\n"
    made = planned(tmp_path, "run.sh", line.format(now), "dataloader-args", {"num_workers": 4})
    outputs = {n: data.decode() for n, (_, data) in made.outputs.items()}
    assert outputs == ({"run.sh": line.format(then)} if now != then else {})
    assert now != then or [i.status for i in made.items] == ["already"]
