"""From a training spec to TRL's and PEFT's own objects."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments

from tasks.config import nearest
from tasks.errors import UserError
from tasks.training.spec import TrainingSpec

DECIDED: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {
        # The rewards of the first step are seen before the policy has moved.
        "logging_first_step": True,
    },
    "grpo": {
        # The reward needs the problem beside the prompt.
        "remove_unused_columns": False,
        # The KL divergence of the first step is seen before the policy has moved.
        "logging_first_step": True,
    },
}
"""What a kind of stage decides in TRL's place, beside what every stage does."""

TOKEN = "set HF_TOKEN in the environment, for parameters are stored and shown"  # noqa: S105  # not a token
UPLOAD = "a stage uploads nothing; remove it"
REFUSED = {
    "data_seed": "a run has one seed, the parameter `seed`; remove it",
    "hub_token": TOKEN,
    "push_to_hub": UPLOAD,
    "hub_model_id": UPLOAD,
    "hub_strategy": UPLOAD,
    "hub_private_repo": UPLOAD,
    "hub_always_push": UPLOAD,
    "hub_revision": UPLOAD,
    "log_completions_hub_repo": UPLOAD,
}
"""Arguments of TRL that no stage takes, and why."""

NOTES = {
    "sft": "",
    "dpo": "",
    "grpo": (
        " (generation_batch_size is per_device_train_batch_size x steps_per_generation x processes completions, where"
        " steps_per_generation is gradient_accumulation_steps unless set)"
    ),
}
"""What TRL's objections leave unsaid."""


def trainer_arguments(stage: str, config: type[TrainingArguments], spec: TrainingSpec) -> TrainingArguments:
    """The TRL configuration of stage `sft`, `dpo` or `grpo`: the spec's `trainer` with what the stage itself decides.

    All weights are trained in float32, in which an update is not lost to rounding, and mixed precision is TRL's `bf16`
    and `fp16`; beside an adapter the frozen weights are loaded in the spec's `dtype`. `model_init_kwargs.dtype` says
    otherwise.

    Raises UserError when `trainer` has an argument that TRL does not know, a value that it rejects, or one that is not
    for the user to set; every name that cannot stay is listed.
    """
    decided = {
        "output_dir": str(spec.output / "work"),
        "seed": spec.seed,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "trust_remote_code": spec.trust_remote_code,
        # A loss that is not a number has to reach the history, which stops the stage.
        "logging_nan_inf_filter": False,
        **DECIDED[stage],
    }
    _check_names(
        stage, config, spec.trainer, {**dict.fromkeys(decided, "the stage itself sets it; remove it"), **REFUSED}
    )
    loading = {
        "dtype": "float32" if spec.lora is None else spec.dtype,
        **_loading(stage, spec.trainer.get("model_init_kwargs") or {}),
        "use_safetensors": True,
    }
    if spec.revision is not None:
        loading["revision"] = spec.revision
    try:
        return config(**{**spec.trainer, **decided, "model_init_kwargs": loading})
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
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"{stage}: the trainer cannot be set up: {error}") from error


def _check_names(
    stage: str, config: type[TrainingArguments], given: Mapping[str, Any], refused: Mapping[str, str]
) -> None:
    known = {field.name for field in dataclasses.fields(config)} - refused.keys()
    faults = []
    for name in given:
        if name in refused:
            faults.append(f"{stage}.trainer.{name} is not for a run to set: {refused[name]}")
        elif name not in known:
            hint = nearest(name, sorted(known))
            faults.append(f"{stage}.trainer: {config.__name__} has no argument {name!r}{hint}")
    if faults:
        raise UserError("\n".join(faults))


def _loading(stage: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError(f"{stage}.trainer.model_init_kwargs: expected keys and values such as `dtype: bfloat16`")
    if "token" in given:
        raise UserError(f"{stage}.trainer.model_init_kwargs.token is not for a run to set: {TOKEN}")
    return given
