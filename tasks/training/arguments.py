"""From a training spec to TRL's and PEFT's own objects."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments

from tasks.errors import UserError
from tasks.training.spec import TrainingSpec

DECIDED: dict[str, dict[str, Any]] = {
    "sft": {},
    "grpo": {
        # The reward needs the problem beside the prompt.
        "remove_unused_columns": False,
        # The KL divergence of the first step is seen before the policy has moved.
        "logging_first_step": True,
    },
}
"""What a kind of stage decides in TRL's place, beside what every stage does."""

NOTES = {
    "sft": "",
    "grpo": (
        " (generation_batch_size is per_device_train_batch_size x steps_per_generation x processes completions, where"
        " steps_per_generation is gradient_accumulation_steps unless set)"
    ),
}
"""What TRL's objections leave unsaid."""


def trainer_arguments(stage: str, config: type[TrainingArguments], spec: TrainingSpec) -> TrainingArguments:
    """The TRL configuration of stage `sft` or `grpo`: the spec's `trainer` with what the stage itself decides.

    Raises UserError when `trainer` has an argument that TRL does not know, a value that it rejects, or one that the
    stage decides.
    """
    decided = {
        "output_dir": str(spec.output / "work"),
        "seed": spec.seed,
        "report_to": "none",
        "save_strategy": "no",
        "push_to_hub": False,
        "disable_tqdm": True,
        "trust_remote_code": spec.trust_remote_code,
        # A loss that is not a number has to reach the history, which stops the stage.
        "logging_nan_inf_filter": False,
        **DECIDED[stage],
    }
    if taken := sorted(decided.keys() & spec.trainer.keys()):
        raise UserError(f"{stage}.trainer.{taken[0]} is decided by the stage itself; remove it")
    loading = {**(spec.trainer.get("model_init_kwargs") or {}), "dtype": spec.dtype, "use_safetensors": True}
    if spec.revision is not None:
        loading["revision"] = spec.revision
    defaults = {"dataloader_pin_memory": torch.accelerator.is_available()}
    _make_deterministic()
    # TRL's own use of what transformers deprecates is nothing that a user could mend.
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        return config(**{**defaults, **spec.trainer, **decided, "model_init_kwargs": loading})
    except (TypeError, ValueError) as error:
        raise UserError(f"{stage}.trainer: {config.__name__} rejects its arguments: {error}{NOTES[stage]}") from error


def lora_config(stage: str, spec: TrainingSpec) -> LoraConfig | None:
    """The adapter to train, None for all weights; raises UserError when PEFT rejects the arguments."""
    if spec.lora is None:
        return None
    try:
        return LoraConfig(**{"task_type": "CAUSAL_LM", **spec.lora})
    except (TypeError, ValueError) as error:
        raise UserError(f"{stage}.lora: LoraConfig rejects its arguments: {error}") from error


def load_tokenizer(spec: TrainingSpec) -> PreTrainedTokenizerBase:
    """The model's tokenizer; raises UserError when the model cannot be found or has no chat template to train with."""
    if Path(spec.model).is_absolute() and not (Path(spec.model) / "config.json").is_file():
        raise UserError(f"{spec.model} has no config.json; give the folder of a saved model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.model, revision=spec.revision, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer of {spec.model} cannot be loaded: {error}") from error
    if not tokenizer.chat_template and spec.trainer.get("chat_template_path") is None:
        raise UserError(
            f"the tokenizer of {spec.model} has no chat template, and prompts are conversations; name a .jinja file, or"
            " a model that has a template, in sft.trainer.chat_template_path (SFT saves it with its model)"
        )
    return tokenizer


@contextmanager
def rejections(stage: str) -> Iterator[None]:
    """Turn the objections of TRL, PEFT and transformers to a trainer's settings or model into UserError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"{stage}: the trainer cannot be set up: {error}") from error


def _make_deterministic() -> None:
    """Have torch choose deterministic algorithms where there are any, and warn where there are none.

    Unlike `full_determinism` of the trainer's arguments this does not make CUDA launches blocking, so it costs little.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory only serves to expose programs that read it unwritten, and takes time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False
