"""What is kept of a command line: what is known to be harmless, and nothing else."""

from __future__ import annotations

import base64
import json
import random
import re
import shlex
import string
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from trace_doctor.recording.command_line import lines_without_secrets, masked, without_secrets
from trace_doctor.recording.harmless import is_known

CORPUS = Path(__file__).with_name("command_lines.txt").read_text(encoding="utf-8")
SECRET, HARMLESS = (
    [line for line in part.splitlines() if line and not line.startswith("#")]
    for part in CORPUS.partition("[secret]\n")[2].split("\n[harmless]\n")
)
LEAST = 6
"""characters of a secret in a row that would give it away"""


def parts(secret: str) -> set[str]:
    return {secret[i : i + LEAST] for i in range(max(1, len(secret) - LEAST + 1))}


def test_the_corpus_is_one() -> None:
    assert len(SECRET) >= 100 and len(HARMLESS) >= 100
    assert all("«" in line for line in SECRET)


@pytest.mark.parametrize("line", SECRET)
def test_no_secret_is_shown(line: str, tmp_path: Path) -> None:
    line = line.replace("\\n", "\n")
    secrets = re.findall("«(.*?)»", line, re.DOTALL)
    said = masked(shlex.split(re.sub("[«»]", "", line)), tmp_path)
    assert not [part for secret in secrets for part in parts(secret) if part in said], said
    assert "***" in said


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_harmless_is_shown(line: str, tmp_path: Path) -> None:
    given, _, expected = line.partition(" => ")
    assert masked(shlex.split(given), tmp_path) == (expected or given)


# -- whatever is random enough to be a key, wherever it stands

LETTERS, ALPHANUMERIC = string.ascii_lowercase, string.ascii_letters + string.digits
ANYTHING = re.sub("[=:]", "", ALPHANUMERIC + string.punctuation)  # these end a name, which may be shown
KEYS: dict[str, Callable[[random.Random], str]] = {
    "hex": lambda r: r.randbytes(r.choice((8, 10, 16, 20, 32))).hex(),
    "HEX": lambda r: r.randbytes(r.choice((8, 16, 20))).hex().upper(),
    "base64": lambda r: base64.b64encode(r.randbytes(r.randint(12, 64))).decode(),
    "base64 for URLs": lambda r: base64.urlsafe_b64encode(r.randbytes(r.randint(12, 64))).decode(),
    "base32": lambda r: base64.b32encode(r.randbytes(r.choice((10, 20)))).decode(),
    "base62": lambda r: "".join(r.choices(ALPHANUMERIC, k=r.randint(16, 64))),
    "base36": lambda r: "".join(r.choices(LETTERS + string.digits, k=r.randint(17, 40))),
    "letters": lambda r: "".join(r.choices(LETTERS, k=r.randint(13, 40))),
    "capitals": lambda r: "".join(r.choices(LETTERS.upper(), k=r.randint(13, 40))),
    "digits": lambda r: "".join(r.choices(string.digits, k=r.randint(10, 40))),
    "UUID": lambda r: str(uuid.UUID(bytes=r.randbytes(16), version=4)),
    "groups": lambda r: r.choice("-_.").join("".join(r.choices(LETTERS, k=4)) for _ in range(4)),
    "anything": lambda r: "".join(r.choices(ANYTHING, k=r.randint(16, 40))),
}  # fmt: skip
PLACES = [
    ["{}"], ["{}", "train.py"], ["python", "{}"], ["python", "{}.py"], ["python", "train.py", "{}"],
    ["python", "train.py", "--name", "{}"], ["python", "train.py", "--name={}"], ["python", "train.py", "--name:{}"],
    ["python", "train.py", "--names", "a", "{}"], ["python", "train.py", "--{}"], ["python", "train.py", "-{}"],
    ["python", "train.py", "-n{}"], ["python", "train.py", "-n", "{}"], ["python", "-m", "{}"], ["python", "-c", "{}"],
    ["python", "-c{}"], ["mysql", "-p{}"], ["python", "train.py", "--token", "{}"], ["python", "train.py", "--token", "-{}"],
    ["python", "train.py", "--token{}"], ["NAME={}", "python", "train.py"], ["{}=1", "python"], ["env", "NAME={}", "python"],
    ["python", "train.py", "name={}"], ["python", "train.py", "+name={}"], ["python", "train.py", "{}=1"],
    ["python", "train.py", "name:{}"], ["python", "train.py", "{}:1"], ["python", "train.py", "--names", "one,{},two"],
    ["python", "train.py", "--names", "[{}]"], ["python", "train.py", "--args", "model={},lr=1"],
    ["python", "train.py", "--out", "runs/{}"], ["python", "train.py", "--out", "./runs/{}/logs"], ["python", "/data/{}/train.py"],
    ["python", "train.py", "https://host/{}"], ["python", "train.py", "--url", "https://{}:1@host/?name={}"],
    ["python", "train.py", "--addr", "{}:80"], ["python", "train.py", "@{}"], ["python", "train.py", '{{"name": "{}"}}'],
    ["curl", "-H", "Authorization: Bearer {}"], ["bash", "-c", "NAME={} python train.py"], ["-Dname={}"],
    ["ssh", "{}@host", "python"], ["python", "train.py", "--", "{}"], ["python", "train.py", "--pad-token-id", "{}"],
    ["python", "train.py", "--value", "prefix_{}"], ["python", "train.py", "--value", "{}_suffix.txt"],
]  # fmt: skip


