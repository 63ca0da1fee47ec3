"""The prepared dataset: a folder of `train.jsonl`, `dev.jsonl`, `eval.jsonl` and `summary.json`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.config.schema import Source
from tasks.errors import UserError
from tasks.problems.problem import Problem
from tasks.problems.readers import Check, placed_problems
from tasks.problems.splits import SPLITS, SplitName, fingerprint, split_of


@dataclass(frozen=True)
class _Placed:
    problem: Problem
    split: SplitName


def prepare(sources: Mapping[str, Source], root: Path, out: Path, check: Check) -> dict[str, Any]:
    """Read, check and split the sources and write the prepared dataset into the folder `out`.

    Rows are ordered by source name, then as in their file, so the same sources give the same bytes. A prompt counts
    once: again in the same split it is a duplicate and the first one stays; in two splits, through sources with
    different shares, eval keeps it before dev before train and the others are set aside.

    `root` is what the sources' paths are relative to; `check` is `tasks.rewards.check_gold`. Returns the summary:
    under "splits" for each split, and within it under "sources" for each source, the numbers of rows in all, with a
    solution, verifiable and with a preference pair; then the rows left out as "duplicates" and as "set_aside".

    Raises UserError for a row that is not right, and for one prompt with two different answers.
    """
    kept: dict[str, _Placed] = {}
    answers: dict[str, tuple[str, str]] = {}
    left_out = {"duplicates": 0, "set_aside": 0}
    for name, source in sorted(sources.items()):
        for place, problem in placed_problems(root / source.path, name, source.verifier, check):
            digest = fingerprint(problem)
            _same_answer(answers, digest, place, problem)
            new, old = _Placed(problem, split_of(digest, source.split)), kept.get(digest)
            if old is None:
                kept[digest] = new
            elif new.split == old.split:
                left_out["duplicates"] += 1
            else:
                left_out["set_aside"] += 1
                if SPLITS.index(new.split) > SPLITS.index(old.split):
                    del kept[digest]  # the new one takes its own place in the order, not the old one's
                    kept[digest] = new
    splits: dict[SplitName, list[Problem]] = {
        split: [placed.problem for placed in kept.values() if placed.split == split] for split in SPLITS
    }
    summary = {"splits": {split: _counts_by_source(problems) for split, problems in splits.items()}, **left_out}
    out.mkdir(parents=True, exist_ok=True)
    for split, problems in splits.items():
        lines = (problem.model_dump_json(exclude_defaults=True) + "\n" for problem in problems)
        (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8", newline="\n")
    return summary


def read_split(folder: Path, split: SplitName) -> list[Problem]:
    """The problems of one split of a prepared dataset, in its order.

    Raises UserError if the folder holds no such split or a file that `prepare` did not write.
    """
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; {folder} is not a prepared dataset")
    with path.open(encoding="utf-8", newline="\n") as lines:
        try:
            return [Problem.model_validate_json(line) for line in lines]
        except ValidationError as error:
            raise UserError(f"{path}: not a prepared dataset, prepare it again ({error.errors()[0]['msg']})") from None


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a prepared dataset, as `prepare` returned it.

    Raises UserError if the folder holds none.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; {folder} is not a prepared dataset")
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def _same_answer(answers: dict[str, tuple[str, str]], digest: str, place: str, problem: Problem) -> None:
    if problem.answer is None:
        return
    answer, first = answers.setdefault(digest, (problem.answer, place))
    if answer != problem.answer:
        raise UserError(
            f"{place}: field 'answer' is {problem.answer!r}, but {first} gives {answer!r} for the same prompt "
            "(case, white space and Unicode form aside); correct one of them or remove it"
        )


def _counts_by_source(problems: Iterable[Problem]) -> dict[str, Any]:
    by_source: dict[str, list[Problem]] = {}
    for problem in problems:
        by_source.setdefault(problem.source, []).append(problem)
    everything = [problem for group in by_source.values() for problem in group]
    return {**_counts(everything), "sources": {name: _counts(group) for name, group in by_source.items()}}


def _counts(problems: list[Problem]) -> dict[str, int]:
    return {
        "rows": len(problems),
        "with_solution": sum(problem.solution is not None for problem in problems),
        "verifiable": sum(problem.verifiable for problem in problems),
        "with_pair": sum(problem.chosen is not None for problem in problems),
    }
