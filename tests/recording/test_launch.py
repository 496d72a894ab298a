"""A recorded command behaves as it would without us, and leaves no process when we end it. No torch is needed here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from warm_commands import FRESH, warm
from without_compiler import WITHOUT_COMPILER

import trace_doctor
from trace_doctor.errors import UsageError
from trace_doctor.recording import machine, process_log, processes, steps_csv
from trace_doctor.recording.folder import read
from trace_doctor.recording.launch import Recorded, new_folder, record_command
from trace_doctor.recording.options import OPTIONS_VARIABLE, RecordOptions
from trace_doctor.recording.processes import OtherLoad
from trace_doctor.recording.recording_warnings import shortcomings
from trace_doctor.recording.running import CommandOutcome
from trace_doctor.testing import RunBuilder

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "fragmentation" / "simulated" / "fault"


def run(tmp_path: Path, program: str, *, flags: tuple[str, ...] = (), **options: object) -> Recorded:
    folder = new_folder(tmp_path / "logs")
    return record_command(
        [sys.executable, *flags, "-c", program],
        RecordOptions(folder, **options),
        quiet_output=True,  # type: ignore[arg-type]
    )


def output(recorded: Recorded) -> str:
    return (recorded.folder / "output.log").read_text(encoding="utf-8")


def test_arguments_folder_and_environment_are_the_commands_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "theirs.py").write_text("word = 'found'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    recorded = run(tmp_path, "import os, theirs; print(theirs.word, os.getcwd())")
    assert output(recorded) == f"found {Path.cwd()}\n"
    assert not recorded.stopped_by_us


def test_files_that_the_caller_passes_on_are_the_commands(tmp_path: Path) -> None:
    """As of `<(...)` in a shell, or the pipe of a `make`."""
    (tmp_path / "config").write_text("here")
    with (tmp_path / "config").open() as file:
        os.set_inheritable(file.fileno(), True)
        recorded = run(tmp_path, f"import os; print(os.read({file.fileno()}, 9).decode())")
    assert output(recorded) == "here\n"


def test_no_file_of_ours_is_the_commands(tmp_path: Path) -> None:
    """An end of a pipe that somebody holds never comes."""
    lists = "import os; print([n for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    alone = subprocess.run(
        [sys.executable, "-c", lists], stdout=subprocess.PIPE, text=True, close_fds=False
    ).stdout
    assert output(run(tmp_path, lists)) == alone


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("record", "-q", "--", sys.executable, "-c", "raise SystemExit(7)"), 7),
        (("check", str(SAMPLE)), 1),
    ],
)
def test_a_caller_that_ignores_its_children_changes_no_exit_code(
    tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    whole = [sys.executable, "-c", ignoring, *FRESH, *command]
    done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def test_another_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert output(run(tmp_path, "print(customized)")) == "True\n"


@pytest.mark.parametrize("name", ["json", "typing", "contextlib", "pathlib", "re", "statistics"])
@pytest.mark.parametrize("place", ["{}.py", "{}/__init__.py", "path/{}.py"])
def test_a_module_of_the_scripts_own_comes_before_the_librarys(tmp_path: Path, name: str, place: str) -> None:
    """Beside the script, or on PYTHONPATH. The recorder has loaded the library's by then."""
    module = tmp_path / place.format(name)
    module.parent.mkdir(exist_ok=True)
    module.write_text("mine = True\n")
    (tmp_path / "train.py").write_text(f"import {name}, sys; sys.exit(3 if {name}.mine else 4)")
    recorded = record_command(
        [sys.executable, str(tmp_path / "train.py")],
        RecordOptions(new_folder(tmp_path / "logs")),
        env={**os.environ, "PYTHONPATH": str(tmp_path / "path")},
        quiet_output=True,
    )
    assert (recorded.exit_code, output(recorded)) == (3, "")
    assert "loaded the recorder" not in str(recorded.warnings), "and records all the same"