@pytest.mark.parametrize("sort", KEYS)
@given(seed=st.integers(0, 2**64))
@example(seed=49488899)  # HEX: what could be a number with an exponent and a unit
def test_nothing_random_is_shown_wherever_it_stands(sort: str, seed: int) -> None:
    key = KEYS[sort](random.Random(seed))
    for place in PLACES:
        said = masked([word.replace("{{", "{").replace("}}", "}").replace("{}", key) for word in place])
        assert not [part for part in parts(key) if part in said], (place, said)


@given(st.lists(st.text(st.characters(exclude_categories=()))))
def test_any_words_give_one_that_a_shell_reads(words: list[str]) -> None:
    said = masked(words)
    assert said.isascii() and len(shlex.split(said)) == len(words)


@pytest.mark.parametrize("text", ["1", "1_", "a", "aB", "-", "1.", "a=", "/", "a.", "{", ",", "--a-"])
def test_long_words_take_no_time(text: str) -> None:
    assert "***" in masked(["python", "train.py", text * 60_000, f"--name={text * 60_000}"])


# -- paths


def test_a_path_that_exists_shows_all_parts_but_random_ones(tmp_path: Path) -> None:
    key = "4f8d2c9b1a7e6f3058d2c4b6a8e0f192"
    (tmp_path / "data" / key).mkdir(parents=True)
    (tmp_path / "data" / "zebrafish").touch()
    said = masked(["python", "train.py", f"data/{key}", "--data", f"data/{key}/", "data/zebrafish"], tmp_path)
    assert said == "python train.py data/*** --data data/***/ data/zebrafish"


def test_the_home_folder_names_its_user() -> None:
    home = str(Path.home())
    assert masked([f"{home}/venv/bin/python", "train.py", home]) == "~/venv/bin/python train.py '~'"
    assert masked(["python", "/home/somebody/train.py"]) == "python /home/***/train.py"
    assert "~" not in masked(["python", f"{home}s/train.py"])


# -- what a program says of its arguments


def test_what_the_command_hides_is_hidden_in_what_it_says() -> None:
    command = ["train.py", "--tokn", "swordfish77", "-H", "Authorization: Bearer abcdef1234", "--lr", "0.1"]
    text = "train.py: error: unrecognized arguments: --tokn swordfish77 --lr 0.1: abcdef1234, moonflower"
    said = without_secrets(text, command, {"HF_TOKEN": "moonflower", "HOME": "/root"})
    assert said == "train.py: error: unrecognized arguments: --tokn *** --lr 0.1: ***, ***"


def encodings(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        base64.b64encode(raw).decode(),
        raw.hex(),
        raw.hex().upper(),
        quote(secret, safe=""),
        "".join(f"%{byte:02x}" for byte in raw),
    ]


