"""From files to problems: whatever the format, a row passes here and comes out right or with a clear error."""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tasks.errors import UserError
from tasks.problems import jsonl
from tasks.problems.problem import Problem
from tasks.problems.splits import fingerprint

Check = Callable[[Problem], str | None]
"""Why a problem cannot be verified, or None: `tasks.rewards.check_gold`, handed in since rewards lie above."""

READERS: Mapping[str, Callable[[Path], Iterator[tuple[int, dict[str, Any]]]]] = {".jsonl": jsonl.rows}
"""By suffix, the function that gives a file's rows with their line numbers."""

EXAMPLES = {
    "id": '"id": "item-1"',
    "prompt": '"prompt": "What is 2+3?"',
    "messages": '"messages": [{"role": "user", "content": "What is 2+3?"}]',
    "answer": '"answer": "5"',
    "verifier": '"verifier": "numeric"',
    "solution": '"solution": "2+3=5\\n#5"',
    "tests": '"tests": [{"input": [2, 3], "output": 5}]',
    "chosen": '"chosen": "2+3=5", "rejected": "2+3=6"',
    "rejected": '"chosen": "2+3=5", "rejected": "2+3=6"',
    "metadata": '"metadata": {"origin": "textbook, page 3"}',
}
"""The fields of a raw row, each with an example of what is right."""

_PENDING = "pending"


def read_source(path: Path, name: str, default_verifier: str, check: Check) -> Iterator[Problem]:
    """The problems of one file, in its order; `name` becomes their source.

    A row with something to verify that names no verifier gets the default one. A row without id gets the first 16
    hex digits of its prompt's fingerprint.

    Raises UserError, naming file, line and field, for the first row that is not right, and for a file that is
    missing, empty or of an unknown format.
    """
    return (problem for _, problem in placed_problems(path, name, default_verifier, check))


def placed_problems(path: Path, name: str, default_verifier: str, check: Check) -> Iterator[tuple[str, Problem]]:
    """As `read_source`, with each problem's place, `file:line`."""
    reader = READERS.get(path.suffix)
    if reader is None:
        raise UserError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; known: {', '.join(READERS)}")
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; data.sources.{name}.path in params.yaml names it")
    first_line: dict[str, int] = {}
    line = 0
    for line, row in reader(path):
        place = f"{path}:{line}"
        problem = _problem(row, place, name, default_verifier)
        if (reason := check(problem)) is not None:
            by_default = "" if row.get("verifier") else f" (the verifier is that of data.sources.{name}.verifier)"
            raise UserError(f"{place}: {reason}{by_default}")
        if row.get("id") is not None and first_line.setdefault(problem.id, line) != line:
            raise UserError(
                f"{place}: field 'id': {problem.id!r} already stands in line {first_line[problem.id]}; "
                "give every row its own id, or leave ids out"
            )
        yield place, problem
    if line == 0:
        raise UserError(f"{path}: holds no rows; each line must be one JSON object, for example {jsonl.EXAMPLE}")


def _problem(row: dict[str, Any], place: str, source: str, default_verifier: str) -> Problem:
    fields = {key: value for key, value in row.items() if value is not None}
    asked_in = "messages" if "messages" in fields else "prompt"
    if asked_in == "messages":
        if "prompt" in fields:
            raise UserError(f"{place}: fields 'prompt' and 'messages' both ask the question; keep one of them")
        if not isinstance(fields["messages"], list):
            raise UserError(_wrong(place, "messages", "must be a list of turns"))
        fields["prompt"] = fields.pop("messages")
    if "source" in fields:
        raise UserError(
            f"{place}: field 'source' is set to the name in params.yaml; where a row comes from can stand in 'metadata'"
        )
    if "answer" in fields or "tests" in fields:
        fields.setdefault("verifier", default_verifier)
    try:
        problem = Problem.model_validate({"id": _PENDING, **fields, "source": source})
    except ValidationError as error:
        raise UserError(_explain(place, asked_in, error.errors()[0])) from None
    return problem if "id" in fields else problem.model_copy(update={"id": fingerprint(problem)[:16]})


def _explain(place: str, asked_in: str, error: ErrorDetails) -> str:
    reason = str(error.get("ctx", {}).get("error", "")) or error["msg"].replace("Input should be", "must be")
    if not error["loc"]:
        return f"{place}: {reason}"
    field = str(error["loc"][0])
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        close = get_close_matches(field, EXAMPLES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{place}: field {field!r} is not known; {hint}There are: {', '.join(EXAMPLES)}"
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return _wrong(place, field, "is missing")
    turn = "".join(f", turn {part + 1}" if isinstance(part, int) else f", {part!r}" for part in error["loc"][2:])
    given = "" if reason == "is empty" else f" (got {_short(error['input'])})"
    return _wrong(place, asked_in if field == "prompt" else field, f"{reason}{given}", turn)


def _wrong(place: str, field: str, reason: str, within: str = "") -> str:
    return f"{place}: field {field!r}{within} {reason}; for example {EXAMPLES[field]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
