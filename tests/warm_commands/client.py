"""Runs one command in a fork of the server: `python -IS client.py SOCKET ARGUMENTS…`. Imports as little as it can.

Sends the four descriptors (streams and working folder) and what makes this process what it is; passes on the signals
that end programs; ends as the command ends. Where the server says that a fork would be another process than this one, this
one becomes a fresh interpreter.
"""

import _signal
import _socket
import marshal
import os
import resource
import sys

ENDING = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
ADOPTED = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))


def nature() -> tuple[object, ...]:
    """What a fork has from its server and cannot change."""
    python = {k: v for k, v in os.environ.items() if k.startswith("PYTHON") and v and k not in ADOPTED}
    umask = os.umask(0)
    os.umask(umask)
    limits = [resource.getrlimit(number) for number in LIMITS]
    ignored = [n for n in range(1, 32) if _signal.getsignal(n) == _signal.SIG_IGN]
    return python, umask, limits, ignored, sys.getfilesystemencoding()


def become_fresh(arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-c", "from trace_doctor.cli import main; main()", *arguments])


def command(place: str, arguments: list[str]) -> None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(place)
    here = os.open(".", os.O_PATH)
    streams = [(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    request = marshal.dumps((nature(), streams, arguments, dict(os.environb)))
    descriptors = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2, here))
    head = len(request).to_bytes(8, sys.byteorder)
    connection.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    for number in ENDING:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda n, _: connection.send(bytes([n])))
    rest = memoryview(request)
    while rest:
        rest = rest[connection.send(rest) :]
    said = connection.recv(4)
    if said == b"cold":
        become_fresh(arguments)
    code = int.from_bytes(said, sys.byteorder, signed=True)
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if said else 70)


if __name__ == "__main__":
    if None in (sys.stdin, sys.stdout, sys.stderr):
        become_fresh(sys.argv[2:])
    command(sys.argv[1], sys.argv[2:])
