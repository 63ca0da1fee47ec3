"""GRPO with verifiable rewards: `python -m tasks.training.grpo SPEC` (`trl.GRPOTrainer`).

Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300, section 4.1. The reward of a completion is the score
of its problem's verifier, and nothing else.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import UserError
from tasks.problems import Problem, read_split
from tasks.processes.entry import make_deterministic, run
from tasks.rewards import Status, Verdict, verify
from tasks.training.spec import TrainingSpec

if TYPE_CHECKING:
    from trl import GRPOConfig

SHOWN = {
    "reward": "reward",
    "length": "completions/mean_length",
    "clipped": "completions/clipped_ratio",
    "zero-std": "frac_reward_zero_std",
    "entropy": "entropy",
    "kl": "kl",
}
Reward = Callable[..., list[float | None]]


def train(spec: TrainingSpec) -> None:
    """Train and write the stage's output; raises UserError for rows or settings that cannot be trained with.

    The reference of the KL term, with `beta` > 0, is the model that the spec names: TRL loads it from the same path, or
    takes it as the model without its new adapter.
    """
    rows = verifiable_rows(spec.data)

    from datasets import Dataset
    from trl import GRPOTrainer

    from tasks.training.arguments import load_tokenizer, lora_config, rejections
    from tasks.training.reference import ReferenceCheck
    from tasks.training.stage import train_and_save

    make_deterministic()
    config = arguments(spec)
    check_prompts(config, len(rows), spec.data)
    tokenizer = load_tokenizer(spec)
    with rejections("grpo"):
        trainer = GRPOTrainer(
            model=spec.model,
            reward_funcs=reward_function(rows, spec.output / "samples.jsonl", spec.samples_per_step),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [row.messages for row in rows], "row": list(range(len(rows)))}),
            processing_class=tokenizer,
            peft_config=lora_config("grpo", spec),
            callbacks=[ReferenceCheck()],
        )
    train_and_save(trainer, spec, plan(config, len(rows)), SHOWN, len(rows))


def arguments(spec: TrainingSpec) -> "GRPOConfig":
    """The stage's TRL configuration; raises UserError for settings that cannot be trained with."""
    from trl import GRPOConfig

    from tasks.training.arguments import trainer_arguments

    return trainer_arguments("grpo", GRPOConfig, spec)


def verifiable_rows(data: Path) -> list[Problem]:
    """The rows of the train split of which a completion can be judged."""
    rows = read_split(data, "train")
    return [row for row in rows if row.verifier is not None and (row.answer is not None or row.tests is not None)]


def check_prompts(config: "GRPOConfig", prompts: int, data: Path) -> None:
    """Raise UserError when the problems do not fill one generation batch: TRL would silently train on nothing."""
    needed = config.generation_batch_size // config.num_generations
    if prompts < needed:
        raise UserError(
            f"{data}: {prompts} rows of the train split have a `verifier` and an `answer`, but one generation batch"
            f" takes {needed} prompts ({config.generation_batch_size} completions, {config.num_generations} of"
            " each); add problems or make grpo.trainer.per_device_train_batch_size smaller"
        )


def plan(config: "GRPOConfig", prompts: int) -> str:
    """What the stage is about to do, but for the number of steps."""
    each = config.num_generations
    return f"grpo: {prompts:,} prompts, {config.generation_batch_size // each} x {each} completions at a time"


def reward_function(rows: list[Problem], samples: Path, samples_per_step: int) -> Reward:
    """The reward for TRL: a score for each completion, None where the verifier's own machinery failed.

    Logs how many completions got each status (`verdict/right`, ...: of one generation batch, averaged over the logged
    steps) and appends `samples_per_step` completions, spread over the batch, to the file `samples`. Raises RuntimeError
    when not one completion of a batch could be judged.
    """

    def verifier(
        completions: list[list[dict[str, str]]],
        row: list[int],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        texts = [completion[0].get("content") or "" for completion in completions]
        problems = [rows[index] for index in row]
        verdicts = [verify(text, problem) for text, problem in zip(texts, problems, strict=True)]
        counts = Counter(verdict.status for verdict in verdicts)
        if counts[Status.INFRASTRUCTURE] == len(verdicts):
            raise RuntimeError(f"no completion of the batch could be verified: {verdicts[0].detail}")
        for status in Status:
            log_metric(f"verdict/{status}", float(counts[status]))
        if samples_per_step and trainer_state.is_world_process_zero:
            chosen = range(0, len(texts), -(-len(texts) // samples_per_step))
            with samples.open("a", encoding="utf-8") as file:
                for index in chosen:
                    record = sample(trainer_state.global_step + 1, problems[index], texts[index], verdicts[index])
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return [verdict.score for verdict in verdicts]

    return verifier


def sample(step: int, problem: Problem, completion: str, verdict: Verdict) -> dict[str, Any]:
    """A line of `samples.jsonl`."""
    return {
        "step": step,
        "id": problem.id,
        "prompt": "\n\n".join(message["content"] for message in problem.messages),
        "completion": completion,
        "score": verdict.score,
        "status": verdict.status,
        "answer": problem.answer,
    }


if __name__ == "__main__":
    run(TrainingSpec, train)
