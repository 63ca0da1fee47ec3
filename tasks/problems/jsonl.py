"""JSON lines: one object per line, in UTF-8."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import UserError

EXAMPLE = '{"prompt": "What is 2+3?", "answer": "5"}'


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with its line number, from 1. Blank lines are passed over.

    Raises UserError, naming file and line, for a line that is not one JSON object in UTF-8 with each key once.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}:{number}").rstrip()
            if text:
                yield number, _parse(text, f"{path}:{number}")


def _decode(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: byte {error.start + 1} of the line is not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None


def _parse(text: str, place: str) -> dict[str, Any]:
    expected = f"each line must be one JSON object, for example {EXAMPLE}"
    try:
        row = json.loads(text, object_pairs_hook=_each_key_once, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON at column {error.colno} ({error.msg}); {expected}") from None
    except UnicodeEncodeError:
        raise UserError(f"{place}: a \\u escape is half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise UserError(f"{place}: nested too deeply; {expected}") from None
    except ValueError as error:
        raise UserError(f"{place}: {error}; {expected}") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: found {_JSON_NAMES.get(type(row), 'null')}; {expected}")
    return row


_JSON_NAMES = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
