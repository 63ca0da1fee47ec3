"""Which prompts GRPO trains on, and in what order.

A prompt whose completions all score the same has no advantage, so it costs its tokens and teaches nothing. DAPO (Yu et
al. 2025, https://arxiv.org/abs/2503.14476, section 3.2) generates such groups and throws them away. Here the probe's
samples say beforehand which prompts they will be, and those are set aside.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig

from tasks.config.schema import Difficulty
from tasks.errors import UserError
from tasks.probing.findings import ProbedPrompt
from tasks.probing.measures import same_score
from tasks.probing.sampling import Sampling, attempt
from tasks.problems import Problem
from tasks.training.history import History


@dataclass(frozen=True)
class Sifted:
    """Where each row stands, as indices of rows in their order."""

    kept: list[int]
    """Probed, and solved sometimes."""
    solved: list[int]
    unsolved: list[int]
    unprobed: list[int]
    """Of which nothing is known: not probed, or not one attempt could be verified."""

    @property
    def active(self) -> list[int]:
        """The rows that are trained on."""
        return sorted([*self.kept, *self.unprobed])

    @property
    def known(self) -> list[int]:
        """The rows that were probed."""
        return sorted([*self.kept, *self.solved, *self.unsolved])

    @property
    def set_aside(self) -> int:
        """How many rows are not trained on."""
        return len(self.solved) + len(self.unsolved)


def sift(rows: Sequence[Problem], probed: Sequence[ProbedPrompt], settings: Difficulty) -> Sifted:
    """Sort the rows by the pass rates of their attempts, failures of the verifiers' own machinery left out."""
    rates = {
        (prompt.source, prompt.id): fmean(attempt.right for attempt in prompt.judged)
        for prompt in probed
        if prompt.judged
    }
    sifted = Sifted([], [], [], [])
    for index, row in enumerate(rows):
        rate = rates.get((row.source, row.id))
        if rate is None:
            sifted.unprobed.append(index)
        elif rate >= settings.max_pass_rate:
            sifted.solved.append(index)
        elif rate <= settings.min_pass_rate:
            sifted.unsolved.append(index)
        else:
            sifted.kept.append(index)
    return sifted


def check_active(sifted: Sifted) -> None:
    """Raise UserError when no prompt is left to train on.

    A few are enough, even fewer than a generation batch takes: they come again, for a second group of a prompt that has
    spread teaches more than one of a prompt that has none, and a run that nobody watches goes on.
    """
    if not sifted.active:
        raise UserError(
            f"grpo.difficulty leaves no prompt to train on: by the probe's samples {len(sifted.solved):,} are solved"
            f" and {len(sifted.unsolved):,} out of reach; add problems in between, change min_pass_rate or"
            " max_pass_rate, or set grpo.difficulty: false"
        )


@dataclass(frozen=True)
class Description:
    """What `difficulty.json` says."""

    prompts: int
    """All rows that can be verified."""
    active: int
    solved: list[str]
    """Set aside as it starts, each as SOURCE/ID."""
    unsolved: list[str]
    unprobed: int
    zero_variance_before: float | None
    """The expected share of groups without spread over all rows that were probed; None where there is none."""
    zero_variance_after: float | None
    """The same over the active rows, those that were not probed at the share of those that were. It is lower than
    training will find, for the samples that it rests on are those by which the rows were kept."""

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def describe(rows: Sequence[Problem], probed: Sequence[ProbedPrompt], sifted: Sifted, group: int) -> Description:
    """The sifted rows by their ids, and what GRPO's groups of `group` completions are expected to be like."""
    known = {(prompt.source, prompt.id): prompt.judged for prompt in probed}
    kept = frozenset(sifted.kept)

    def zero_variance(indices: Sequence[int]) -> float | None:
        shares = [same_score(known[rows[index].source, rows[index].id], group) for index in indices]
        return fmean(shares) if shares else None

    before = zero_variance(sifted.known)
    expected = [zero_variance([index]) if index in kept else before for index in sifted.active]
    after = [share for share in expected if share is not None]
    return Description(
        prompts=len(rows),
        active=len(sifted.active),
        solved=[_name(rows[index]) for index in sifted.solved],
        unsolved=[_name(rows[index]) for index in sifted.unsolved],
        unprobed=len(sifted.unprobed),
        zero_variance_before=before,
        zero_variance_after=fmean(after) if after else None,
    )


def _name(row: Problem) -> str:
    return f"{row.source}/{row.id}"


