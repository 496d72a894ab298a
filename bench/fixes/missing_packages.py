"""Stand-ins for packages that are not installed: modules in which every name is there and does nothing."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Anything(type):
    """A class whose attributes, calls and items are such classes, so that it can be a base, a decorator or a value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if cls.__dict__.get("__module__") not in (None, __name__):
            return super().__call__(*given, **named)
        return given[0] if len(given) == 1 and not named and callable(given[0]) else Anything("made", (), {})

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class Stand(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__module__": None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so only for what is missing; the standard library and torch have no stand-in."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        own = sys.stdlib_module_names | {"torch", "numpy"}
        return (
            None if name.split(".")[0] in own else importlib.machinery.ModuleSpec(name, self, is_package=True)
        )

    def create_module(self, spec: Any) -> Stand:
        return Stand(spec.name)

    def exec_module(self, module: Any) -> None:
        pass
