"""The processes that a command has started, wherever they went: sessions of their own, or orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.isolation import program_in


class Started:
    """All processes that inherited an environment variable with this value, `root`, and the descendants of these.

    An inherited variable finds what parents no longer tell: torchrun puts its workers into sessions of their own, and
    orphans belong to init. Descendants are those that were started with another environment; once seen, they are known.
    Where there is no /proc, the descendants of `root`.
    """

    def __init__(self, variable: str, value: str, root: int | None = None) -> None:
        self._mark = f"{variable}={value}".encode()
        self._known: dict[int, str | None] = {}
        if root is not None:
            self.add(root)

    def add(self, pid: int) -> None:
        """This process belongs to them, for as long as it runs."""
        if (when := born(pid)) is not None:
            self._known[pid] = when

    def pids(self, adopted: Sequence[int] = (), *, stop: bool = False) -> list[int]:
        """Of those that run now: not of one that has ended and waits for its parent, and never of this process. `adopted`
        belong to them; `stop` stops these before it looks for the others, which takes so long that one may have handed on to a
        child."""
        for pid in adopted:
            self.add(pid)
        if stop:
            send(signal.SIGSTOP, adopted)
        linux = sys.platform.startswith("linux")
        parents = _parents() if linux else _parents_by_ps()
        marked = _marked(parents, self._mark) if linux else set()
        alive = {pid for pid, when in self._known.items() if pid in parents and born(pid) == when}
        running = [*{*alive, *marked, *adopted}]  # one adopted that has ended since may have handed on
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        members = {*running, os.getpid()}
        for pid in running:
            new = [child for child in children.get(pid, ()) if child not in members]
            members.update(new)
            running += new
        running = [pid for pid in running if pid != os.getpid()]
        for pid in running:
            if pid not in alive:
                self.add(pid)
        return running


def born(pid: int) -> str | None:
    """When a process began, in the system's own terms: the same for as long as it is the same process, and not that of
    another that got its number later. None where there is none."""
    if sys.platform.startswith("linux"):
        fields = _stat(pid)
        return fields[19] if fields is not None else None
    output = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return output.stdout.strip() or None


def _stat(pid: int) -> list[str] | None:
    """What Linux tells of a process from its state on; None where it has ended."""
    fields = _stat_fields(pid)
    return fields if fields and fields[0] not in "ZX" else None


def _stat_fields(pid: int) -> list[str]:
    """The same also of one that has ended and that nobody has waited for; empty where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def children() -> dict[int, tuple[str, bool]]:
    """The children of this process on Linux, with when they began and whether they still run."""
    here = str(os.getpid())
    try:  # at once, however many processes there are
        of_threads = [Path(task.path, "children").read_text() for task in os.scandir("/proc/self/task")]
        pids = [int(pid) for text in of_threads for pid in text.split()]
    except OSError:  # a kernel that keeps no such lists
        pids = [int(e.name) for e in os.scandir("/proc") if e.name.isdigit()]
    by_pid = {pid: _stat_fields(pid) for pid in pids}
    return {
        pid: (fields[19], fields[0] not in "ZX")
        for pid, fields in by_pid.items()
        if fields and fields[1] == here
    }


def _parents() -> dict[int, int]:
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return {pid: int(fields[1]) for pid in pids if (fields := _stat(pid)) is not None}


def _parents_by_ps() -> dict[int, int]:
    output = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in output.stdout.splitlines()]
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 3 and not row[2].startswith("Z")}


def _marked(pids: Iterable[int], mark: bytes) -> set[int]:
    marked = set()
    for pid in pids:
        with suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                marked.add(pid)
    return marked


def alive(pid: int) -> bool:
    """Whether the process is there: running, stopped, or a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def waited_for_cpu(pid: int) -> float | None:
    """Seconds that the main thread of the process was ready to run, and another ran in its place; None where Linux does
    not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Sends the signal to each; one that is stopped is continued, so that it can act on it."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
            if number not in (signal.SIGKILL, signal.SIGCONT, signal.SIGSTOP):
                os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class OtherLoad:
    """What processes that are not ours did meanwhile; None where the machine does not say."""

    cpus: float | None = None
    """how many CPUs they kept busy on average"""
    gpu_percent: int | None = None
    """of the time that the busiest GPU worked before anything of ours ran"""


class Meter:
    """Measures the load of others from now on; the processes that we have started count when they have ended. `environment`:
    of a command, to ask for the NVIDIA GPUs that it may use, which takes a moment."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._gpu = _gpu_percent(environment) if environment is not None else None
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def read(self) -> OtherLoad:
        """Since it was made."""
        busy, seconds = _busy_seconds(), time.monotonic() - self._began
        if busy is None or self._busy is None or seconds <= 0:
            return OtherLoad(None, self._gpu)
        others = max(busy - self._busy - (_own_seconds() - self._own), 0.0)
        return OtherLoad(round(others / seconds, 2), self._gpu)


def _busy_seconds() -> float | None:
    """That all CPUs of the machine together have worked since it started; None where Linux does not say."""
    try:
        values = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        user, nice, system, _, _, irq, soft_irq, steal = map(int, values)
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _gpu_percent(environment: Mapping[str, str]) -> int | None:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    program = program_in(environment.get("PATH", os.defpath), "nvidia-smi")
    if visible == "" or program is None:
        return None
    query = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    query += ["-i", visible] if visible else []
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        told = subprocess.run(
            query, capture_output=True, text=True, timeout=10, env=dict(environment), check=True
        )
        return max(map(int, told.stdout.split()), default=None)
    return None
