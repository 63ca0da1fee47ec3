"""What an lm-eval task over prepared problems needs: its items, and the verdict on an answer.

The verdict comes from `tasks.rewards.verify`, the code that also rewards completions in GRPO, so that a model is
measured by what it was trained on.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import UserError
from tasks.problems import Problem, read_split
from tasks.rewards import Status, verify

if TYPE_CHECKING:
    from datasets import DatasetDict


def dataset(prepared: Path, source: str) -> "DatasetDict":
    """The eval problems of one source as lm-eval's `custom_dataset` wants them: a split named `test`.

    Columns: id, question (the user's turn), target (the expected answer), problem (the whole row as JSON).
    Raises UserError where the source has no eval problems, or one that cannot be asked in one turn or verified.
    """
    from datasets import Dataset, DatasetDict

    problems = read_split(prepared, "eval")
    rows = [_row(problem) for problem in problems if problem.source == source]
    if not rows:
        counts = Counter(problem.source for problem in problems)
        present = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())) or "none at all"
        raise UserError(f"{prepared / 'eval.jsonl'} has no problems of source {source!r}; it has: {present}")
    return DatasetDict({"test": Dataset.from_list(rows)})


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """lm-eval's `process_results` for one completion: `acc`, the verifier's score, and `answered`, 1 if it found one.

    Raises RuntimeError when the verifier itself failed: such an item is not scored as wrong.
    """
    verdict = verify(results[0], Problem.model_validate_json(doc["problem"]))
    if verdict.score is None:
        raise RuntimeError(f"the verifier failed on item {doc['id']}: {verdict.detail}")
    return {"acc": verdict.score, "answered": float(verdict.status is not Status.NO_ANSWER)}


def _row(problem: Problem) -> dict[str, str]:
    place = f"eval problem {problem.id!r} of source {problem.source!r}"
    roles = [message["role"] for message in problem.messages]
    if roles != ["user"]:
        raise UserError(f"{place} has the messages {', '.join(roles)}; a task takes problems of one user turn only")
    if problem.verifier is None:
        raise UserError(f"{place} names no verifier, so there is nothing to measure; give it an `answer`")
    return {
        "id": problem.id,
        "question": problem.messages[0]["content"],
        "target": problem.answer or "",
        "problem": problem.model_dump_json(exclude_defaults=True),
    }
