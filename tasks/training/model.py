"""Saving what was trained as a model that stands alone, and what it reads meanwhile."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tasks.errors import UserError
from tasks.processes.contract import end_tokens


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


def as_saved(tokenizer: PreTrainedTokenizerBase, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer as later stages will load it.

    Saving can change it: a word of the vocabulary that was made the end of a turn is split off from any text then.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def trainer_prompt_ids(trainer: Any, prompts: list[list[dict[str, str]]]) -> list[list[int]]:
    """The ids that a `trl.GRPOTrainer` samples from for each conversation (`tasks.processes.contract.check_same_ids`).

    The call is the one that TRL 1.16 makes for conversations without tools (`GRPOTrainer._tokenize_prompts`), with the
    trainer's own template and `chat_template_kwargs`.
    """
    ids: list[list[int]] = trainer.processing_class.apply_chat_template(
        conversation=prompts,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )["input_ids"]
    return ids
