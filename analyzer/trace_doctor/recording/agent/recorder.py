"""One rank, one phase after the other."""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from trace_doctor.recording import machine, whole_files
from trace_doctor.recording.agent.home import Home
from trace_doctor.recording.agent.losses import Losses, total
from trace_doctor.recording.agent.memory import MemoryHistory, peak_allocated
from trace_doctor.recording.agent.periodic_work import PeriodicWork
from trace_doctor.recording.agent.status import Status, StepTable, loaded_files, settings_in_force
from trace_doctor.recording.agent.timing import Compilations, Moment, between, now
from trace_doctor.recording.agent.tracing import OtherProfilers, Tracer
from trace_doctor.recording.options import Phase, RecordOptions, Role, capture_file
from trace_doctor.recording.plan import TRACED

FLUSH_SECONDS = 1.0
"""rows wait no longer than this for the file, so that a script that is killed leaves them"""
STACKS_COST = 6
"""about how many times larger the trace of a step is with stacks and shapes"""
STEP_END = "at the step's end"
TRIES = 3
"""a trace is begun so often, when steps that compile something come in between"""


class Deciding(Protocol):
    """A plan, a leader or a follower."""

    def restart(self) -> None:
        """What came before was no training."""

    def prolong(self, step: int, steps: int) -> bool:
        """Whether the phase of `step` lasts so many steps longer."""

    def after(self, step: int, seconds: float | None, compiled: bool, elapsed: float) -> Phase | None:
        """The phase of the next step; None: enough is recorded. `seconds`: of the step, `elapsed`: since the first one."""


@dataclass
class Row:
    """A step that is over; its time and its losses are still in the device's queue."""

    step: int
    phase: Phase
    begin: Moment
    end: Moment
    losses: list[Any]