@pytest.mark.torch
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_a_process_forked_behind_the_profiler_ends(tmp_path: Path) -> None:
    """The profiler's library waits at the end of a process for threads that the child does not have."""
    pytest.importorskip("torch", reason="needs the torch extra")
    (tmp_path / "train.py").write_text(f"""{WITHOUT_COMPILER}
import os, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    if step == 30 and (child := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("done")
sys.exit(6)
""")
    recorded = record_command(
        [sys.executable, str(tmp_path / "train.py")],
        RecordOptions(
            new_folder(tmp_path / "logs"),
            phases=("warmup", "timing", "light"),
            timing_steps=3,
            let_it_run=True,
        ),
        quiet_output=True,
    )
    assert (recorded.exit_code, output(recorded)) == (6, "done\n")


@pytest.mark.torch
def test_the_recorder_does_not_take_a_module_of_the_scripts_for_the_librarys(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    (tmp_path / "statistics.py").touch()
    (tmp_path / "train.py").write_text(f"""{WITHOUT_COMPILER}
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
""")
    recorded = record_command(
        [sys.executable, "train.py"],
        RecordOptions(new_folder(tmp_path / "logs"), phases=("warmup", "timing")),
        cwd=tmp_path,
        quiet_output=True,
    )
    assert (recorded.exit_code, len(recorded.steps.get(0, ()))) == (0, 12), output(recorded)


@pytest.mark.parametrize(
    ("program", "flags", "why"),
    [
        ("print(1)", (), "no process of the command imported torch"),
        ("print(1)", ("-S",), "`python -S` loads no recorder"),
        ("print(1)", ("-uI",), "`python -uI` loads no recorder"),
    ],
)
def test_nothing_recorded_has_a_reason(
    tmp_path: Path, program: str, flags: tuple[str, ...], why: str
) -> None:
    recorded = run(tmp_path, program, flags=flags)
    assert recorded.exit_code == 125 and recorded.empty
    assert recorded.recording is None
    assert any(why in line for line in recorded.warnings)
    assert json.loads((recorded.folder / "recording.json").read_bytes())["warnings"] == list(
        recorded.warnings
    )


def test_a_command_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot start"):
        record_command(["no-such-command"], RecordOptions(new_folder(tmp_path / "logs")))
    assert not list((tmp_path / "logs").iterdir())


def test_folders_of_one_second_are_apart(tmp_path: Path) -> None:
    assert len({new_folder(tmp_path) for _ in range(3)}) == 3


@pytest.mark.skipif(os.name != "posix", reason="a folder in use is moved")
@pytest.mark.parametrize("replaced", ["os.symlink({users!r}, folder)", "os.rename({users!r}, folder)"])
@pytest.mark.parametrize(("code", "ends"), [(0, 125), (3, 3)])
def test_nothing_is_written_into_a_folder_that_has_taken_the_recordings_place(
    tmp_path: Path, replaced: str, code: int, ends: int
) -> None:
    users = tmp_path / "users"
    users.mkdir()
    for name in ("recording.json", "steps.csv", "rank0.steps.csv", "options.json"):
        (users / name).write_text("rank,step,phase,milliseconds,loss\n0,1,timing,2.0,\n")
    (users / "rank0.recording.json").write_text('{"rank": 0}')
    before = {path.name: path.read_bytes() for path in users.iterdir()}
    program = f"""
import os, subprocess, sys
folder = os.path.dirname(os.environ["{OPTIONS_VARIABLE}"])
os.rename(folder, folder + ".moved")
{replaced.format(users=str(users))}
subprocess.run([sys.executable, "-c", "1"])
sys.exit({code})"""
    recorded = run(tmp_path, program)
    assert (recorded.exit_code, recorded.empty, recorded.steps) == (ends, ends == 125, {})
    assert recorded.warnings == (
        "the recording could not be finished: another folder has taken the place of the recording's",
    )
    assert {path.name: path.read_bytes() for path in recorded.folder.iterdir()} == before


HANGS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from trace_doctor.recording import process_log  # where the recorder is
process_log.say(os.path.dirname(os.environ["TRACE_DOCTOR_RECORD"]), process_log.TORCH)
stay = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stay], start_new_session=True)
time.sleep(600)
"""


def test_a_script_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """One of its processes has a session of its own and ignores what it can."""
    recorded = run(tmp_path, HANGS, max_seconds=1, grace_seconds=0.5)
    assert recorded.stopped_by_us
    assert recorded.exit_code == 125  # nothing was recorded
    assert "--max-seconds 1" in recorded.warnings[0]
    mark = str(recorded.folder / "options.json")
    assert processes.Started(OPTIONS_VARIABLE, mark).pids() == []


PRINTS_FOR_EVER = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
while True:
    print("still here", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", HANGS, PRINTS_FOR_EVER])
def test_a_command_has_no_more_time_than_it_is_given(program: str, tmp_path: Path) -> None:
    """Whether it has imported torch or not, and whatever it writes meanwhile."""
    folder = new_folder(tmp_path / "logs")
    recorded = record_command(
        [sys.executable, "-c", program],
        RecordOptions(folder, grace_seconds=0.5),
        quiet_output=True,
        most_seconds=1.0,
    )
    assert recorded.stopped_by_us
    assert processes.Started(OPTIONS_VARIABLE, str(recorded.folder / "options.json")).pids() == []


def test_to_the_end_without_steps_is_no_hang_with_let_it_run(tmp_path: Path) -> None:
    recorded = run(tmp_path, "import time; time.sleep(1.5)", max_seconds=0.1, let_it_run=True)
    assert not recorded.stopped_by_us
    assert recorded.exit_code == 125  # nothing was recorded


FAKE_RANK = """
import json, os, time
from pathlib import Path
folder = Path(os.environ["TRACE_DOCTOR_RECORD"]).parent
said = {"rank": 0, "world_size": 2, "ended": ENDED, "found_steps_by": "optimizer", "warnings": ["light: left out"],
        "phases": [{"name": "timing", "first_step": 0, "last_step": 1}]}
