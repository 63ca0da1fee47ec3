"""Which of the changed answers a report shows."""

from collections.abc import Sequence
from typing import Any

from tasks.reporting.report import Answer, ChangedItem, Samples


def changed_items(
    baseline: str,
    task: str,
    metric: str,
    baseline_rows: Sequence[dict[str, Any]],
    candidate_rows: Sequence[dict[str, Any]],
    limit: int = 10,
) -> Samples:
    """Up to `limit` items whose score changed, improved and worse in equal shares as far as there are both.

    Rows are an evaluation's records: `id`, `question`, `target`, `completion`, and `score` by metric. Of each kind the
    shown items are spread evenly over the records' order, so that the same records always show the same items.
    """
    others = {row["id"]: row for row in baseline_rows}
    changed = [
        ChangedItem(
            id=str(row["id"]),
            task=task,
            question=str(row["question"]),
            gold=str(row["target"]),
            baseline=Answer(completion=others[row["id"]]["completion"], score=others[row["id"]]["score"][metric]),
            candidate=Answer(completion=row["completion"], score=row["score"][metric]),
        )
        for row in candidate_rows
        if row["id"] in others and row["score"][metric] != others[row["id"]]["score"][metric]
    ]
    improved = [item for item in changed if item.improved]
    worse = [item for item in changed if not item.improved]
    of_worse = min(len(worse), max(limit // 2, limit - len(improved)))
    shown = _spread(improved, limit - of_worse) + _spread(worse, of_worse)
    return Samples(baseline=baseline, improved=len(improved), worse=len(worse), items=shown)


def _spread(items: list[ChangedItem], count: int) -> list[ChangedItem]:
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