def steps(config: GRPOConfig, prompts: int) -> int:
    """The optimiser steps that TRL would make on this many prompts: `max_steps`, or what `num_train_epochs` come to.

    TRL leaves out what does not fill a generation batch at the end of an epoch. Fewer prompts than one batch takes are
    an epoch of one batch, where TRL would make none.
    """
    if config.max_steps > 0:
        return int(config.max_steps)
    batches = max(prompts // _prompts_at_a_time(config), 1) * _uses(config)
    return math.ceil(float(config.num_train_epochs) * math.ceil(batches / int(config.gradient_accumulation_steps)))


class Schedule:
    """The prompts that a run takes, a slot for each in the order in which they are taken.

    TRL goes through a dataset of slots once, without shuffling it, and a slot is asked for by each of its completions
    and again whenever a generation batch is used again. What stands in a slot can change until its batch is first asked
    for, so the prompts can be chosen anew while the run goes on.

    `draw` fills the slots pass by pass. A pass takes each active row once, in random order, or in that of the rows if
    TRL is told not to shuffle (`shuffle_dataset: false`). In the first pass the rows that were probed come before
    the others. A pass that was under way when the rows were chosen anew is finished with those that it has not
    had.
    """

    def __init__(self, config: GRPOConfig, sifted: Sifted) -> None:
        """Draw the prompts for all steps; raises UserError when none is active."""
        check_active(sifted)
        self.steps = steps(config, len(sifted.active))
        self.batch = _prompts_at_a_time(config)
        batches = math.ceil(self.steps * config.gradient_accumulation_steps / _uses(config))
        self.slots = batches * self.batch
        self.rows: list[int] = []
        """The row in each slot."""
        self.asked = 0
        """The slots before this one are in use."""
        self.known = frozenset(sifted.known)
        self.seed = config.seed
        self.shuffle = config.shuffle_dataset
        self.draw(sifted.active)

    def draw(self, active: Sequence[int]) -> None:
        """Fill all slots that are not in use from these rows, of which there is at least one."""
        # The processes of a run ask for different slots of one batch, and all of them have to draw the same.
        settled = self.rows[: math.ceil(self.asked / self.batch) * self.batch]
        rng = random.Random(f"{self.seed}/{len(settled)}")
        turns = Counter(settled)
        drawn = list(settled)
        while len(drawn) < self.slots:
            most = max(turns[row] for row in active)
            behind = [row for row in active if turns[row] < most]
            taken = behind or list(active)
            if self.shuffle:
                rng.shuffle(taken)
            taken.sort(key=lambda row: row not in self.known and not turns[row])
            turns |= dict.fromkeys(taken, most if behind else most + 1)
            drawn += taken
        self.rows = drawn[: self.slots]

    def dataset(self, rows: Sequence[Problem]) -> Dataset:
        """The dataset for TRL: `prompt`, as messages, and `row`, the index of the problem."""

        def look_up(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
            self.asked = max(self.asked, *(slot + 1 for slot in batch["slot"]))
            found = [self.rows[slot] for slot in batch["slot"]]
            return {"prompt": [rows[index].messages for index in found], "row": found}

        dataset = Dataset.from_dict({"slot": list(range(self.slots))})
        dataset.set_transform(look_up)
        return dataset


class ZeroVariance(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Finds `zero_variance`, the mean share of groups without spread in training, for `metrics`."""

    def __init__(self, metrics: dict[str, float]) -> None:
        self.metrics = metrics

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the mean over the logs."""
        shares = [log["frac_reward_zero_std"] for log in state.log_history if "frac_reward_zero_std" in log]
        if shares:
            self.metrics["zero_variance"] = fmean(shares)


class Reprobe(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Repeats the probe every `settings.reprobe_steps`, and draws the schedule anew from the rows that are active then.

    It samples as the run does, `samples` completions of each prompt, and leaves the training as it would have been but
    for the choice of prompts. When nothing would be left to train on, the schedule stays as it is. `history` gets how
    many rows are active and the tokens that it took to know, `metrics` how many are set aside in the end and the tokens
    of all probes.

    With several processes each one probes its share of the prompts, and all choose alike.
    """

    def __init__(
        self,
        settings: Difficulty,
        rows: Sequence[Problem],
        sifted: Sifted,
        schedule: Schedule,
        samples: int,
        sampling: Sampling,
        history: History,
        metrics: dict[str, float],
    ) -> None:
        self.settings = settings
        self.rows = rows
        self.known = sifted.known
        self.schedule = schedule
        self.samples = samples
        self.sampling = sampling
        self.history = history
        self.metrics = metrics

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        processing_class: PreTrainedTokenizerBase,
        **kwargs: Any,
    ) -> None:
        """Probe when it is time and something is still to come."""
        every = self.settings.reprobe_steps
        if every is None or state.global_step % every or state.global_step >= state.max_steps:
            return
        share = [self.rows[index] for index in self.known[args.process_index :: args.world_size]]
        seed = args.seed + state.global_step
        probed = gather_object(attempt(model, processing_class, share, self.samples, self.sampling, seed))
        sifted = sift(self.rows, probed, self.settings)
        if sifted.active:
            self.schedule.draw(sifted.active)
        tokens = sum(attempt.tokens for prompt in probed for attempt in prompt.attempts)
        self.metrics["set_aside"] = sifted.set_aside
        self.metrics["probe_tokens"] = self.metrics.get("probe_tokens", 0) + tokens
        if state.is_world_process_zero:
            figures = {"difficulty/active": len(sifted.active), "difficulty/probe_tokens": tokens}
            self.history.record(state.global_step, state.max_steps, figures)


def _prompts_at_a_time(config: GRPOConfig) -> int:
    return int(config.generation_batch_size // config.num_generations)


def _uses(config: GRPOConfig) -> int:
    """How many of the batches that make up a step TRL takes from one generation batch."""
    return int(config.steps_per_generation * config.num_iterations)
