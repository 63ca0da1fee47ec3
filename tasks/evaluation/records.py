"""From lm-eval's samples to records that two models can be compared by, item by item.

A metric goes by lm-eval's name for it: `acc` where a task has one filter, `exact_match,strict-match` where it has
several.
"""

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

from tasks.errors import UserError


@dataclass(frozen=True)
class Record:
    """What one model did on one item."""

    id: str
    """The item's own id where the task's items have unique ones, else its place in the dataset."""
    doc_hash: str
    prompt_hash: str
    score: dict[str, float]
    """Every metric that is a number for a single item."""
    question: str
    """What the task asks (lm-eval's doc_to_text), without chat template, description or examples."""
    prompt: str
    """What the model read, with all of these."""
    completion: str
    """What it wrote; for tasks that score given answers, their log-likelihoods as JSON."""
    target: str


def records(samples: list[dict[str, Any]], question: Callable[[Any], Any]) -> list[Record]:
    """The records of one model on one task, in the dataset's order, from lm-eval's samples (a row per item and filter).

    `samples` are lm-eval's: dicts with doc_id, doc, filter, metrics, arguments, resps, target and a key per metric.
    `question` gives what is asked in a doc: the task's `doc_to_text`.
    """
    by_item: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        by_item.setdefault(sample["doc_id"], []).append(sample)
    several = len({sample["filter"] for sample in samples}) > 1
    ids = _ids([rows[0] for rows in by_item.values()])
    return [
        _record(rows, item_id, several, str(question(rows[0]["doc"])))
        for rows, item_id in zip(by_item.values(), ids, strict=True)
    ]


def scores(results: dict[str, Any], count: int) -> dict[str, float]:
    """lm-eval's aggregates of one task by metric, and `n`, the number of items they are over."""
    metrics = {
        (metric, filter_name): float(value)
        for key, value in results.items()
        for metric, comma, filter_name in [key.rpartition(",")]
        if comma and isinstance(value, Real)
    }
    several = len({filter_name for _, filter_name in metrics}) > 1
    return {"n": count, **{_key(metric, name, several): value for (metric, name), value in metrics.items()}}


def check_prompts(task: str, by_model: dict[str, list[tuple[int, str]]]) -> None:
    """Check that all models read the same prompts, given as item and prompt; raises UserError for one that differs."""
    for one, other in pairwise(by_model):
        for (item, prompt), (_, other_prompt) in zip(by_model[one], by_model[other], strict=True):
            if prompt != other_prompt:
                raise UserError(
                    f"task {task}: models {one} and {other} read different prompts for item {item}, so their scores "
                    f"cannot be compared; give them the same chat template: {prompt!r} and {other_prompt!r}"
                )


def check_pairs(task: str, by_model: dict[str, list[Record]], own_prompt: Set[str]) -> None:
    """Check that all models were asked the same items in the same order.

    All but those in `own_prompt` must also have read the same prompts. Raises RuntimeError otherwise.
    """
    for one, other in pairwise(by_model):
        for a, b in zip(by_model[one], by_model[other], strict=True):
            if (a.doc_hash, a.question) != (b.doc_hash, b.question):
                raise RuntimeError(f"task {task}: models {one} and {other} were given different items ({a.id}, {b.id})")
    for one, other in pairwise(name for name in by_model if name not in own_prompt):
        for a, b in zip(by_model[one], by_model[other], strict=True):
            if a.prompt_hash != b.prompt_hash:
                raise RuntimeError(f"task {task}: models {one} and {other} read different prompts for item {a.id}")


def _record(rows: list[dict[str, Any]], item_id: str, several: bool, question: str) -> Record:
    score = {_key(metric, row["filter"], several): row[metric] for row in rows for metric in row["metrics"]}
    item = rows[0]
    return Record(
        id=item_id,
        doc_hash=item["doc_hash"],
        prompt_hash=item["prompt_hash"],
        score={metric: float(value) for metric, value in score.items() if isinstance(value, Real)},
        question=question,
        prompt=str(item["arguments"][0][0]),
        completion=_completion(item["resps"]),
        target=str(item["target"]),
    )


def _key(metric: str, filter_name: str, several: bool) -> str:
    return f"{metric},{filter_name}" if several else metric


def _ids(items: Iterable[dict[str, Any]]) -> list[str]:
    items = list(items)
    own = [str(item["doc"]["id"]) for item in items if "id" in item["doc"]]
    return own if len(set(own)) == len(items) else [str(item["doc_id"]) for item in items]


def _completion(responses: list[list[Any]]) -> str:
    match responses:
        case [[str(text)]]:
            return text
        case _:
            return json.dumps(responses)
