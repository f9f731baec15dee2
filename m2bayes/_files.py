"""Files as a whole: what may be opened, JSON of one meaning, a hash, and writing all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from m2bayes.errors import RecordError

_ADVICE = "; use sys.set_int_max_str_digits() to increase the limit"  # no use to a reader


def shown(name: str | os.PathLike[str]) -> str:
    """Name of a file for a message of one line: quoted and escaped where it is not printable."""
    text = os.fspath(name)
    return text if text.isprintable() else ascii(text)


def reason(fault: Exception) -> str:
    """What went wrong, in one line and without the path, which the message names already."""
    said = fault.strerror if isinstance(fault, OSError) else None
    return " ".join((said or str(fault)).removesuffix(_ADVICE).split()) or type(fault).__name__


def regular(path: Path, error: type[Exception]) -> None:
    """Raise `error` unless `path` is a regular file: reading a pipe would never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise error(f"{shown(path)}: no such file") from None
    except (OSError, ValueError) as fault:
        raise error(f"{shown(path)}: cannot be read: {reason(fault)}") from None
    if stat.S_ISDIR(mode):
        raise error(f"{shown(path)}: cannot be read: it is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise error(f"{shown(path)}: cannot be read: no regular file; copy its content into one")


def read_json(path: Path, error: type[Exception]) -> dict[str, Any]:
    """JSON object of a file, or `error` with one line that says what is wrong with it."""
    regular(path, error)
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise ValueError("the file is empty")
        content = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except OSError as fault:
        raise error(f"{shown(path)}: cannot be read: {reason(fault)}") from None
    except UnicodeDecodeError:
        raise error(f"{shown(path)}: no text in UTF-8; unpack or convert it") from None
    except (ValueError, RecursionError) as fault:
        raise error(f"{shown(path)}: not valid JSON: {reason(fault)}") from None
    if not isinstance(content, dict):
        found = "null" if content is None else f"a {type(content).__name__}"
        raise error(f"{shown(path)}: expected a JSON object, {{…}}, found {found}")
    return content


def read_toml(path: Path, error: type[Exception]) -> dict[str, Any]:
    """Tables of a TOML file, or `error` with one line that says what is wrong with it."""
    regular(path, error)
    try:
        with path.open("rb") as binary:
            return tomllib.load(binary)
    except (OSError, ValueError, RecursionError) as fault:
        raise error(f"{shown(path)}: cannot be read: {reason(fault)}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {key!r} is given twice; keep one")
    return content


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number; give a finite one")


def check_record(content: dict[str, Any], path: Path) -> None:
    """Refuse a posterior's record whose nested values are not what the code will read."""
    where = shown(path)
    file = content["draws"].get("file")
    if not all(isinstance(content["draws"].get(key), str) for key in ("file", "sha256")):
        raise RecordError(f"{where}: draws must name file and sha256")
    if Path(file).name != file:
        raise RecordError(f"{where}: draws.file is {file!r}: name a file beside the record")
    for source in content["data"] or [None]:
        keys = source if isinstance(source, dict) else {}
        if not all(isinstance(keys.get(key), str) for key in ("role", "name", "sha256")):
            raise RecordError(f"{where}: each of data must name role, name and sha256")
    roles = [source["role"] for source in content["data"]]
    if "times" not in roles or len(set(roles)) < len(roles):
        raise RecordError(f"{where}: data must hold the role times, and each role once")
    numbers = [*content["checks"].values(), *content["fingerprint"]]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise RecordError(f"{where}: checks and fingerprint must hold numbers")


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as fault:
        raise RecordError(f"{shown(path)}: cannot be read: {reason(fault)}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of its final name whole or not at all, whoever else writes it meanwhile."""
    part = path.with_name(f"{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as handle:
            handle.write(content)
        part.replace(path)
    except OSError as fault:
        raise RecordError(
            f"{shown(path)}: cannot be written: {reason(fault)}; check the folder and its space"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
