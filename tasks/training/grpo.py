"""GRPO with verifiable rewards: `python -m tasks.training.grpo SPEC` (`trl.GRPOTrainer`).

Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300, section 4.1. The reward of a completion is the score
of its problem's verifier, or what a Python file of the user's says, and nothing else.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config.schema import Alarm, Difficulty
from tasks.errors import UserError
from tasks.probing.attempts import read
from tasks.probing.findings import ProbedPrompt
from tasks.probing.spec import sampling
from tasks.problems import Problem, read_split
from tasks.processes import contract
from tasks.processes.entry import make_deterministic, run
from tasks.training.reward import Score, load, reward_function, try_out
from tasks.training.spec import GRPOSpec

if TYPE_CHECKING:
    from trl import GRPOConfig, GRPOTrainer

    from tasks.training.difficulty import Schedule, Sifted
    from tasks.training.history import History
    from tasks.training.selection import BestCheckpoint

SHOWN = {
    "reward": "reward",
    "verified": "verified",
    "dev": "dev/accuracy",
    "length": "completions/mean_length",
    "clipped": "completions/clipped_ratio",
    "zero-std": "frac_reward_zero_std",
    "entropy": "entropy",
    "kl": "kl",
    "active": "difficulty/active",
}


def train(spec: GRPOSpec) -> None:
    """Train and write the stage's output; raises UserError for rows or settings that cannot be trained with.

    The reference of the KL term, with `beta` > 0, is the model that the spec names: TRL loads it from the same path, or
    takes it as the model without its new adapter.
    """
    rows = verifiable_rows(spec.data)
    score = own_reward(spec, rows)

    from trl import GRPOTrainer

    from tasks.training import difficulty
    from tasks.training.arguments import load_tokenizer, lora_config, rejections
    from tasks.training.history import History
    from tasks.training.reference import ReferenceCheck
    from tasks.training.stage import train_and_save

    make_deterministic()
    config = arguments(spec)
    check_prompts(config, len(rows), spec.data)
    probed = read(spec.probed) if spec.difficulty and spec.probed else []
    sifted = difficulty.sift(rows, probed, spec.difficulty or Difficulty())
    schedule = difficulty.Schedule(config, sifted)
    samples, shuffle_seed = spec.output / "samples.jsonl", spec.seed if spec.control == "random-reward" else None
    with rejections("grpo"):
        trainer = GRPOTrainer(
            model=spec.model,
            reward_funcs=reward_function(rows, samples, spec.samples_per_step, score, shuffle_seed),
            # The order is the schedule's, and it has as many prompts as the steps take.
            args=arguments(with_trainer(spec, max_steps=schedule.steps, shuffle_dataset=False)),
            train_dataset=schedule.dataset(rows),
            processing_class=load_tokenizer(spec),
            peft_config=lora_config("grpo", spec),
            callbacks=[ReferenceCheck()],
        )
    keep_contract(spec, trainer)
    history = History(spec.output / "history.jsonl", plan(config, sifted), SHOWN)
    metrics = watch_difficulty(spec, trainer, rows, probed, sifted, schedule, history)
    best = best_checkpoint(spec, trainer, history)
    train_and_save(trainer, health_of(spec), history, len(sifted.active), best=best, extra_metrics=metrics)


def arguments(spec: GRPOSpec) -> "GRPOConfig":
    """The stage's TRL configuration; raises UserError for settings that cannot be trained with."""
    from trl import GRPOConfig

    from tasks.training.arguments import trainer_arguments

    config = trainer_arguments("grpo", GRPOConfig, spec)
    if spec.difficulty and spec.difficulty.reprobe_steps and config.dataloader_num_workers:
        raise UserError(
            "grpo.difficulty.reprobe_steps changes the prompts while training runs, which the workers of"
            " grpo.trainer.dataloader_num_workers would not see; remove one of the two"
        )
    return config


def with_trainer(spec: GRPOSpec, **changed: Any) -> GRPOSpec:
    """The spec with these arguments of the trainer."""
    return spec.model_copy(update={"trainer": {**spec.trainer, **changed}})


def verifiable_rows(data: Path) -> list[Problem]:
    """The rows of the train split of which a completion can be judged."""
    return [row for row in read_split(data, "train") if row.verifiable]


