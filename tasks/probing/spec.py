"""What a probe is told: everything, resolved, in one JSON file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tasks.config.schema import Section
from tasks.errors import UserError
from tasks.probing.sampling import Sampling

DEFAULTS: dict[str, Any] = {
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "chat_template_kwargs": None,
    "generation_kwargs": None,
    "num_generations": 8,
}
"""What `trl.GRPOConfig` takes where `grpo.trainer` says nothing."""


class ProbeSpec(Section):
    """The spec of `python -m tasks.probing.process SPEC`."""

    model: Annotated[str, Field(min_length=1)]
    """The model to probe: an absolute folder or a Hugging Face model id."""
    revision: str | None = None
    """Commit of a Hugging Face model id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The type that the model is loaded in."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    data: Path
    """The absolute folder of a prepared dataset."""
    output: Path
    """An existing empty folder for `dev.jsonl` and `train.jsonl`."""
    seed: Annotated[int, Field(ge=0)]
    """Seeds the choice of prompts and the sampling of completions."""
    samples: Annotated[int, Field(ge=2)]
    """Completions of each prompt."""
    dev_prompts: Annotated[int, Field(ge=1)]
    """Prompts of the dev split, at most."""
    train_prompts: Annotated[int, Field(ge=0)]
    """Prompts of the train split, at most."""
    sampling: Sampling
    parent_contract: Path | None = None
    """The `contract.json` of the stage that made the model; None for a base model."""


def sampling(trainer: Mapping[str, Any], batch_size: int) -> Sampling:
    """The sampling of a GRPO stage with the arguments `trainer`; raises UserError for a value that cannot be one."""
    given = {**DEFAULTS, **trainer}
    generation_kwargs = given["generation_kwargs"] or {}
    if not isinstance(generation_kwargs, Mapping):
        raise UserError(f"grpo.trainer.generation_kwargs: expected keys and values, not {generation_kwargs!r}")
    names = {"max_tokens": "max_completion_length"}
    try:
        return Sampling(
            max_tokens=generation_kwargs.get("max_new_tokens", given["max_completion_length"]),
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=given["top_k"],
            min_p=given["min_p"],
            repetition_penalty=given["repetition_penalty"],
            batch_size=batch_size,
            chat_template_kwargs=given["chat_template_kwargs"] or {},
            generation_kwargs=dict(generation_kwargs),
        )
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        reason, value = error.errors()[0]["msg"], error.errors()[0]["input"]
        raise UserError(f"grpo.trainer.{names.get(name, name)}: {reason}, not {value!r}") from error


def group_size(trainer: Mapping[str, Any]) -> int:
    """Completions of each prompt in a GRPO stage with the arguments `trainer`."""
    return int({**DEFAULTS, **trainer}["num_generations"])
