"""What the alarms look at: figures of a stage's logs, the side on which trouble lies, and what to change then."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal, NamedTuple

Row = Mapping[str, float]
"""One log, `step` and metrics by TRL's names; values that are not finite are in it."""

START_LOGS = 3
"""The first logs, over which a metric's start is the mean. What is compared with it is judged from the next log on."""
WEIGHTS = "a weight"
"""What `Health` adds to a log when a weight is not a number; TRL's own figures may be from before that."""
CHANCE = 3.0
"""Mean moves of the reward from log to log within which a fall is chance. Rewards of one group go together, so how much
a batch's mean moves by chance depends on prompts and policy, and is seen in the logs alone."""


class Seen(NamedTuple):
    """An alarm's figure at one log, and how it reads."""

    value: float
    text: str


Figure = Callable[[Sequence[Row], int], Seen | None]
"""The figure at the log of an index, from it and the logs before; None where they do not tell."""


def _metric(row: Row, name: str) -> float:
    """The value, not a number where the log has none."""
    return row.get(name, math.nan)


def _start(values: Iterable[float]) -> float | None:
    first = list(islice(filter(math.isfinite, values), START_LOGS))
    return sum(first) / START_LOGS if len(first) == START_LOGS else None


def _latest(name: str, words: str) -> Figure:
    def figure(rows: Sequence[Row], index: int) -> Seen | None:
        value = _metric(rows[index], name)
        return Seen(value, f"{words} is {value:.3g}")

    return figure


def _length(rows: Sequence[Row], index: int) -> Seen | None:
    """The mean length as a multiple of its start."""
    value = _metric(rows[index], "completions/mean_length")
    start = _start(_metric(rows[place], "completions/mean_length") for place in range(index))
    if start is None or start <= 0:
        return None
    return Seen(value / start, f"the mean completion has {value:.3g} tokens, and had {start:.3g} at the start")


def _collapse(rows: Sequence[Row], index: int) -> Seen | None:
    """The reward as a multiple of its start; 1 for a fall within chance, such as any from a start of about 0."""
    value = _metric(rows[index], "reward")
    rewards = [reward for row in rows[: index + 1] if math.isfinite(reward := _metric(row, "reward"))]
    start = _start(rewards[:-1])
    if start is None or start <= 0 or math.isnan(value):
        return None
    move = sum(abs(after - before) for before, after in pairwise(rewards)) / (len(rewards) - 1)
    text = f"the mean reward is {value:.3g}, and was {start:.3g} at the start"
    return Seen(value / start if start - value > CHANCE * move else 1.0, text)


def _verdicts(row: Row) -> dict[str, float]:
    """How many completions got each status."""
    return {name: value for name, value in row.items() if name.startswith("verdict/")}


def _jump(rows: Sequence[Row], index: int) -> Seen | None:
    value, before = _metric(rows[index], "reward"), _metric(rows[index - 1], "reward") if index else math.nan
    return Seen(abs(value - before), f"the mean reward went from {before:.3g} to {value:.3g} between two logs")


def _hacking(rows: Sequence[Row], index: int) -> Seen | None:
    """By how much the reward has left the independent verifier behind since the start."""

    def gap(row: Row) -> float:
        return _metric(row, "reward") - _metric(row, "verified")

    now = gap(rows[index])
    start = None if math.isnan(now) else _start(gap(rows[place]) for place in range(index))
    if start is None:
        return None
    reward, verified = (_metric(rows[index], name) for name in ("reward", "verified"))
    return Seen(
        now - start,
        f"the mean reward is {reward:.3g} and the verifiers give the same completions {verified:.3g}: the reward is"
        f" {now:.3g} above them, and was {start:.3g} above them at the start",
    )


def _infrastructure(rows: Sequence[Row], index: int) -> Seen | None:
    verdicts = _verdicts(rows[index])
    failed, total = verdicts.get("verdict/infrastructure", math.nan), sum(verdicts.values())
    if not total > 0:
        return None
    return Seen(failed / total, f"the verifier's own machinery failed on {failed / total:.1%} of the completions")


def _not_a_number(rows: Sequence[Row], index: int) -> Seen | None:
    names = ("loss", "grad_norm", "reward", WEIGHTS)
    broken = [name for name in names if not math.isfinite(rows[index].get(name, 0.0))]
    return Seen(len(broken), " and ".join(f"{name} is {rows[index][name]}" for name in broken))


@dataclass(frozen=True)
class Definition:
    """What an alarm looks at, on which side of the threshold trouble lies, and what to change."""

    figure: Figure
    side: Literal["above", "below"]
    advice: str


SLOWER = "lower trainer.learning_rate of the stage"
ALARMS = {
    "not_a_number": Definition(
        _not_a_number,
        "above",
        f"{SLOWER}, and train in bf16 rather than fp16",
    ),
    "reward_collapse": Definition(
        _collapse,
        "below",
        "lower grpo.trainer.learning_rate, or hold the policy to where it started with grpo.trainer.beta, such as 0.01",
    ),
    "reward_hacking": Definition(
        _hacking,
        "above",
        "read samples.jsonl for what grpo.reward pays and the verifiers do not, and mend that function",
    ),
    "infrastructure": Definition(
        _infrastructure,
        "above",
        "look in samples.jsonl for status `infrastructure` and mend what the verifier runs on",
    ),
    "kl": Definition(
        _latest("kl", "the KL divergence from the start, in nats a token,"),
        "above",
        "lower grpo.trainer.learning_rate or raise grpo.trainer.beta",
    ),
    "zero_variance": Definition(
        _latest("frac_reward_zero_std", "the share of groups whose completions all score the same, and teach nothing,"),
        "above",
        "train on prompts of another difficulty (grpo.difficulty) or raise grpo.trainer.num_generations",
    ),
    "truncated": Definition(
        _latest("completions/clipped_ratio", "the share of completions cut before their end"),
        "above",
        "raise grpo.trainer.max_completion_length",
    ),
    "entropy_collapse": Definition(
        _latest("entropy", "the entropy, in nats a token,"),
        "below",
        "nothing new is tried: end with fewer grpo.trainer.max_steps, or lower grpo.trainer.learning_rate",
    ),
    "clip_ratio": Definition(
        _latest("clip_ratio/region_mean", "the share of tokens at which the update is clipped"),
        "above",
        "lower grpo.trainer.learning_rate or grpo.trainer.num_iterations",
    ),
    "reward_jump": Definition(
        _jump,
        "above",
        "lower grpo.trainer.learning_rate, or raise grpo.trainer.per_device_train_batch_size if it went back and forth",
    ),
    "length_explosion": Definition(
        _length,
        "above",
        "read samples.jsonl: if the length is no reasoning, lower grpo.trainer.learning_rate",
    ),
    "chosen_reward": Definition(
        _latest("rewards/chosen", "the implicit reward of the chosen answers"),
        "below",
        "the model is unlearning them too: lower dpo.trainer.learning_rate, or raise dpo.trainer.beta",
    ),
}
"""All alarms by name. Ranges of health: the training stability guide of axolotl (`docs/training_stability.qmd`)."""
