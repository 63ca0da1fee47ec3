"""What the stages of one progression have to agree on: tokenizer, chat template, end of a turn, prompts and data.

A stage states its contract before it trains, checks it against that of the stage whose model it starts from, and leaves
it beside its model as `contract.json`. What it says is of content alone, so the same stage elsewhere writes the same.

A stage also asserts that the library which trains, samples or measures makes of a prompt the ids that `prompt_ids`
gives: `check_same_ids(tokenizer, prompts, ids, "grpo")`, where `ids` are the library's. For TRL's GRPO trainer they
come from `tasks.training.model.trainer_prompt_ids`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import UserError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

FILE = "contract.json"
PROMPTS = 64
"""How many prompts are compared."""
Messages = list[dict[str, str]]


class Contract(BaseModel):
    """What a stage holds to; digests are sha256, in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str
    """Digest of what turns text into ids."""
    chat_template: str
    """Digest of the template's source."""
    end_tokens: tuple[int, ...]
    """The ids that end a turn, ascending."""
    prompts: str
    """Digest of the ids of the first prompts."""
    data: dict[str, str]
    """Digest of each file of the prepared dataset."""


def state(
    tokenizer: "PreTrainedTokenizerBase", ends: Iterable[int], prompts: Sequence[Messages], data: Path
) -> Contract:
    """The contract of a stage that reads with this tokenizer, ends a turn at the ids `ends` and trains on `data`.

    `prompts` are those of the train split in its order, whichever of them the stage uses: the first `PROMPTS` count,
    and only the same ones can be compared between stages.
    """
    return Contract(
        tokenizer=tokenizer_digest(tokenizer),
        chat_template=_digest(tokenizer.chat_template),
        end_tokens=tuple(sorted(set(ends))),
        prompts=_digest(prompt_ids(tokenizer, prompts[:PROMPTS])),
        data={path.name: _file_digest(path) for path in sorted(data.glob("*.jsonl"))},
    )


def end_tokens(model: Any, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The ids that end a completion: those of the model's generation configuration and the tokenizer's own."""
    return configured_ends(model.generation_config, tokenizer)


def configured_ends(generation: "GenerationConfig", tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The same of a model that is not loaded, from its generation configuration."""
    ends = generation.eos_token_id
    ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return ids


def write(contract: Contract, folder: Path) -> None:
    """Write `contract.json` into the folder."""
    (folder / FILE).write_text(contract.model_dump_json(indent=2) + "\n", encoding="utf-8", newline="\n")


def read(file: Path) -> Contract:
    """The contract in a file; raises UserError if there is none or it is not one."""
    try:
        return Contract.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UserError(
            f"{file}: the stage has left no contract ({error.strerror}), so it is not known which tokenizer and chat"
            " template its model was trained with; run that stage again"
        ) from error
    except ValidationError as error:
        raise UserError(f"{file}: not a contract ({error.errors()[0]['msg']}); run that stage again") from error


def check_parent(contract: Contract, parent_file: Path | None) -> None:
    """Raise UserError unless the stage reads, ends and renders as its parent, and the data are the parent's.

    `parent_file` is the parent's `contract.json`; None for a stage that starts from a base model.
    """
    if parent_file is None:
        return
    parent = read(parent_file)
    _check_reading(contract, parent, parent_file.parent)
    if changed := sorted({name for name, _ in contract.data.items() ^ parent.data.items()}):
        raise UserError(
            f"the prepared data are not those that {parent_file.parent} was trained with: {', '.join(changed)} differ;"
            " the stages of one progression share their data, so run the earlier ones again with these"
        )
    if contract.prompts != parent.prompts:
        raise UserError(
            f"the same prompts become other token ids than when {parent_file.parent} was trained, though tokenizer and"
            " chat template are the same: the template writes something that changes, such as today's date, or another"
            " version of transformers renders it; take that out of the template and run the earlier stages again"
        )


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", prompts: Iterable[Messages]) -> list[list[int]]:
    """The ids of each conversation and of the answer's opening: the chat template, applied once, and nothing added."""
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    return [tokenizer.apply_chat_template(messages, **how)["input_ids"] for messages in prompts]


def check_same_ids(
    tokenizer: "PreTrainedTokenizerBase", prompts: Iterable[Messages], ids: Iterable[Sequence[int]], who: str
) -> None:
    """Raise UserError unless `ids`, what `who` has made of the prompts, are what `prompt_ids` gives.

    The first `PROMPTS` are compared; the message shows the first difference.
    """
    first = list(islice(prompts, PROMPTS))
    pairs = zip(prompt_ids(tokenizer, first), islice(ids, PROMPTS), strict=True)
    for number, (expected, found) in enumerate(pairs, start=1):
        if difference := first_difference(tokenizer, expected, found):
            raise UserError(
                f"{who} reads other token ids than the chat template gives, in prompt {number}: {difference}; SFT, GRPO"
                " and evaluation must read a prompt alike (a first token that is there twice comes from a template that"
                " writes it and a tokenizer that adds it; chat_template_kwargs changes the prompts of one stage alone)"
            )


def first_difference(tokenizer: "PreTrainedTokenizerBase", expected: Sequence[int], found: Sequence[int]) -> str | None:
    """Where the ids differ, with the text around it; None where they are the same."""
    pairs = enumerate(zip_longest(expected, found))
    place = next((place for place, (one, other) in pairs if one != other), None)
    if place is None:
        return None
    around = slice(max(0, place - 4), place + 4)
    shown = [f"{_token(tokenizer, ids, place)} in {tokenizer.decode(ids[around])!r}" for ids in (found, expected)]
    return f"token {place} is {shown[0]} and should be {shown[1]}"


def tokenizer_digest(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest of what turns text into ids, the same for a tokenizer that was saved and loaded again.

    Padding and truncation do not count: trainers set them as they go.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _digest([tokenizer.get_vocab(), sorted(tokenizer.get_added_vocab())])
    rules = json.loads(backend.to_str())
    return _digest({name: value for name, value in rules.items() if name not in ("padding", "truncation")})


def _check_reading(found: Contract, stated: Contract, folder: Path) -> None:
    reasons = []
    if found.tokenizer != stated.tokenizer:
        reasons.append("another tokenizer")
    if found.chat_template != stated.chat_template:
        reasons.append("another chat template")
    if found.end_tokens != stated.end_tokens:
        reasons.append(f"other end tokens, ids {list(found.end_tokens)} in place of {list(stated.end_tokens)}")
    if reasons:
        raise UserError(
            f"{' and '.join(reasons)}: not what the model in {folder} was trained with, so it would read and end"
            " conversations in a way that it has not learnt; leave tokenizer, chat template and eos_token as the first"
            " stage has saved them, or change them there and run all stages again"
        )


def _token(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], place: int) -> str:
    return f"{tokenizer.decode([ids[place]])!r} ({ids[place]})" if place < len(ids) else "the end"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
