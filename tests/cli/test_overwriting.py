"""What is read is not written over, whatever option names it; what nobody named takes the place of nothing."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from example_files import SAMPLE, baseline, fed, job, saved
from warm_commands import warm

from trace_doctor.reporters import FORMATS, OF_CAPTURES

REFUSED = "it is not overwritten"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("made")
    job(here / "job")
    saved()(here / "result.json")
    fed(here / "fed.json")
    baseline(fed)(here / "baseline.json")
    shutil.copytree(SAMPLE / "cpu" / "fault", here / "logs")
    (here / "own.toml").write_text('fail-on = "never"\n')
    os.link(here / "result.json", here / "same.json")
    return here


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "here", copy_function=shutil.copy2))


def run(here: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*warm(), *args], cwd=here, capture_output=True, text=True, timeout=120)


def contents(here: Path) -> dict[str, bytes]:
    return {str(p.relative_to(here)): p.read_bytes() for p in sorted(here.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        "fix result.json --source job --patch job/train.py",
        "fix result.json --source job --patch result.json",
        "fix logs --source job --patch logs/rank0.light.json.gz",
        "fix result.json --script job/train.py --patch job/train.py",
        "fix result.json --source job --config own.toml --patch own.toml",
        "report result.json -o text=result.json",
        "report result.json -o html=result.json",
        "analyze logs -o json=logs/steps.csv",
        "analyze logs -o json=logs/recording.json",
        "analyze logs -o json=logs/rank0.recording.json",
        "analyze logs -o json=logs/environment.json",
        "analyze fed.json --source job -o json=job/train.py",
        "analyze fed.json --config own.toml -o json=own.toml",
        "analyze fe*.json -o perfetto=fed.json",
        "check ./f*d.json -o perfetto=fed.json",
        "analyze [f]ed.json -o perfetto=fed.json",
        "analyze log* -o perfetto=logs/rank0.light.json.gz",
        "fix l*s --source job --patch logs/recording.json",
        "verify result.json fe?.json -o json=fed.json",
        "check fed.json --baseline baseline.json -o json=baseline.json",
        "check fed.json --baseline baseline.json --update-baseline -o json=baseline.json",
        "verify result.json fed.json -o json=result.json",
        "diff result.json fed.json --source job -o json=job/train.py",
        "treat --source job -o json=job/train.py -- python job/train.py",
        "treat --source job --patch job/train.py -- python job/train.py",
    ],
)
def test_what_is_read_stays(command: str, here: Path) -> None:
    before = contents(here)
    done = run(here, *command.split())
    assert done.returncode == 2, done.stdout
    assert REFUSED in done.stderr or "two formats cannot go to one file" in done.stderr
    assert contents(here) == before


@pytest.mark.parametrize("name", ["trace-doctor.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "command",
    [
        "analyze fed.json -o json={}",
        "check fed.json -o text={}",
        "check fed.json --baseline {} --update-baseline",
        "verify result.json fed.json -o json={}",
        "diff result.json fed.json -o json={}",
        "fix fed.json --source job --patch {}",
        "treat --source job -o json={} -- python job/train.py",
        "treat --source job --patch {} -- python job/train.py",
    ],
)
def test_the_configuration_that_is_found_stays(name: str, command: str, here: Path) -> None:
    """It is obeyed as the one that --config names, by whatever path it is written."""
    (here / name).write_text('[tool.trace-doctor]\nfail-on = "warning"\n')
    (here / "deep").symlink_to(".")
    before = contents(here)
    for place in (name, f"deep/{name}"):
        done = run(here, *command.format(place).split())
        assert (done.returncode, REFUSED in done.stderr) == (2, True), done.stderr
    assert contents(here) == before


def test_the_source_folder_of_the_configuration_is_read_as_one_that_is_named(here: Path) -> None:
    (here / "trace-doctor.toml").write_text('source = "job"\n')
    done = run(here, "diff", "result.json", "fed.json", "-o", "json=job/train.py")
    assert (done.returncode, REFUSED in done.stderr) == (2, True), done.stderr


def test_another_name_of_what_is_read_is_it_too(here: Path) -> None:
    (here / "same.json").unlink()
    os.link(here / "result.json", here / "same.json")
    assert REFUSED in run(here, "report", "result.json", "-o", "text=same.json").stderr
    assert json.loads((here / "result.json").read_text())["findings"]


def test_a_report_beside_the_captures_is_replaced(here: Path) -> None:
    for _ in range(2):
        assert run(here, "analyze", "logs", "-o", "html=logs/report.html").returncode == 0


@pytest.mark.parametrize("name", ["trace-doctor-treat.html", "trace-doctor-treat.patch"])
def test_treat_replaces_nothing_that_nobody_named(name: str, here: Path) -> None:
    (here / name).write_text("mine")
    done = run(here, "treat", "--source", "job", "--", "python", "job/train.py")
    assert (done.returncode, name in done.stderr) == (2, True)
    assert (here / name).read_text() == "mine"


@pytest.mark.parametrize(("option", "says"), [("json=new/", "is a folder"), ("json=logs/", "is a folder")])
def test_a_folder_is_no_file(option: str, says: str, here: Path) -> None:
    done = run(here, "analyze", "fed.json", "-o", option)
    assert (done.returncode, says in done.stderr) == (2, True)
    assert not (here / "new").exists()


def test_a_patch_to_nowhere(here: Path) -> None:
    done = run(here, "fix", "result.json", "--source", "job", "--patch", "-")
    assert (done.returncode, "the patch is printed" in done.stderr) == (2, True)
    assert not (here / "-").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize(
    "command",
    [
        "analyze fed.json -o json=theirs/x.json",
        "fix result.json --source job --patch theirs/x.patch",
        "record --out theirs -- python job/train.py",
        "treat --source job --logs theirs -- python job/train.py",
        "treat --source job --scratch theirs -- python job/train.py",
    ],
)
def test_no_folder_link_of_somebody_else_is_followed(command: str, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "theirs").symlink_to(here / "mine")
    os.chown(here / "theirs", 65534, 65534, follow_symlinks=False)
    done = run(here, *command.split())
    assert done.returncode in (2, 125)
    assert "link of somebody else" in done.stderr
    assert list((here / "mine").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_pipe_that_nobody_reads_is_not_waited_for(here: Path) -> None:
    os.mkfifo(here / "pipe")
    done = run(here, "analyze", "fed.json", "-o", "json=pipe")
    assert (done.returncode, "cannot write pipe" in done.stderr) == (2, True)


def test_a_pipe_that_somebody_reads_gets_it(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=here, stdout=subprocess.PIPE) as reader:
        assert run(here, "analyze", "fed.json", "-o", "json=pipe").returncode == 0
        assert reader.stdout is not None and json.loads(reader.stdout.read())["inputs"]


OF_NO_RESULT = '<!doctype html>\n<meta name="generator" content="trace-doctor"><p>minutes of the meeting'
OF_NO_TOOL = f'{OF_NO_RESULT}<script type="application/json" id="result">{{}}</script>'


@pytest.mark.parametrize("page", [OF_NO_RESULT, OF_NO_TOOL], ids=["no result", "a result of nobody"])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("analyze fed.json", "trace-doctor-report.html"),
        ("treat --source job -- python job/train.py", "trace-doctor-treat.html"),
    ],
)
def test_a_page_that_only_names_us_is_not_ours(page: str, command: str, name: str, here: Path) -> None:
    (here / name).write_text(page)
    done = run(here, *command.split())
    assert (done.returncode, "of ours" in done.stderr) == (2, True), done.stderr
    assert (here / name).read_text() == page


def test_a_report_of_ours_gives_way_to_the_next(here: Path) -> None:
    for _ in range(2):
        assert run(here, "analyze", "fed.json").returncode == 0
    (here / "trace-doctor-treat.html").write_bytes((here / "trace-doctor-report.html").read_bytes())
    done = run(here, "treat", "--source", "job", "--", "python", "job/train.py")
    assert (done.returncode, "of ours" in done.stderr) == (2, True), "it is of another kind"


@pytest.mark.parametrize("form", FORMATS)
def test_half_a_character_ends_no_report(form: str, here: Path) -> None:
    """In what a trace says of its device, and in the manifests of a recording."""
    trace = json.loads((here / "fed.json").read_text())
    trace["deviceProperties"] = [{"id": 0, "name": "GPU \ud800", "totalGlobalMem": 1 << 30}]
    trace["\udfff"] = "\ud800"
    (here / "half.json").write_text(json.dumps(trace))
    manifest = json.loads((here / "logs" / "rank0.recording.json").read_text())
    manifest["warnings"] = ["half \udcff of it"]
    (here / "logs" / "rank0.recording.json").write_text(json.dumps(manifest))
    for given in ("half.json", "logs"):
        done = run(here, "analyze", given, "-o", f"{form}=out")
        assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr
        (here / "out").read_bytes().decode()


def test_a_name_of_as_many_bytes_as_there_may_be(here: Path) -> None:
    name = "é" * 125 + ".json"
    assert len(os.fsencode(name)) == 255
    assert run(here, "analyze", "fed.json", "-o", f"json={name}").returncode == 0
    assert json.loads((here / name).read_text())["inputs"]


@pytest.mark.parametrize(("pause", "code", "ends"), [(0, 7, 7), (0, 0, 125), (2, 7, 7)])
def test_a_script_that_takes_its_recording_away_keeps_its_code(
    pause: int, code: int, ends: int, tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text(
        f"import shutil, sys, time\nshutil.rmtree('logs')\ntime.sleep({pause})\nsys.exit({code})\n"
    )
    done = run(tmp_path, "record", "--out", "logs", "--", "python", "s.py")
    assert done.returncode == ends
    assert "could not be finished" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "named",
    [
        "../mine.txt",
        "{here}/../mine.txt",
        "link",
        "folder/new.txt",
        "pyproject.toml",
        "notes.md",
        "mine.json.gz",
        ".git/hooks/pre-commit",
        "hooks/pre-commit",
        "apart/hooks/pre-commit",
        "apart/worktrees/tree/new",
    ],
)
def test_a_configuration_names_no_file_of_the_user(named: str, here: Path) -> None:
    """It may come with a repository that somebody else wrote."""
    (here.parent / "mine.txt").write_text("mine")
    (here / "link").symlink_to("../mine.txt")
    (here / "folder").symlink_to("..")
    (here / "notes.md").write_text("mine")
    (here / "mine.json.gz").write_bytes(gzip.compress(b"mine"))
    for repository in (here / ".git", here / "apart"):  # one as --separate-git-dir makes it
        for inside in ("hooks", "objects", "refs", "worktrees/tree"):
            (repository / inside).mkdir(parents=True)
        (repository / "HEAD").write_text("ref: refs/heads/main\n")
    (here / "hooks").symlink_to(".git/hooks")
    place = named.format(here=here)
    (here / "pyproject.toml").write_text(
        f'[tool.trace-doctor]\noutput = ["markdown={place}"]\nbaseline = "{place}"\n'
    )
    before = contents(here.parent)
    for command in ("analyze fed.json", "check fed.json", "check fed.json -o text --update-baseline"):
        done = run(here, *command.split())
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
    assert contents(here.parent) == before
    assert not (here.parent / "new.txt").exists()


@pytest.mark.parametrize("format", sorted({*FORMATS, *OF_CAPTURES} - {"github"}))
def test_an_output_of_ours_that_a_configuration_names_is_replaced(format: str, here: Path) -> None:
    (here / "deep").mkdir()
    (here / "trace-doctor.toml").write_text(f'output = ["{format}=../out"]\nbaseline = "../accepted"\n')
    for command in ("analyze ../fed.json", "check ../fed.json --fail-on never --update-baseline"):
        for _ in range(2):
            done = run(here / "deep", *command.split())
            assert (done.returncode, done.stderr.count("no output of ours")) == (0, 0), done.stderr
    assert (here / "out").stat().st_size
    assert (here / "accepted").stat().st_size


SUITE = '<testsuite name="pytest" tests="1"><testcase name="mine"/></testsuite>'
RUN = '{"tool": {"driver": {"name": "other"}}, "results": []}'


@pytest.mark.parametrize(
    ("format", "mine"),
    [
        ("markdown", lambda ours: f"# mine\n\n{ours}"),
        ("markdown", lambda ours: f"{ours}# mine\n"),
        ("text", lambda ours: f"{ours}mine\n"),
        ("text", lambda ours: "trace-doctor  rank0.json was read\n"),
        ("junit", lambda ours: ours.replace("</testsuites>", f"{SUITE}</testsuites>")),
        ("sarif", lambda ours: ours.replace('"runs": [', f'"runs": [{RUN},')),
        ("sarif", lambda ours: ours.replace('"version": "2.1.0"', '"version": "2.1.0", "mine": 1')),
        ("json", lambda ours: ours.replace("{", '{"mine": "do not lose me",', 1)),
        ("json", lambda ours: ours.replace("}\n", ', "mine": 1}\n')),
        ("json", lambda ours: ours.replace("TD101", "TD999", 1)),
        ("html", lambda ours: ours.replace("</body>", "<p>mine</p></body>")),
    ],
)
def test_a_file_that_holds_more_than_our_output_is_not_replaced(
    format: str, mine: Callable[[str], str], here: Path
) -> None:
    assert run(here, "analyze", "fed.json", "-q", "-o", f"{format}=out").returncode == 0
    ours = (here / "out").read_text()
    (here / "out").write_text(held := mine(ours))
    assert held != ours
    (here / "trace-doctor.toml").write_text(f'output = ["{format}=out"]\n')
    assert run(here, "analyze", "fed.json", "-q").returncode == 2
    assert (here / "out").read_text() == held


def test_the_command_line_and_the_environment_name_any_place(here: Path) -> None:
    (here / "trace-doctor.toml").write_text('output = ["text=../gone/x"]\n')
    (here.parent / "mine.txt").write_text("mine")
    assert run(here, "analyze", "fed.json", "-o", "text=../mine.txt").returncode == 0
    assert (here.parent / "mine.txt").read_text() != "mine"


def test_a_baseline_that_was_edited_is_not_replaced_for_a_configuration(here: Path) -> None:
    (here / "trace-doctor.toml").write_text('baseline = "accepted"\n')
    update = ("check", "fed.json", "--fail-on", "never", "--update-baseline")
    assert run(here, *update).returncode == 0
    edited = (here / "accepted").read_text().replace("{", '{"mine": 1,', 1)
    (here / "accepted").write_text(edited)
    assert run(here, *update).returncode == 2
    assert (here / "accepted").read_text() == edited
    assert run(here, "check", "fed.json", "--fail-on", "never").returncode == 0, "it is read"


@pytest.mark.parametrize("option", ["-o json=", "-o text=", "--patch "])
def test_a_link_to_what_is_no_output_is_not_written_through(here: Path, option: str) -> None:
    """A repository can hold one: git makes it for whoever clones that, and it is theirs then."""
    (here / "mine.txt").write_text("mine")
    (here / "link").symlink_to("mine.txt")
    command = "fix result.json --source job" if "patch" in option else "report result.json"
    words = [*command.split(), *f"{option}link".split()]
    done = run(here, *words)
    assert (done.returncode, (here / "mine.txt").read_text()) == (2, "mine")
    assert "which is no output of ours: it is not overwritten" in done.stderr
    (here / "mine.txt").write_text("")
    assert [run(here, *words).returncode for _ in range(2)] == [0, 0], "over an output of ours, too"
    assert (here / "mine.txt").read_text()