class Recorder:
    """Gets to know the end of each step; the work in between is never part of a step's time."""

    def __init__(
        self,
        torch: Any,
        options: RecordOptions,
        status: Status,
        plan: Deciding,
        losses: Losses,
        others: OtherProfilers,
        memory: MemoryHistory,
        begin: Moment,
        optimizers: Callable[[], int],
        step: int = 0,
    ) -> None:
        """`begin`: of the first step, which has the number `step`. `optimizers`: how many have been seen to step."""
        self.torch = torch
        self.options = options
        self.status = status
        self.table = StepTable(status.folder, status.rank)
        self.plan = plan
        self.losses = losses
        self.others = others
        self.memory = memory
        self.optimizers = optimizers
        self.step = step
        self.phase: Phase | None = "warmup"
        self._first = self._begin = self._phase_begin = begin
        self._phase_step = step
        self._phase_note = ""
        self._rows: list[Row] = []
        self._phase_ms: list[float] = []
        self._flushed = begin.host
        self._backwards: list[int] = []
        self._compilations = Compilations(sys.modules)
        if step:
            self._compilations.new()  # what was compiled before is no matter of the next step
        self._tracer: Tracer | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._tries = 0
        self._again = False
        self._home = Home()
        self._home.settle()
        self._periodic = PeriodicWork(observes=bool({*TRACED} & {*options.phases}))
        self._periodic.phase("warmup")
        self._threads_note = ""
        self._used = 0
        self._step_bytes = 0
        others.give_way = self._give_way

    # -- the end of a step

    def boundary(self) -> bool:
        """A step is over. Whether enough is recorded."""
        if self.phase is None:
            return True
        end = now(self.torch)
        self._look_at_thread()
        losses, backwards = self.losses.take()
        self._rows.append(Row(self.step, self.phase, self._begin, end, losses))
        self._backwards.append(backwards)
        compiled = self._compilations.new()
        if compiled:
            self.status.manifest["compile_steps"].append(self.step)
        seconds = end.host - self._begin.host if self.step else None
        if compiled and self.phase == "detailed":
            self._trace_again()
        self._periodic.step_ended(self.step, seconds)
        phase = self.plan.after(self.step, seconds, compiled, end.host - self._first.host)
        if phase is None and self.phase == "timing" and (more := self._periodic.steps_to_wait(self.step)):
            more = min(more, self.options.last_steps - self.step - 1)
            if more > 0 and self.plan.prolong(self.step, more):
                phase = self.phase
        if phase != self.phase:
            self._periodic.phase(phase)
            self._leave("complete" if self.phase != "warmup" else self._why_settled())
        self.step += 1
        if phase != self.phase:
            self._enter(phase)
        else:
            self._within()
        if end.host - self._flushed > FLUSH_SECONDS:
            self._flush()
        self._begin = now(self.torch)
        return self.phase is None

    def _look_at_thread(self) -> None:
        """The profiler belongs to a thread: a trace across several has holes, and nobody but its own thread can end it."""
        if not self._home.here:
            self._threads_note = "left out: steps come from several threads"
        if self._threads_note and self._tracer is not None and self._tracer.here:
            self._stop_tracer()

    def _why_settled(self) -> str:
        plan = getattr(self.plan, "plan", self.plan)
        return str(getattr(plan, "why_settled", "")) or "as the first rank decided"

    def restart(self) -> None:
        """What ends a step has changed."""
        self.plan.restart()

    def let_go(self) -> None:
        """Nothing of ours is on any more: a process must not end under a profiler."""
        self.phase = None
        self._periodic.phase(None)
        self.losses.before_backward = None
        try:
            self._stop_tracer()
        finally:
            self.memory.stop()

    def discard(self) -> None:
        """Nothing of this counts: leaves no capture behind."""
        self.let_go()
        whole_files.check(self.status.folder)
        for name in self.status.manifest["files"].values():
            (self.status.folder / name).unlink(missing_ok=True)
        self.table.path.unlink(missing_ok=True)
        self.status.path.unlink(missing_ok=True)

    # -- phases

    def _enter(self, phase: Phase | None) -> None:
        self.phase = phase
        self._phase_step = self.step
        self._phase_note = ""
        self._phase_ms = []
        self.losses.keep = phase in ("warmup", "timing")
        if phase is None:
            self.finish("enough")
            return
        if phase in TRACED:
            self._tries = 1
            self._warm_profiler(phase)
        elif phase == "timing" and self.others.busy:
            self.status.warn("timing: the script's own profiler was running: its cost is in the step times")
        elif phase == "memory":
            self.memory.start()
            self.losses.before_backward = lambda: self.memory.at("before backward")
        self._phase_begin = now(self.torch)
        self.status.write()

    def _within(self) -> None:
        """The next step belongs to the same phase."""
        if self._again and self.phase is not None:
            self._again = False
            self._phase_step = self.step
            self._warm_profiler(self.phase)
        elif self._tracer is not None and self._tracer.here:
            if not self._tracer.running:
                self._tracer.start(self.step)
            elif not self._enough_of_it(self._tracer):
                self._tracer.step(self.step)
        elif self.phase == "memory":
            self.memory.at(STEP_END)
            if self.step == self._phase_step + 1:
                self.memory.take_peak(self.status.folder / capture_file(self.status.rank, "peak"))

    def _leave(self, why: str) -> None:
        phase = self.phase
        if phase is None:
            return
        begin, end = self._phase_begin, now(self.torch)
        seconds = (end.host - begin.host, end.cpu - begin.cpu)
        if phase in TRACED:
            self._write_trace(phase)
        elif phase == "memory":
            self._end_memory()
        elif phase == "warmup":
            self.memory.stop()
            machine.write(self.status.folder)
        self._flush(wait=True)
        skipped = 1 if phase in TRACED else 0
        passes = self._backward_passes()
        self.status.manifest["backward_passes_per_step"] = passes
        self.status.manifest["accumulation"] = passes if self.optimizers() <= 1 else None
        self.status.phase_ended(
            phase, (self._phase_step, self.step), seconds, self._phase_ms[skipped:], self._phase_note or why
        )

    def _backward_passes(self) -> int | None:
        counts = [n for n in self._backwards[1:] or self._backwards if n]
        return round(statistics.median(counts)) if counts else None

    # -- traces

    def _warm_profiler(self, phase: Phase) -> None:
        if self._threads_note or self.others.busy:
            self._phase_note = self._threads_note or "left out: the script's own profiler was running"
            return
        detailed = phase == "detailed"
        stacks = detailed and self.options.stacks
        if stacks and (sys.getprofile() or getattr(threading, "_profile_hook", None)):
            stacks = False  # there is one such function, and with stacks it would be torch's
            self.status.warn("detailed: without stacks: the script has a profile function (sys.setprofile)")
        path = self.status.folder / capture_file(self.status.rank, phase)  # type: ignore[arg-type]
        self._tracer = Tracer(self.torch, path, shapes=detailed and self.options.shapes, stacks=stacks)
        self.others.warm(self._tracer)
        if detailed:  # with stacks one compilation makes millions of events
            self._unwatch = self._compilations.watch_beginnings(lambda _: self._stop_tracer())

    def _trace_again(self) -> None:
        """The step that is over has compiled something: stacks are to be of others, unless all of them are so.

        The light trace keeps such steps: behind warm-up they are what the script is slow by."""
        if self._tries < TRIES and self.plan.prolong(self.step, self.step - self._phase_step + 1):
            self._tries += 1
            self._stop_tracer()
            self._again = True

    def _stop_tracer(self) -> None:
        """Without writing what it has recorded. Whatever fails, the profiler is off."""
        try:
            self._stop_watching()
        finally:
            tracer, self._tracer = self._tracer, None
            if tracer is not None:
                tracer.stop()

    def _stop_watching(self) -> None:
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()

    def _enough_of_it(self, tracer: Tracer) -> bool:
        """Ends the trace early when the next step would not fit on the disk any more."""
        step_bytes = self._step_bytes * (STACKS_COST if self.phase == "detailed" else 1)
        if (tracer.steps + 1) * step_bytes <= self._room():
            return False
        self._phase_note = f"{tracer.steps} steps traced: more would not fit into max_mb"
        tracer.stop()
        return True

    def _room(self) -> float:
        return self.options.max_mb * 1e6 - self._used

    def _write_trace(self, phase: Phase) -> None:
        self._stop_watching()
        tracer, why = self._tracer, self._threads_note
        if tracer is not None and not tracer.here:
            why = why or "left out: it ended in another thread than it began in"
        if tracer is None or not tracer.running or why:
            self._phase_note = self._phase_note or why or "left out: steps compiled something"
            self.status.warn(f"{phase}: not captured: {self._phase_note}")
            return
        tracer.stop()
        self._tracer = None
        if tracer.stacks_end:
            self.status.warn(f"{phase}: stacks end where the script set a profile function (sys.setprofile)")
        room = self._room()
        try:
            size, step_count = tracer.write(room)
        except OSError as error:  # the disk is full: what takes less of it may still be recorded
            self._phase_note = f"the trace could not be written: {error.strerror or type(error).__name__}"
            self.status.warn(f"{phase}: not captured: {self._phase_note}")
            return
        if phase == "light":
            self._step_bytes = size // max(step_count or tracer.steps, 1)
        if step_count:
            self._used += size
            self.status.manifest["files"][phase] = tracer.path.name
            if step_count < tracer.steps:
                self._phase_note = (
                    f"{step_count} of {tracer.steps} traced steps kept: more would not fit into max_mb"
                )
        else:
            self._phase_note = f"trace of {tracer.steps} steps left out: {size / 1e6:.3g} MB, and {room / 1e6:.3g} MB were left"
            self.status.warn(f"{phase}: not captured: {self._phase_note}; raise max_mb")

    def _give_way(self) -> None:
        """The script starts a profiler of its own: there can be only one."""
        if self._tracer is not None:
            self._phase_note = "stopped: the script started a profiler of its own"
            self._stop_tracer()

    # -- memory

    def _end_memory(self) -> None:
        self.losses.before_backward = None
        self.memory.at(STEP_END)
        self.memory.peak_path = None
        if (self.status.folder / capture_file(self.status.rank, "peak")).exists():
            self._count_file("peak")
        self._keep_snapshot("boundary")
        self.memory.stop()

    def _keep_snapshot(self, role: Role) -> None:
        self.memory.dump(self.status.folder / capture_file(self.status.rank, role))
        self._count_file(role)

    def _count_file(self, role: Role) -> None:
        name = capture_file(self.status.rank, role)
        whole_files.check(self.status.folder)
        size = (self.status.folder / name).stat().st_size
        if size > self._room():
            (self.status.folder / name).unlink()
            self.status.warn(
                f"{role}: not captured: the snapshot of {size / 1e6:.3g} MB is too large; raise max_mb"
            )
            return
        self._used += size
        self.status.manifest["files"][role] = name

    def snapshot_of_failure(self, role: Role) -> None:
        """What the allocator holds while an exception goes up; the first of its kind stays."""
        if self.memory.possible and role not in self.status.manifest["files"]:
            self._keep_snapshot(role)

    # -- rows

    def _flush(self, wait: bool = False) -> None:
        """Writes the rows whose work the device has done; with `wait` all."""
        if wait and any(r.end.event is not None for r in self._rows):
            self.torch.cuda.synchronize()
        ready = []
        while self._rows and self._rows[0].end.reached:
            row = self._rows.pop(0)
            milliseconds = between(row.begin, row.end) * 1e3
            if row.phase == self.phase:
                self._phase_ms.append(milliseconds)
            self._periodic.measured(row.step, row.phase, milliseconds)
            ready.append((row.step, row.phase, milliseconds, total(row.losses)))
        if ready:
            self.table.add(ready)
        self._flushed = now(self.torch).host

    def finish(self, reason: str) -> None:
        """Writes what there is. The first call counts."""
        if self.status.manifest["ended"] is not None:
            return
        self.status.manifest["ended"] = reason
        self._periodic.phase(None)
        self.step -= 1  # the last that came to its end
        try:
            if self.step >= self._phase_step:
                self._leave(reason if reason == "recorder failed" else f"the script ended: {reason}")
            self._stop_tracer()
            self._flush(wait=True)
            self.status.manifest["periodic"] = self._periodic.summary(self.status.manifest["compile_steps"])
            self.status.manifest["peak_allocated_bytes"] = peak_allocated(self.torch)
            if self.options.imports:
                self.status.manifest["imports"] = loaded_files()
            if self.options.lines:
                self.status.manifest["settings"] = settings_in_force(self.torch)
        finally:
            self.phase = None
            self.status.write()