(folder / "rank0.recording.json").write_text(json.dumps(said))
(folder / "rank0.steps.csv").write_text(
    "rank,step,phase,milliseconds,loss\\n0,0,timing,1.5,0.30000000000000004\\n0,1,timing,2.5,\\n0,2,ti")
"""
FAKE_TRACE = "(folder / 'rank0.light.json.gz').write_bytes(b'a trace')\n"


def test_what_the_ranks_wrote_becomes_one_recording(tmp_path: Path) -> None:
    recorded = run(tmp_path, FAKE_RANK.replace("ENDED", "'script'") + "raise SystemExit(7)")
    assert recorded.exit_code == 7
    assert [(s.milliseconds, s.loss) for s in recorded.steps[0]] == [(1.5, 0.30000000000000004), (2.5, None)]
    again = read(recorded.folder)
    assert again is not None and again.steps == recorded.steps
    assert {p.name for p in recorded.folder.iterdir()} == {
        "command.txt", "output.log", "rank0.recording.json", "recording.json", "steps.csv",
    }  # fmt: skip
    said = "\n".join(recorded.warnings)
    assert "exit code 7" in said
    assert "of 2 ranks 1 reported nothing" in said
    assert said.count("light") == 1  # the rank's own word is enough
    assert "detailed" in said


def test_a_script_that_stays_after_enough_was_recorded_is_ended(tmp_path: Path) -> None:
    program = FAKE_RANK.replace("ENDED", "'enough'") + FAKE_TRACE + "time.sleep(600)"
    recorded = run(tmp_path, program, grace_seconds=0.5)
    assert recorded.stopped_by_us
    assert recorded.exit_code == 0


@pytest.mark.parametrize(("end", "code"), [("exit 5", 5), ("kill -9 $$", -9), ("exit 0", 0)])
def test_what_fails_behind_a_training_that_was_stopped_has_failed(
    tmp_path: Path, end: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(FAKE_RANK.replace("ENDED", "'enough'") + FAKE_TRACE)
    command = ["bash", "-c", f"{sys.executable} {tmp_path / 'train.py'}; {end}"]
    recorded = record_command(command, RecordOptions(str(new_folder(tmp_path / "logs"))), quiet_output=True)
    assert (recorded.exit_code, recorded.stopped_by_us) == (code, True)
    assert any("stopped, and then the command" in w for w in recorded.warnings) == bool(code)


def test_a_script_that_goes_on_keeps_its_exit_code(tmp_path: Path) -> None:
    program = FAKE_RANK.replace("ENDED", "'enough'") + "raise SystemExit(3)"
    assert run(tmp_path, program, let_it_run=True).exit_code == 3


def test_no_line_that_was_cut_is_joined(tmp_path: Path) -> None:
    (tmp_path / "rank1.steps.csv").write_text(
        "rank,step,phase,milliseconds,loss\n1,0,timing,1.5,2.0\n1,1,tim"
    )
    steps_csv.join(tmp_path, [0, 1])
    assert (tmp_path / "steps.csv").read_text() == "rank,step,phase,milliseconds,loss\n1,0,timing,1.5,2.0\n"
    assert not (tmp_path / "rank1.steps.csv").exists()


def test_a_busy_machine_is_named() -> None:
    """Half of the wall time was another process's: no time of the recording is worth much."""
    said = [
        shortcomings(["true"], RecordOptions("."), CommandOutcome(0, 9.0, waited={0: w}), None, {})
        for w in (0.5, 0.01)
    ]
    assert ["waited 50% of the time for a CPU" in "".join(lines) for lines in said] == [True, False]
    own = CommandOutcome(0, 9.0, waited={0: 0.5}, others=OtherLoad(0.0))
    [line] = [w for w in shortcomings(["true"], RecordOptions("."), own, None, {}) if "waited" in w]
    assert "more workers and threads than cores" in line and "other processes" not in line


