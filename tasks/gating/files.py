"""Score files: JSON lines of `{"id": ..., "score": ...}`, one per item; an evaluation's records are such files too."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.config.schema import Gate, Primary
from tasks.errors import UserError
from tasks.gating.rules import Records, decide
from tasks.gating.verdict import Verdict

LARGEST = 1e100
ROW = '{"id": "42", "score": 1}'


def compare_files(
    baseline: Path, candidate: Path, *, min_gain: float = 0.01, confidence: float = 0.95, metric: str | None = None
) -> Verdict:
    """The verdict of the primary rule alone on two score files; the baseline goes by its path.

    `metric` is needed where a row's score is an object of several metrics, and names the score otherwise.
    Raises UserError on settings out of range, on what `read_scores` refuses, and when the files' items differ.
    """
    name = metric or "score"
    try:
        gate = Gate(primary=Primary(task="items", metric=name, min_gain=min_gain), confidence=confidence)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{first['loc'][-1]}: {first['msg']}, not {first['input']!r}") from None
    key = ("items", name)
    scores = {path: read_scores(path, metric) for path in (baseline, candidate)}
    return decide({key: scores[candidate]}, {str(baseline): {key: scores[baseline]}}, gate)


def read_records(folder: Path, gate: Gate) -> Records:
    """What the gate's rules need of one model's evaluation records: `folder` holds a file TASK.jsonl for each task."""
    return {(rule.task, rule.metric): read_scores(folder / f"{rule.task}.jsonl", rule.metric) for rule in gate.rules}


def read_scores(path: Path, metric: str | None = None) -> dict[str, float]:
    """The scores of a file by item id. Keys of a row other than `id` and `score` are ignored, blank lines too.

    An id is a string or a whole number, and stands once. A score is a finite number, true or false, or an object of
    such by metric, of which `metric` is taken. Anything else raises UserError with file, line, key and what is right.
    """
    scores: dict[str, float] = {}
    lines: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        item, score = _row(content, metric, f"{path}:{line}")
        if item in scores:
            raise UserError(f"{path}:{line}: id {item!r} was already scored in line {lines[item]}; one row per item")
        scores[item], lines[item] = score, line
    if not scores:
        raise UserError(f"{path}: holds no scores; a score file has one line per item, such as {ROW}")
    return scores


def _row(content: str, metric: str | None, place: str) -> tuple[str, float]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{place}: not a JSON object; a row looks like {ROW}") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: a JSON {type(row).__name__}, not an object; a row looks like {ROW}")
    for key in ("id", "score"):
        if key not in row:
            raise UserError(f"{place}: the key {key!r} is missing; a row looks like {ROW}")
    item, score = row["id"], row["score"]
    if isinstance(item, bool) or not isinstance(item, str | int) or item == "":
        raise UserError(f"{place}: id: {_shown(item)} is neither a string nor a whole number")
    if isinstance(score, dict):
        if metric is None or metric not in score:
            wanted = "name the metric to take" if metric is None else f"there is no metric {metric!r}"
            raise UserError(f"{place}: score: holds {', '.join(map(str, score)) or 'no metric'}; {wanted}")
        score = score[metric]
    if not isinstance(score, int | float) or not _finite(score):
        raise UserError(f"{place}: score: {_shown(score)} is no finite number of at most 1e100, nor true or false")
    return str(item), float(score)


def _finite(score: float) -> bool:
    return -LARGEST <= score <= LARGEST  # NaN is neither, and sums of such scores stay finite


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "…"
