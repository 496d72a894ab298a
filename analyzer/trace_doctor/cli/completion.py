"""`--install-completion`: typer writes the start file of a shell anew, as text; here what was in it stays byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_doctor.errors import UsageError
from trace_doctor.files import check_folders, check_link, read_regular, replacing

_START_FILES = (".bashrc", ".zshrc")
_SCRIPTS = (".bash_completions", ".zfunc", ".config/fish/completions")


def install(by_typer: Callable[..., Any], *arguments: Any) -> Any:
    """What the option does. Raises UsageError where a start file is no file, or no text."""
    if not arguments[-1]:  # not asked for: a user may have no home folder
        return by_typer(*arguments)
    with _kept(Path.home()):
        try:
            return by_typer(*arguments)
        except UnicodeDecodeError as error:
            raise UsageError(
                "--install-completion: the start file of your shell is not UTF-8: it is left alone;"
                " --show-completion shows what to add"
            ) from error


@contextmanager
def _kept(home: Path) -> Iterator[None]:
    """Puts what was there back before what was added, the ends of its lines included."""
    for folder in _SCRIPTS:
        check_folders(home / folder / "script")
    before = {path: _bytes(path) for path in map(home.joinpath, _START_FILES) if path.exists()}
    try:
        yield
    finally:
        for path, was in before.items():
            known, now = b"\n".join(was.splitlines()).strip(), path.read_bytes()
            if now != was and known:
                added = now.partition(known)[2].strip()
                begin = was if was.endswith((b"\n", b"\r")) or not added else was + b"\n"
                with replacing(path) as file:
                    file.write(begin + added + b"\n" * bool(added))


def _bytes(path: Path) -> bytes:
    if path.is_symlink():
        check_link(path)
    try:
        return read_regular(path)
    except OSError as error:
        raise UsageError(f"--install-completion: {path}: {error.strerror or 'cannot be read'}") from error
