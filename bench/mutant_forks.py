"""A plugin of pytest for mutants.py: tests are collected once, and each mutant is tried in a fork that has it all behind it.

Reads a line of JSON for each mutant from the descriptor MUTANTS_IN: `file`, `tests` (ids, in the order to run them) and
`limit` in seconds, and answers `passed`, `failed` or `late` to MUTANTS_OUT. The mutant is in the file by then: what is imported later reads it
there, and functions that exist already get their code from it. A closure that exists already keeps its cells: where the mutant
changes what it is closed over, the tests run in a new process instead.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

import pytest


def _codes(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    """(qualified name, first line) -> code of functions, at any depth, in the order of the text."""
    found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    rest = [code]
    while rest:
        one = rest.pop()
        found[one.co_qualname, one.co_firstlineno].append(one)
        rest += [const for const in one.co_consts if isinstance(const, CodeType)]
    return found


def _put(path: Path, before: str, functions: list[FunctionType]) -> bool:
    """Gives the functions of a module the code that its file holds by now; whether each one of them could take it."""
    old = _codes(compile(before, str(path), "exec", dont_inherit=True))
    new = _codes(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True))
    for function in functions:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        if function.__code__ not in old[key] or old[key] == new[key]:
            continue
        if len(old[key]) != len(new[key]):
            return False
        now = new[key][old[key].index(function.__code__)]
        if now.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = now
    return True


def _any_fails(items: Sequence[pytest.Item]) -> bool:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return True
    return False


def _run_anew(config: pytest.Config, tests: Sequence[str]) -> NoReturn:
    """Becomes a new process of pytest, which imports the mutant."""
    options = [arg for arg in config.invocation_params.args if arg not in config.args]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-x", *map(str, options), *tests])


def _outcome(pid: int, limit: float) -> str:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "failed" if status else "passed"
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "late"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if "MUTANTS_IN" not in os.environ:
        return None
    items = {item.nodeid: item for item in session.items}
    functions: dict[str, list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType):
            functions[thing.__code__.co_filename].append(thing)
    texts = {
        path: Path(path).read_text(encoding="utf-8") for path in functions if path.startswith(os.getcwd())
    }
    gc.freeze()
    with (
        os.fdopen(int(os.environ.pop("MUTANTS_IN")), "r") as orders,
        os.fdopen(int(os.environ.pop("MUTANTS_OUT")), "w") as answers,
    ):
        for line in orders:
            order = json.loads(line)
            tests = [test for test in order["tests"] if test in items]
            pid = os.fork()
            if not pid:
                failed = True
                try:
                    os.setpgid(0, 0)
                    path = os.path.join(os.getcwd(), order["file"])
                    if path in texts and not _put(Path(path), texts[path], functions[path]):
                        _run_anew(session.config, tests)
                    failed = _any_fails([items[test] for test in tests])
                finally:
                    os._exit(failed)
            print(_outcome(pid, order["limit"]), file=answers, flush=True)
    session.items = []
    return True
