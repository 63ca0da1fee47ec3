"""The file of a probe's attempts: JSON lines, one probed prompt each."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tasks.errors import UserError
from tasks.probing.findings import ProbedPrompt


def read(path: Path) -> list[ProbedPrompt]:
    """The probed prompts of a file, in its order; raises UserError naming the file, and the line that is none."""
    prompts = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                prompts.append(_read_line(line, f"{path}:{number}"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the file of a probe's attempts") from error
    return prompts


def write(path: Path, prompts: Iterable[ProbedPrompt]) -> None:
    """Write the file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(prompt.model_dump_json() + "\n" for prompt in prompts), encoding="utf-8", newline="\n")
    part.replace(path)


def _read_line(line: bytes, place: str) -> ProbedPrompt:
    try:
        return ProbedPrompt.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the line"
        raise UserError(f"{place}: {key}: {first['msg']}; this is no file of a probe's attempts") from error
