"""Waits in a process of a recorded command for torch to be imported.

Whatever happens in here, the command runs as it would without. Another `sitecustomize` that this one hides is run.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _record() -> None:
    """Loads the recorder with the standard library's modules, and leaves to the script those that it has of its own under
    the name of one: what the recorder has loaded would be in their way."""
    options_file = os.environ.get("TRACE_DOCTOR_RECORD")
    if not options_file:
        return
    entries = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    argument = (getattr(sys, "argv", None) or [""])[0]  # Python puts the script's folder on its path later
    here = os.curdir if argument in ("", "-c", "-m") else os.path.dirname(os.path.realpath(argument))
    theirs = {name for folder in {here, *entries} - {_HERE} for name in _modules(folder)}
    path, before = sys.path[:], {*sys.modules}
    sys.path[:] = [p for p in path if os.path.abspath(p) not in entries]
    try:
        _load(options_file, whole=bool(theirs))
    finally:
        sys.path[:] = path
        for name in {*sys.modules} - before:
            if name.partition(".")[0] in theirs:
                del sys.modules[name]


def _modules(folder: str) -> list[str]:
    """Names of the standard library's that modules in a folder have."""
    try:
        names = {*os.listdir(folder)}
    except OSError:
        return []
    return [
        name
        for name in getattr(sys, "stdlib_module_names", ())  # Python 3.10 and later
        if f"{name}.py" in names
        or (name in names and os.path.isfile(os.path.join(folder, name, "__init__.py")))
    ]


def _load(options_file: str, whole: bool) -> None:
    """From where this file lies, whatever Python's path is, and waits for torch. `whole`: nothing is loaded later."""
    import importlib.util

    if "trace_doctor" not in sys.modules:
        package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
        spec = importlib.util.spec_from_file_location(
            "trace_doctor", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["trace_doctor"] = module
        spec.loader.exec_module(module)
    from trace_doctor.recording import process_log
    from trace_doctor.recording.agent.waiting import wait_for_torch

    if os.environ.get("TRACE_DOCTOR_COPY"):
        from trace_doctor.recording.agent import copy_up

        copy_up.install(os.environ["TRACE_DOCTOR_COPY"])
    if whole:
        importlib.import_module("trace_doctor.recording.agent.session")
    process_log.say(os.path.dirname(options_file), process_log.STARTED)
    wait_for_torch(options_file)


def _run_hidden() -> None:
    """The sitecustomize that Python would have found without this one."""
    import importlib.machinery
    import importlib.util

    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _record()
except Exception as _error:
    sys.stderr.write(f"trace-doctor: this process is not recorded: {type(_error).__name__}: {_error}\n")
_run_hidden()
