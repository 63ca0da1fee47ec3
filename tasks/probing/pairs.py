"""Preference pairs for DPO: given with the data, or a right and a wrong answer of the policy itself to one prompt."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.errors import UserError
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.problems import Problem
from tasks.rewards import Status

Pair = tuple[Attempt, Attempt]
"""Chosen, rejected."""


def make_pairs(
    problems: Sequence[Problem], probed: Sequence[ProbedPrompt], per_prompt: int, seed: int
) -> tuple[list[Problem], dict[str, float]]:
    """Pair right with wrong answers to the same prompt, `per_prompt` pairs of it at most.

    Chosen are right answers that ended by themselves. Rejected are wrong ones and those without an answer; one that was
    cut at the limit on its length serves only where the prompt has no other. What the verifier could not judge is in no
    pair, nor is a blank text, nor one that was judged both right and wrong. A text stands in one pair of its prompt.

    Lengths are balanced, for DPO makes the most of a difference in length (Park et al. 2024, "Disentangling Length from
    Quality in Direct Preference Optimization", https://arxiv.org/abs/2403.19159). A greedy choice takes each pair to be
    close in length and to pull the sum of all differences so far towards 0: the smallest |difference| + |sum with it|,
    and among equals the smallest |sum with it|, so a difference is taken on only to make up for others. Prompts with
    the least to choose from come first, and the seed decides among equals. Neither the order of prompts nor that of
    attempts matters.

    Returns the pairs in the order of `problems`, each its problem with `chosen` and `rejected`, without the `solution`,
    under the id `ID-1`, `ID-2`, ...; and the counts: "prompts" probed, "mixed_prompts" that have an answer of either
    kind, "pairs", "mean_chosen_tokens" and "mean_rejected_tokens" (0 without a pair), and "duplicates", the answers
    left out because an equal one to the same prompt is there.

    Raises UserError when a probed prompt is not among the problems.
    """
    by_key = {(problem.source, problem.id): problem for problem in problems}
    if strange := next((prompt for prompt in probed if (prompt.source, prompt.id) not in by_key), None):
        raise UserError(
            f"prompt {strange.id!r} of source {strange.source!r} was probed, but is not in the train split; probe the"
            " same prepared dataset that the pairs are for"
        )
    pools = {(prompt.source, prompt.id): _pools(prompt) for prompt in probed}
    mixed = {key: (right, wrong) for key, (right, wrong, _) in pools.items() if right and wrong}
    chosen = _balanced(mixed, per_prompt, random.Random(seed))
    pairs = [
        problem.model_copy(
            update={
                "id": f"{problem.id}-{number}",
                "solution": None,
                "chosen": right.completion,
                "rejected": wrong.completion,
            }
        )
        for key, problem in by_key.items()
        for number, (right, wrong) in enumerate(chosen.get(key, ()), start=1)
    ]
    every = [pair for found in chosen.values() for pair in found]
    return pairs, {
        "prompts": len(probed),
        "mixed_prompts": len(mixed),
        "pairs": len(pairs),
        "mean_chosen_tokens": sum(right.tokens for right, _ in every) / max(len(every), 1),
        "mean_rejected_tokens": sum(wrong.tokens for _, wrong in every) / max(len(every), 1),
        "duplicates": sum(duplicates for *_, duplicates in pools.values()),
    }


def given_pairs(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that the data gives a pair for, without their `solution`.

    Raises UserError for a pair of equal texts.
    """
    pairs = [problem.model_copy(update={"solution": None}) for problem in problems if problem.chosen is not None]
    for pair in pairs:
        if pair.chosen == pair.rejected:
            raise UserError(
                f"row {pair.id!r} of source {pair.source!r}: `chosen` and `rejected` are the same text, which prefers"
                " nothing; correct one of them or remove both"
            )
    return pairs


def write_pairs(folder: Path, pairs: Iterable[Problem], counts: Mapping[str, Any]) -> None:
    """Write `pairs.jsonl` and `summary.json`, with the counts, into the folder; equal pairs give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (pair.model_dump_json(exclude_defaults=True) + "\n" for pair in pairs)
    (folder / "pairs.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
    (folder / "summary.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8", newline="\n")


def read_pairs(path: Path) -> list[Problem]:
    """The pairs of a `pairs.jsonl`; raises UserError when there are none or the file is no such file."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; make the pairs first")
    pairs: list[Problem] = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                pairs.append(Problem.model_validate_json(line))
            except ValidationError as error:
                raise UserError(f"{path}, line {number}: {error.errors()[0]['msg']}; make the pairs again") from None
            if pairs[-1].chosen is None:
                raise UserError(f"{path}, line {number}: `chosen` and `rejected` are missing; make the pairs again")
    if not pairs:
        raise UserError(
            f"{path}: there are no pairs, so there is nothing to prefer: no prompt that was probed has both a right and"
            " a wrong answer; probe more prompts (probe.train_prompts, probe.samples) or set dpo.enabled: false"
        )
    return pairs


