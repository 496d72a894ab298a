"""Build hook: compiles the optional decoder in C where there is a compiler. No failure of it fails an install."""

from __future__ import annotations

import importlib.util
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = "trace_doctor/loaders/_accelerator"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling is there only while it builds
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root, "analyzer", _FOLDER)
        spec = importlib.util.spec_from_file_location("build_accelerator", sources / "build.py")
        assert spec is not None and spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        if version == "editable":  # modules are imported from the sources, and so is the library
            target = sources
        else:
            self._scratch = tempfile.TemporaryDirectory()
            target = Path(self._scratch.name)
        problem = build.build(target)
        if problem:
            self.app.display_warning(f"The optional decoder in C is left out: {problem}")
            return
        if version != "editable":
            for name in (build.LIBRARY, build.DIGEST):
                build_data["force_include"][str(target / name)] = f"{_FOLDER}/{name}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # any Python: ctypes loads the library
