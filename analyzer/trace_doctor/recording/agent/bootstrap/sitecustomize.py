"""Python imports this at start-up in every process of a recorded command; it waits for torch to be imported.

Whatever happens in here, the command runs as it would without. Another `sitecustomize` that this one hides is run.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _record() -> None:
    """Loads trace_doctor from where this file lies, whatever Python's path is, and waits for torch."""
    import importlib.util

    options_file = os.environ.get("TRACE_DOCTOR_RECORD")
    if not options_file:
        return
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
