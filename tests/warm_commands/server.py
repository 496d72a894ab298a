"""Imports trace-doctor and forks for each command of a client: `python -c THIS_TEXT SOCKET CLIENT`. Ends with its standard input.

It runs nothing of what it imports, so that a fork begins as a fresh process does, with nothing remembered. A client whose
process is of another nature than the server's is told so and gets no fork.
"""

import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys

import trace_doctor
import trace_doctor_rules
from trace_doctor.cli import main

LEFT_OUT = (
    "trace_doctor.recording.agent",
    "trace_doctor.hta",
)  # for recorded scripts; for what is not installed


def import_all():
    for package in (trace_doctor, trace_doctor_rules):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def received(connection):
    """A request and its four descriptors."""
    head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(16), socket.MSG_WAITALL)
    descriptors = [
        int.from_bytes(data[at : at + 4], sys.byteorder)
        for _, _, data in ancillary
        for at in range(0, len(data), 4)
    ]
    if len(head) < 8 or len(descriptors) < 4:
        return None, descriptors
    data = connection.recv(int.from_bytes(head, sys.byteorder), socket.MSG_WAITALL)
    return marshal.loads(data), descriptors


def become(descriptors, coding, arguments, environment):
    """What a fresh process of the client would be."""
    *streams, here = descriptors
    os.fchdir(here)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    os.environb.clear()
    os.environb.update(environment)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = opened(number, *coding[number])
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[1:] = arguments


def opened(number, encoding, errors):
    """A standard stream, as the interpreter opens it."""
    file = io.FileIO(number, "wb" if number else "rb", closefd=False)
    unbuffered = bool(number and os.environ.get("PYTHONUNBUFFERED"))
    buffer = file if unbuffered else io.BufferedWriter(file) if number else io.BufferedReader(file)
    return io.TextIOWrapper(
        buffer, encoding, errors, newline="\n" if number else None,
        line_buffering=not unbuffered and (number == 2 or file.isatty()), write_through=unbuffered,
    )  # fmt: skip


def serve(listening, nature):
    """Returns in each fork, and never in the server."""
    running = {}
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listening, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == 0:
                for child, _ in running.values():
                    os.kill(child, signal.SIGKILL)
                os._exit(0)
            elif ready == listening.fileno():
                connection, _ = listening.accept()
                request, descriptors = received(connection)
                if request is None:
                    connection.close()
                    continue
                its_nature, *rest = request
                if its_nature != nature:
                    connection.send(b"cold")
                elif not (child := os.fork()):
                    for each in [listening, connection, *(c for _, c in running.values())]:
                        each.detach()  # closed below, and not once more when something else has their number
                    become(descriptors, *rest)
                    return
                else:
                    running[os.pidfd_open(child)] = running[connection.fileno()] = child, connection
                    for each in list(running)[-2:]:
                        poll.register(each, select.POLLIN)
                for descriptor in descriptors:
                    os.close(descriptor)
            elif ready in running:
                child, connection = running[ready]
                ended = ready != connection.fileno()
                if not ended and (numbers := connection.recv(64)):
                    for number in numbers:
                        os.kill(child, number)
                    continue
                if not ended:  # the client is no more
                    os.kill(child, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                if ended:
                    connection.send(code.to_bytes(4, sys.byteorder, signed=True))
                for each in [each for each, (one, _) in running.items() if one == child]:
                    poll.unregister(each)
                    del running[each]
                    if each != connection.fileno():
                        os.close(each)
                connection.close()


client = runpy.run_path(sys.argv[2])
import_all()
gc.freeze()
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
door.listen(64)
print("ready", flush=True)
serve(door, client["nature"]())
main()
