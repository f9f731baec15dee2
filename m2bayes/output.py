"""Files and folders that a command was told to write: checked before the work is begun."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m2bayes._files import reason, shown
from m2bayes.errors import DataError


def file_to_write(out: str, *, option: str = "--out") -> Path:
    """Path of a regular file that is there or can be made, symbolic links followed.

    Raises
    ------
    DataError
        For a folder, a device, a pipe, a folder that does not exist, or a name that is too long.
    """
    path = Path(os.path.realpath(out))
    problem = "names a folder; name a file" if out.endswith(("/", os.sep)) else ""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            problem = "is a folder; name a file"
        elif not stat.S_ISREG(mode):
            problem = "is no regular file; name another"
        elif not os.access(path, os.W_OK):
            problem = "is write-protected; name another"
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise DataError(
                f"{option} {shown(out)}: no such folder; make it, or name another"
            ) from None
    except (OSError, ValueError) as error:
        problem = f"{reason(error)}; name another file"
    if not problem and not os.access(path.parent, os.W_OK | os.X_OK):
        problem = "its folder is write-protected; choose another"
    if problem:
        raise DataError(f"{option} {shown(out)}: cannot be written: {problem}")
    return path


@contextmanager
def folder_to_write(out: str) -> Iterator[Path]:
    """Make a folder before the work; take it away again if the work fails and left it empty.

    Raises
    ------
    DataError
        If it cannot be made or written.
    """
    path = Path(out)
    made: list[Path] = []
    try:
        made = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "write-protected")
    except (OSError, ValueError) as error:
        _take_away(made)
        text = f"not a folder that can be written: {reason(error)}; choose another"
        raise DataError(f"--out {shown(out)}: {text}") from None
    try:
        yield path
    except BaseException:
        _take_away(made)
        raise


def _take_away(made: list[Path]) -> None:
    """Remove folders, the innermost first, as far as they are empty."""
    for path in made:
        with suppress(OSError):
            path.rmdir()