@pytest.mark.parametrize(("waited", "busy"), [(0.5, True), (0.01, False)])
def test_a_busy_machine_is_not_blamed_on_the_script(tmp_path: Path, waited: float, busy: bool) -> None:
    """The same trace, with a wait for data and a pause of the host in each step."""
    b = RunBuilder(gpu=None)
    for _ in range(6):
        with b.step():
            b.loader(3000)
            with b.op("aten::mm"):
                b.wait(1000)
            with b.annotation("log_metrics"):
                b.wait(5000)
    b.write(tmp_path / "rank0.light.json.gz")
    (tmp_path / "rank0.recording.json").write_text(json.dumps({"rank": 0, "ended": "enough"}))
    (tmp_path / "recording.json").write_text(json.dumps({"waited_for_cpu": {"0": waited}}))
    result = trace_doctor.analyze(tmp_path)
    found = [f for f in result.findings if f.code in ("TD101", "TD203")]
    assert [f.code for f in found] == ["TD203", "TD101"]
    for finding in found:
        doubted = "waited 50% of the time for a CPU" in finding.message
        assert (finding.confidence, doubted) == (("low", True) if busy else ("medium", False))
        assert finding.severity == "info" if busy else finding.severity != "info"


def test_processes_speak_in_whole_lines(tmp_path: Path) -> None:
    (tmp_path / process_log.PRESENCE_FILE).touch()
    say = f"from trace_doctor.recording import process_log; [process_log.say({str(tmp_path)!r}, str(i), 'x' * 600) for i in range(200)]"
    for process in [subprocess.Popen([sys.executable, "-c", say]) for _ in range(2)]:
        process.wait()
    assert [len(of) for of in process_log.heard(tmp_path).values()] == [200, 200]


