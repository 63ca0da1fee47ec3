"""Direct preference optimisation: `python -m tasks.training.dpo SPEC` trains on pairs of answers (`trl.DPOTrainer`).

Rafailov et al. 2023, "Direct Preference Optimization", https://arxiv.org/abs/2305.18290, equation 7. A pair becomes
TRL's conversational preference format: TRL applies the chat template, once, and the loss covers the answers alone.
"""

from typing import TYPE_CHECKING

from tasks.errors import UserError
from tasks.probing.pairs import read_pairs
from tasks.problems import Problem, read_split
from tasks.processes import contract
from tasks.processes.entry import make_deterministic, run
from tasks.training.spec import DPOSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import DPOConfig, DPOTrainer

SHOWN = {"loss": "loss", "accuracy": "rewards/accuracies", "margin": "rewards/margins", "chosen": "rewards/chosen"}


def train(spec: DPOSpec) -> None:
    """Train and write the stage's output; raises UserError for pairs or settings that cannot be trained with."""
    pairs = read_pairs(spec.pairs)

    from tasks.training.dpo_reference import ReferenceCheck
    from tasks.training.history import History
    from tasks.training.stage import train_and_save

    make_deterministic()
    trainer = build(spec, pairs)
    keep_contract(spec, trainer, pairs)
    trainer.add_callback(ReferenceCheck(trainer.beta, mean_tokens(trainer)))
    history = History(spec.output / "history.jsonl", plan(trainer.args, len(pairs)), SHOWN)
    train_and_save(trainer, spec, history, len(pairs))


def build(spec: DPOSpec, pairs: list[Problem]) -> "DPOTrainer":
    """The trainer, with every pair whole; raises UserError for pairs or settings that cannot be trained with.

    The reference is the model that the spec names: TRL loads it from the same path, or takes it as the model without
    its new adapter.
    """
    from datasets import Dataset
    from trl import DPOTrainer

    from tasks.training.arguments import load_tokenizer, lora_config, rejections

    config = arguments(spec)
    tokenizer = load_tokenizer(spec)
    check_lengths(config, tokenizer, pairs)
    with rejections("dpo"):
        trainer = DPOTrainer(
            model=spec.model,
            args=config,
            train_dataset=Dataset.from_list([preference(pair) for pair in pairs]),
            processing_class=tokenizer,
            peft_config=lora_config("dpo", spec),
        )
    check_ends(trainer, pairs)
    return trainer


def arguments(spec: DPOSpec) -> "DPOConfig":
    """The stage's TRL configuration; raises UserError for settings that cannot be trained with."""
    from trl import DPOConfig

    from tasks.training.arguments import trainer_arguments

    config = trainer_arguments("dpo", DPOConfig, spec)
    if config.beta <= 0:
        raise UserError(f"dpo.trainer.beta is {config.beta:g}, and DPO learns nothing unless it is above 0")
    return config


def plan(config: "DPOConfig", pairs: int) -> str:
    """What the stage is about to do, but for the number of steps."""
    epochs = config.num_train_epochs
    return f"dpo: {pairs:,} pairs" + (f", {epochs:g} epoch{'s' * (epochs != 1)}" if config.max_steps < 0 else "")


def preference(pair: Problem) -> dict[str, list[dict[str, str]]]:
    """A pair in TRL's conversational preference format."""
    return {
        "prompt": pair.messages,
        "chosen": [{"role": "assistant", "content": pair.chosen or ""}],
        "rejected": [{"role": "assistant", "content": pair.rejected or ""}],
    }


def check_lengths(config: "DPOConfig", tokenizer: "PreTrainedTokenizerBase", pairs: list[Problem]) -> None:
    """Raise UserError when TRL would cut an answer at `max_length`: the end is lost, and with it what was preferred."""
    limit = config.max_length
    if limit is None:
        return
    chats = [[*row["prompt"], *row[side]] for row in map(preference, pairs) for side in ("chosen", "rejected")]
    lengths = [len(ids) for ids in tokenizer.apply_chat_template(chats, return_dict=True)["input_ids"]]
    longer = [max(two) for two in zip(lengths[::2], lengths[1::2], strict=True)]
    if too_long := sum(length > limit for length in longer):
        longest = max(range(len(pairs)), key=longer.__getitem__)
        raise UserError(
            f"dpo.trainer.max_length is {limit} tokens, and {too_long} of {len(pairs)} pairs have an answer that is"
            f" longer with its prompt, up to {longer[longest]} (row {pairs[longest].id}); raise max_length, or take the"
            " long pairs out"
        )


def check_ends(trainer: "DPOTrainer", pairs: list[Problem]) -> None:
    """Raise UserError unless every answer ends, at its end and not before, as the model's own answers do."""
    tokenizer = trainer.processing_class
    ends = set(contract.end_tokens(trainer.model, tokenizer))
    stops = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends))) or "nothing"
    for side in ("chosen", "rejected"):
        for pair, ids in zip(pairs, trainer.train_dataset[f"{side}_ids"], strict=True):
            if ends.isdisjoint(ids):
                raise UserError(
                    f"dpo: the model stops at {stops}, but the chat template closes an answer with"
                    f" {tokenizer.decode(ids[-3:])!r} (`{side}` of row {pair.id}); set sft.trainer.eos_token to the"
                    " token that ends a turn in the template"
                )
            if not ends.isdisjoint(tokenizer(getattr(pair, side), add_special_tokens=False)["input_ids"]):
                raise UserError(
                    f"dpo: `{side}` of row {pair.id} holds a token that ends a turn ({stops}), where a model stops;"
                    " take it out of the text"
                )


def keep_contract(spec: DPOSpec, trainer: "DPOTrainer", pairs: list[Problem]) -> None:
    """Write `contract.json`; raises UserError unless the trainer reads prompts as the stages before have done."""
    from tasks.training.model import as_saved

    tokenizer = as_saved(trainer.processing_class, spec.trust_remote_code)
    asked = [pair.messages for pair in pairs]
    contract.check_same_ids(tokenizer, asked, trainer.train_dataset["prompt_ids"], "dpo")
    prompts = [row.messages for row in read_split(spec.data, "train")]
    stated = contract.state(tokenizer, contract.end_tokens(trainer.model, tokenizer), prompts, spec.data)
    contract.check_parent(stated, spec.parent_contract)
    contract.write(stated, spec.output)


def mean_tokens(trainer: "DPOTrainer") -> float:
    """The mean length of an answer in tokens, its end included."""
    lengths = [len(ids) for side in ("chosen_ids", "rejected_ids") for ids in trainer.train_dataset[side]]
    return sum(lengths) / len(lengths)


if __name__ == "__main__":
    run(DPOSpec, train)