def _pools(prompt: ProbedPrompt) -> tuple[list[Attempt], list[Attempt], int]:
    """The texts that may be chosen and those that may be rejected, in an order of their own; how many were repeats."""
    tellable = [attempt for attempt in prompt.attempts if attempt.completion.strip()]
    right = [attempt for attempt in tellable if attempt.right and attempt.ended]
    failed = [attempt for attempt in tellable if attempt.status in (Status.WRONG, Status.NO_ANSWER)]
    both = {attempt.completion for attempt in tellable if attempt.right} & {attempt.completion for attempt in failed}
    wrong = [attempt for attempt in failed if attempt.ended] or failed
    pools = [_distinct(attempt for attempt in pool if attempt.completion not in both) for pool in (right, wrong)]
    usable = [attempt for attempt in (*right, *wrong) if attempt.completion not in both]
    return pools[0], pools[1], len(usable) - len(pools[0]) - len(pools[1])


def _distinct(attempts: Iterable[Attempt]) -> list[Attempt]:
    """One attempt for each text, the shortest in tokens, by length and text."""
    by_text: dict[str, Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: (attempt.tokens, attempt.completion)):
        by_text.setdefault(attempt.completion, attempt)
    return list(by_text.values())


def _balanced(
    pools: Mapping[tuple[str, str], tuple[list[Attempt], list[Attempt]]], per_prompt: int, rng: random.Random
) -> dict[tuple[str, str], list[Pair]]:
    """The pairs of each prompt, chosen as `make_pairs` says."""
    order = sorted(pools)
    rng.shuffle(order)
    order.sort(key=lambda key: _choice(*pools[key]))
    total = 0
    chosen: dict[tuple[str, str], list[Pair]] = {key: [] for key in order}
    left = {key: (list(right), list(wrong)) for key, (right, wrong) in pools.items()}
    for _ in range(per_prompt):
        for key in order:
            right, wrong = left[key]
            candidates = [(a, b) for a in right for b in wrong]
            if not candidates:
                continue
            pair = min(candidates, key=lambda pair: (*_cost(pair, total), rng.random()))
            total += _difference(pair)
            chosen[key].append(pair)
            right.remove(pair[0])
            wrong.remove(pair[1])
    return chosen


def _choice(right: Sequence[Attempt], wrong: Sequence[Attempt]) -> int:
    """How far apart, in tokens, the differences in length are that a prompt's pairs may have."""
    return right[-1].tokens - right[0].tokens + wrong[-1].tokens - wrong[0].tokens


def _difference(pair: Pair) -> int:
    return pair[0].tokens - pair[1].tokens


def _cost(pair: Pair, total: int) -> tuple[int, int]:
    difference = _difference(pair)
    return abs(difference) + abs(total + difference), abs(total + difference)