def own_reward(spec: GRPOSpec, rows: list[Problem]) -> Score | None:
    """The reward of the user's file, tried on the first row; None if the verifiers reward. Raises UserError."""
    if spec.reward is None:
        return None
    score = load(spec.reward)
    for row in rows[:1]:
        try_out(score, spec.reward, row)
    return score


def check_prompts(config: "GRPOConfig", prompts: int, data: Path) -> None:
    """Raise UserError when the problems do not fill one generation batch."""
    needed = config.generation_batch_size // config.num_generations
    if prompts < needed:
        raise UserError(
            f"{data}: {prompts} rows of the train split have a `verifier` and an `answer`, but one generation batch"
            f" takes {needed} prompts ({config.generation_batch_size} completions, {config.num_generations} of"
            " each); add problems or make grpo.trainer.per_device_train_batch_size smaller"
        )


def plan(config: "GRPOConfig", sifted: "Sifted") -> str:
    """What the stage is about to do, but for the number of steps."""
    each = config.num_generations
    aside = f" ({len(sifted.solved):,} solved and {len(sifted.unsolved):,} out of reach are set aside)"
    return (
        f"grpo: {len(sifted.active):,} prompts{aside if sifted.set_aside else ''},"
        f" {config.generation_batch_size // each} x {each} completions at a time"
    )


def keep_contract(spec: GRPOSpec, trainer: "GRPOTrainer") -> None:
    """Write `contract.json`; raises UserError unless the trainer reads prompts as the stages before have done."""
    from tasks.training.model import trainer_prompt_ids

    tokenizer = trainer.processing_class
    prompts = [row.messages for row in read_split(spec.data, "train")]
    stated = contract.state(tokenizer, contract.end_tokens(trainer.model, tokenizer), prompts, spec.data)
    contract.check_parent(stated, spec.parent_contract)
    contract.check_same_ids(tokenizer, prompts, trainer_prompt_ids(trainer, prompts[: contract.PROMPTS]), "grpo")
    contract.write(stated, spec.output)


def watch_difficulty(
    spec: GRPOSpec,
    trainer: "GRPOTrainer",
    rows: list[Problem],
    probed: list[ProbedPrompt],
    sifted: "Sifted",
    schedule: "Schedule",
    history: "History",
) -> dict[str, float]:
    """Write `difficulty.json` and have the trainer probe again when it is time.

    Returns what `metrics.json` says of the prompts, which is complete when training has ended.
    """
    from tasks.training.difficulty import Reprobe, ZeroVariance, describe

    metrics: dict[str, float] = {"set_aside": sifted.set_aside}
    trainer.add_callback(ZeroVariance(metrics))
    if spec.difficulty is None:
        return metrics
    found = describe(rows, probed, sifted, trainer.args.num_generations)
    found.write(spec.output / "difficulty.json")
    if found.zero_variance_before is not None:
        metrics["zero_variance_before"] = found.zero_variance_before
    if spec.difficulty.reprobe_steps and sifted.known:
        samples = max(len(prompt.attempts) for prompt in probed)
        each = sampling(spec.trainer, trainer.args.generation_batch_size // trainer.args.world_size)
        trainer.add_callback(Reprobe(spec.difficulty, rows, sifted, schedule, samples, each, history, metrics))
    return metrics


def best_checkpoint(spec: GRPOSpec, trainer: "GRPOTrainer", history: "History") -> "BestCheckpoint | None":
    """What chooses the weights that the stage ends with, None for the last ones; raises UserError without dev rows."""
    from tasks.training.selection import BestCheckpoint, dev_problems

    if spec.selection is None:
        return None
    return BestCheckpoint(
        spec.selection,
        dev_problems(spec.data, spec.selection.prompts, spec.seed),
        trainer.processing_class,
        trainer.args.max_completion_length,
        history,
        Path(trainer.args.output_dir),
        spec.seed,
    )


def health_of(spec: GRPOSpec) -> GRPOSpec:
    """The spec with its alarms; those of a control only warn, for its reward is wrong on purpose."""
    if spec.control is None:
        return spec

    def heard(name: str, alarm: Alarm) -> Alarm:
        stops = alarm.action == "stop" and name != "not_a_number"
        return alarm.model_copy(update={"action": "warn"}) if stops else alarm

    return spec.model_copy(update={"health": {name: heard(name, alarm) for name, alarm in spec.health.items()}})


if __name__ == "__main__":
    run(GRPOSpec, train)
