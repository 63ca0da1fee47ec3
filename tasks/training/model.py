"""Saving what was trained as a model that stands alone."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tasks.errors import UserError


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end a completion: those of the generation configuration and the tokenizer's own."""
    ends = model.generation_config.eos_token_id
    ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return ids


def merged(model: PreTrainedModel | PeftModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its adapter, if any, merged into the weights, in `dtype`.

    The sum is formed in float32: in bfloat16 most of a small adapter is lost to rounding before it is added. It is
    formed in main memory, because an accelerator that held the training has no room for a second copy of the weights.
    Changes and moves the model given.
    """
    model = model.cpu()
    if isinstance(model, PeftModel):
        model = model.float().merge_and_unload(safe_merge=True)
    return model.to(dtype)


def check_savable(model: PreTrainedModel) -> None:
    """Raise UserError when the generation configuration is one that transformers refuses to save after training."""
    try:
        model.generation_config.validate(strict=True)
    except ValueError as error:
        raise UserError(f"model: its generation_config.json is not valid, mend it before training: {error}") from error


def save(trainer: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write the trained model, its tokenizer with the chat template and its generation configuration to `folder`.

    The weights are saved in `dtype`. The folder loads with `AutoModelForCausalLM` and `AutoTokenizer` alone and names
    nothing of this run. Covers a model that is whole in each process, so not FSDP or ZeRO-3. Raises FloatingPointError
    when a weight is not finite.
    """
    if not trainer.is_world_process_zero():
        return
    tokenizer = trainer.processing_class
    model = merged(trainer.accelerator.unwrap_model(trainer.model), dtype)
    broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    if broken:
        raise FloatingPointError(f"training has diverged: {broken[0]} is not finite; lower the learning rate")
    # A model that was taught to end its turn with the tokenizer's token has to be stopped by it too.
    ends = end_tokens(model, tokenizer)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    # The trainer turned it off, and generation without a cache is quadratic in time.
    model.config.use_cache = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