@given(
    secret=st.text(string.ascii_letters + string.digits + "+/=-_&% é", min_size=12, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_no_part_of_a_secret_is_left_in_what_a_program_says(secret: str, seed: int) -> None:
    """Of 8 characters and more, in whatever encoding, from the command line or a variable."""
    assume(
        "***" in masked(["train.py", "--token", secret])
    )  # `-WITHOUT-LOSSES` reads as an option that is known
    chance = random.Random(seed)
    for form in encodings(secret):
        begin = chance.randint(0, len(form) - 8)
        part = form[begin : chance.randint(begin + 8, len(form))]
        for command, environment in (
            (["--token", secret], {}),
            ([f"--token={secret}"], {}),
            ([], {"HF_TOKEN": secret}),
        ):
            said = without_secrets(f"E: <{part}>", ["train.py", *command], environment)
            left = re.fullmatch("E: <(.*)>", said, re.DOTALL)
            assert left and (len(left[1].replace("***", "").strip()) < 8 or is_known(left[1].strip())), (
                part,
                said,
            )


@pytest.mark.parametrize("name", ["DATABASE_URL", "MONGO_URI", "ANYTHING"])
def test_the_password_in_the_url_of_a_variable_is_none_to_show(name: str) -> None:
    url = "postgres://user:Qz7Rk2Vx9Lm4Tp8W@host/db"
    said = without_secrets(f"cannot connect to {url}", ["train.py"], {name: url})
    assert said == "cannot connect to postgres://user:***@host/db"


@pytest.mark.parametrize("user", ["", "b", "ab", "bob"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_inside_what_is_encoded_is_hidden(user: str, encode: Callable[[bytes], bytes]) -> None:
    """As the header of a login has it: where in it the secret begins decides what it looks like."""
    secret = "Kj8>hd?z91pLmmXy72"
    header = encode(f"{user}:{secret}:tail".encode()).decode()
    said = without_secrets(f"401 for Basic {header}", ["train.py", "--token", secret], {})
    shown = said.removeprefix("401 for Basic ")
    assert "***" in shown and len(shown.replace("***", "")) <= len(header) - len(secret) * 8 // 6 + 2


def test_names_and_known_words_stay_in_what_a_program_says() -> None:
    command = ["train.py", "--learning_rte=swordfish77", "-c", "raise ValueError('swordfish88')"]
    said = without_secrets("train.py: --learning_rte=swordfish77: ValueError: wordfish8", command, {})
    assert said == "train.py: --learning_rte=***: ValueError: ***"


ESCAPES: list[Callable[[str], str]] = [
    lambda secret: json.dumps(secret)[1:-1],
    lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    lambda secret: ascii(secret)[1:-1],
    lambda secret: repr(secret)[1:-1],
]


@given(
    secret=st.text(
        string.ascii_letters + string.digits + 'éàüñ\u4e2d\U0001f600\\"\t', min_size=8, max_size=30
    ),
    escapes=st.lists(st.sampled_from(ESCAPES), max_size=2),
)
def test_nor_where_python_or_json_escape_it(secret: str, escapes: list[Callable[[str], str]]) -> None:
    """JSON has the text that Python made of a string."""
    assume("***" in masked(["train.py", "--token", secret]) and not is_known(secret))
    written = secret
    for escape in escapes:
        written = escape(written)
    for line in (
        f'{{"reason": "s == \'{written}\'"}}\n',
        f"E: {written} ",
    ):
        said = lines_without_secrets(line, ["train.py", "--token", secret], {})
        assert said == line.replace(written, "***") or len(said) < len(line) - len(written) + 8, said


def test_what_only_looks_like_an_escape_stays() -> None:
    text = r"C:\users\xavier \u12 \x0 \U00110000 \ud83d \\ \n"
    assert (
        lines_without_secrets(f"{text} swordfish77é", ["t.py", "--token", "swordfish77é"], {})
        == f"{text} ***"
    )


@pytest.mark.parametrize("text", ["a" * 60_000, "ab/" * 20_000, f"{' ' * 60_000}abcdefgh"])
def test_long_secrets_take_no_time(text: str) -> None:
    assert "***" in without_secrets(text, ["train.py", "--token", text], {"HF_TOKEN": text})


NAMES = [
    "tok",
    "toke",
    "tokn",
    "passwo",
    "pas",
    "secr",
    "hf-tok",
    "hf_t",
    "acc-t",
    "rootpw",
    "userpw",
    "sudopw",
    "mypw",
    "pword",
    "passw0rd",
    "pasword",
    "secert",
    "dbuser",
    "gituser",
    "smtpuser",
    "httpuser",
    "proxyuser",
    "psk",
    "wpa",
    "luks",
    "hmac",
    "vault",
    "csrf",
    "sessionid",
    "sso",
    "ldap-bind",
    "authz",
    "security-answer",
    "pincode",
    "security-code",
    "unlock-code",
    "one-time-code",
    "backup-code",
    "recovery-code",
    "code",
    "backup-codes",
    "2fa",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["dragonfly", "918273", "12345678,23456789"])
def test_an_option_whose_name_nobody_knows_shows_no_value(name: str, value: str, tmp_path: Path) -> None:
    """argparse takes any beginning of an option for the option."""
    for words in ([f"--{name}", value], [f"--{name}={value}"], [f"{name}={value}"]):
        assert value not in masked(["python", "train.py", *words, "--lr", "0.1"], tmp_path), words


def test_groups_of_figures_are_a_card_or_codes_and_short_ones_are_sizes(tmp_path: Path) -> None:
    shown = masked(["python", "train.py", "--id", "1234,5678,9012,3456", "--layers", "512,256,128"], tmp_path)
    assert "1234" not in shown
    assert "512,256,128" in shown
