"""Supervised fine-tuning: `python -m tasks.training.sft SPEC` trains on the rows with a solution (`trl.SFTTrainer`).

A row becomes TRL's conversational prompt-completion format: TRL applies the chat template, once, and the loss covers
the completion alone.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import UserError
from tasks.problems import Problem, read_split
from tasks.processes import contract
from tasks.processes.entry import make_deterministic, run
from tasks.training.spec import TrainingSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import SFTConfig, SFTTrainer

SHOWN = {"loss": "loss", "accuracy": "mean_token_accuracy", "lr": "learning_rate"}


def train(spec: TrainingSpec) -> None:
    """Train and write the stage's output; raises UserError for rows or settings that cannot be trained with."""
    rows = solved_rows(spec.data)

    from datasets import Dataset
    from trl import SFTTrainer

    from tasks.training.arguments import load_tokenizer, lora_config, rejections
    from tasks.training.history import History
    from tasks.training.model import as_saved
    from tasks.training.stage import train_and_save

    make_deterministic()
    config = arguments(spec)
    tokenizer = load_tokenizer(spec)
    with rejections("sft"):
        trainer = SFTTrainer(
            model=spec.model,
            args=config,
            train_dataset=Dataset.from_list([conversation(row) for row in rows]),
            processing_class=tokenizer,
            peft_config=lora_config("sft", spec),
        )
    check_lengths(trainer, rows)
    check_labels(trainer, len(rows))
    saved = as_saved(trainer.processing_class, spec.trust_remote_code)
    check_prompts(trainer, saved, rows)
    prompts = [row.messages for row in read_split(spec.data, "train")]
    stated = contract.state(saved, contract.end_tokens(trainer.model, saved), prompts, spec.data)
    contract.check_parent(stated, spec.parent_contract)
    contract.write(stated, spec.output)
    train_and_save(trainer, spec, History(spec.output / "history.jsonl", plan(config, len(rows)), SHOWN), len(rows))


def arguments(spec: TrainingSpec) -> "SFTConfig":
    """The stage's TRL configuration; raises UserError for settings that cannot be trained with."""
    from trl import SFTConfig

    from tasks.training.arguments import trainer_arguments

    return trainer_arguments("sft", SFTConfig, spec)


def solved_rows(data: Path) -> list[Problem]:
    """The rows of the train split that have a solution; raises UserError when there are none."""
    rows = [row for row in read_split(data, "train") if row.solution is not None]
    if not rows:
        raise UserError(f"{data}: no row of the train split has a `solution`, so there is nothing to imitate")
    return rows


def plan(config: "SFTConfig", rows: int) -> str:
    """What the stage is about to do, but for the number of steps."""
    epochs = config.num_train_epochs
    return f"sft: {rows:,} rows" + (f", {epochs:g} epoch{'s' * (epochs != 1)}" if config.max_steps < 0 else "")


def conversation(row: Problem) -> dict[str, list[dict[str, str]]]:
    """A row in TRL's conversational prompt-completion format."""
    return {"prompt": row.messages, "completion": [{"role": "assistant", "content": row.solution or ""}]}


def check_lengths(trainer: "SFTTrainer", rows: list[Problem]) -> None:
    """Raise UserError when TRL would cut a row at `max_length`: the end is lost, and with it the answer."""
    limit = trainer.args.max_length
    if limit is None:
        return
    chats = [[*chat["prompt"], *chat["completion"]] for chat in map(conversation, rows)]
    tokens = trainer.processing_class.apply_chat_template(chats, return_dict=True)["input_ids"]
    lengths = [len(ids) for ids in tokens]
    if too_long := sum(length > limit for length in lengths):
        longest = max(range(len(rows)), key=lengths.__getitem__)
        raise UserError(
            f"sft.trainer.max_length is {limit} tokens, and {too_long} of {len(rows)} rows are longer, up to"
            f" {lengths[longest]} (row {rows[longest].id}); raise max_length, or take the long rows out"
        )


def check_labels(trainer: "SFTTrainer", rows: int) -> None:
    """Raise UserError unless every row is trained on, and taught to end: a model that never learnt to stop, rambles."""
    labels = trainer.train_dataset["labels"]
    if not trainer.args.packing:
        trained = sum(any(label != -100 for label in row) for row in labels)
        if trained < rows:
            raise UserError(f"sft: {rows - trained} of {rows} rows have no token to train on; check their `solution`")
    tokenizer = trainer.processing_class
    ends = contract.end_tokens(trainer.model, tokenizer)
    taught = sum(label in ends for row in labels for label in row)
    if taught < rows:
        last = tokenizer.decode([label for label in labels[0] if label != -100][-3:])
        stops = ", ".join(tokenizer.convert_ids_to_tokens(ends)) or "nothing"
        raise UserError(
            f"sft: the model would not learn to stop: it ends at {stops}, but the chat template closes an answer with"
            f" {last!r}; set sft.trainer.eos_token to the token that ends a turn in the template"
        )


def check_prompts(trainer: "SFTTrainer", saved: "PreTrainedTokenizerBase", rows: list[Problem]) -> None:
    """Raise UserError unless the model learns to answer what it will be asked: the prompt with the answer's opening.

    `saved` is the tokenizer that later stages will have: the ids of the first rows, up to where the loss begins, must
    be those that it gives for the prompt alone. Rows that are packed into one have no beginning that could be told, so
    of them the template alone is looked at.
    """
    if "strftime_now" in saved.get_chat_template():
        raise UserError(
            "sft: the chat template writes today's date into prompts (strftime_now), so no later stage would read those"
            " that were trained on; write a fixed date into a copy of it, named in sft.trainer.chat_template_path"
        )
    for row in rows[: contract.PROMPTS]:
        chat = conversation(row)
        (opened,) = contract.prompt_ids(saved, [chat["prompt"]])
        whole = saved.apply_chat_template([*chat["prompt"], *chat["completion"]], return_dict=True)["input_ids"]
        if difference := contract.first_difference(saved, opened, whole[: len(opened)]):
            raise UserError(
                "sft: the chat template begins an answer that is given otherwise than one that is asked for, so the"
                f" model would not be asked what it has learnt to answer; in row {row.id}, {difference}; name in"
                " sft.trainer.chat_template_path a template whose generation prompt is how an answer begins"
            )
    if trainer.args.packing:
        return
    first = trainer.train_dataset[: contract.PROMPTS]
    found = first["input_ids"]
    if trainer.completion_only_loss and not trainer.args.assistant_only_loss:
        masked = ([label == -100 for label in labels].index(False) for labels in first["labels"])
        found = [ids[:length] for ids, length in zip(found, masked, strict=True)]
    else:
        lengths = map(len, contract.prompt_ids(saved, first["prompt"]))
        found = [ids[:length] for ids, length in zip(found, lengths, strict=True)]
    contract.check_same_ids(saved, first["prompt"], found, "sft")


if __name__ == "__main__":
    run(TrainingSpec, train)