def test_an_environment_has_no_secret_no_host_and_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "WANDB_API_KEY": "s3cr3t",
        "HF_TOKEN": "s3cr3t",
        "OMP_NUM_THREADS": "3",
        "HOME": "/home/somebody",
        "NCCL_ALGO": "https://somebody:s3cr3t@host",
    }
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,garbage_collection_threshold:0.6",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "TORCH_LOGS": "+dynamo,graph_breaks",
    }
    versions = {
        "numpy": "2.6.0a0", "triton": "3.2.0+cu121", "accelerate": "1.0.0rc1", "deepspeed": "0.16.4+b0d4a6c0s3cr3t",
        "peft": "somebody:s3cr3t@host", "trl": "4111.1111.1111", "transformers": "4.50.0.dev20251101",
    }  # fmt: skip
    modules = {
        k: v for k, v in sys.modules.items() if k.partition(".")[0] not in ("torch", *machine.PACKAGES)
    }
    own = {name: types.SimpleNamespace(__version__=version) for name, version in versions.items()}
    monkeypatch.setattr("sys.modules", modules | own)
    said = machine.describe(secrets | settings)
    masked = {"deepspeed": "0.16.4+***", "peft": "***", "trl": "***"}
    assert said["packages"] == versions | masked
    assert said["settings"] == {"OMP_NUM_THREADS": "3", "NCCL_ALGO": "***"} | settings
    text = json.dumps(said)
    assert not [word for word in ("s3cr3t", "somebody", os.uname().nodename) if word in text]


# -- signals: of the command line, in a process of its own


def start(tmp_path: Path, program: str, **kwargs: object) -> subprocess.Popen[str]:
    """Waits until the program has written its first line."""
    (tmp_path / "script.py").write_text(program)
    process = subprocess.Popen(
        [*FRESH, "record", "--", sys.executable, "-u", "script.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs,  # type: ignore[call-overload]
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


HEARS = """
import signal, sys, time
heard = []
def hear(number, frame):
    print("heard", number)
    sys.exit(4)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT): signal.signal(number, hear)
print("ready")
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_us_reaches_the_script(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, HEARS, start_new_session=True)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert said == f"heard {number}\n"
    assert process.returncode == 4


def test_a_signal_that_ends_the_script_ends_us_the_same(tmp_path: Path) -> None:
    process = start(tmp_path, "import os; print('ready'); os.kill(os.getpid(), 9)")
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert "ended by SIGKILL" in said


def test_ctrl_c_at_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    """Its input and output are the terminal itself."""
    pty = pytest.importorskip("pty")
    (tmp_path / "script.py").write_text(
        "import sys\nprint(sys.stdin.isatty(), sys.stdout.isatty(), input('name: '))\n"
        + HEARS.replace("sys.exit(4)", "heard.append(number)\n    if len(heard) > 1: print('twice')").replace(
            "while True: time.sleep(0.05)", "for _ in range(20): time.sleep(0.05)"
        )
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [*FRESH, "record", "--", sys.executable, "-u", "script.py"])
    said = b""
    typed = {b"name: ": b"somebody\n", b"ready": b"\x03"}
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            said += os.read(terminal, 4096)
        except OSError:  # closed at the other end
            break
        for prompt in [p for p in typed if p in said]:
            os.write(terminal, typed.pop(prompt))
    _, status = os.waitpid(pid, 0)
    assert b"True True somebody" in said
    assert said.count(b"heard 2") == 1 and b"twice" not in said
    assert os.waitstatus_to_exitcode(status) == 125, "it ended by itself, and nothing was recorded"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        [],
        ["--max-steps", "0", "--", "true"],
        ["no-such-command"],
        ["--out", "z" * 256, "--", "true"],
        ["--out", "", "--", "true"],
    ],
)
def test_our_own_failures_exit_with_125(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run([*warm(), "record", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 125
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*"))


def test_no_program_of_the_working_folder_is_asked_about_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ntouch ran\necho 7\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", f"relative:{os.pathsep}"):
        assert processes._gpu_percent({"PATH": path}) is None
    assert not (tmp_path / "ran").exists()
    assert processes._gpu_percent({"PATH": str(tmp_path)}) == 7


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[31m"])
def test_a_folder_that_torch_could_not_write_to_is_refused(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [*FRESH, "record", "--out", name, "--", sys.executable, "-c", "pass"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (125, 1)
    assert not list(tmp_path.iterdir())
