"""Everything said to lm-eval about models: its model class, and its evaluation of one model on one task."""

from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import torch
import transformers
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerBase

from tasks.errors import UserError
from tasks.evaluation.spec import EvaluatedModel
from tasks.evaluation.tasks import without_bars
from tasks.problems import read_split
from tasks.processes import contract


def load_tokenizer(name: str, model: EvaluatedModel) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with the chat template of `chat_template_from` if it has none of its own.

    Raises UserError if there is no such tokenizer, or no template where one should come from.
    """
    if Path(model.path).is_absolute() and not (Path(model.path) / "config.json").is_file():
        raise UserError(
            f"model {name}: {model.path} cannot be loaded: no config.json; give the folder of a saved model"
        )
    load = partial(transformers.AutoTokenizer.from_pretrained, trust_remote_code=model.trust_remote_code)
    try:
        tokenizer = load(model.path, revision=model.revision or "main")
        if tokenizer.chat_template or model.chat_template_from is None:
            return tokenizer
        tokenizer.chat_template = load(model.chat_template_from).chat_template
    except (OSError, ValueError) as error:
        raise UserError(f"model {name}: the tokenizer of {model.path} cannot be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise UserError(f"model {name}: neither {model.path} nor {model.chat_template_from} has a chat template")
    return tokenizer


def check_contract(name: str, model: EvaluatedModel, tokenizer: PreTrainedTokenizerBase, data: Path) -> None:
    """Raise UserError unless the model is the one that its contract tells of, and the prepared data are those."""
    if model.contract is None:
        return
    try:
        generation = transformers.GenerationConfig.from_pretrained(model.path)
    except OSError as error:
        raise UserError(f"model {name}: {model.path} has no generation_config.json: {error}") from error
    ends = contract.configured_ends(generation, tokenizer)
    prompts = [row.messages for row in read_split(data, "train")]
    contract.check_parent(contract.state(tokenizer, ends, prompts, data), model.contract)


def prompts(tokenizer: PreTrainedTokenizerBase, task: Task, limit: int | None, seed: int) -> list[tuple[int, str]]:
    """What a model with this tokenizer is asked: the item's place in the dataset, and the prompt, of each request."""
    _build_requests(tokenizer, task, limit, seed)
    return [(instance.doc_id, instance.args[0]) for instance in task.instances]


def load_model(name: str, model: EvaluatedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> HFLM:
    """The model as lm-eval's HFLM, on the GPU if there is one; raises UserError if there are no safetensors of it.

    Of the model's own generation_config.json only the special tokens are kept: its penalties, sampling settings and
    `max_new_tokens` would otherwise silently take the place of what the task says.
    """
    try:
        lm = HFLM(
            pretrained=model.path,
            tokenizer=tokenizer,
            revision=model.revision or "main",
            dtype=model.dtype,
            device="cuda" if torch.cuda.is_available() else "cpu",
            batch_size=batch_size,
            trust_remote_code=model.trust_remote_code,
            use_safetensors=True,
            # A chat template writes all special tokens itself, and a beginning would be there twice.
            add_bos_token=False if tokenizer.chat_template else None,
        )
    except OSError as error:
        raise UserError(f"model {name}: {model.path} cannot be loaded: {error}") from error
    own = lm.model.generation_config
    lm.model.generation_config = transformers.GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    lm.apply_chat_template = partial(_in_chat_template, tokenizer)
    return without_bars(lm)


def answer(lm: HFLM, task: Task, limit: int | None, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """lm-eval's results (metrics by `metric,filter`) and samples of one model on one task.

    The chat template is applied where the tokenizer has one. Raises UserError if a prompt does not fit into the
    model's context together with what is to be generated: lm-eval would cut off its beginning with a mere warning.
    """
    name = task.config.task
    prompting, conversations = _build_requests(lm.tokenizer, task, limit, seed)
    _check_lengths(lm, task)
    _check_ids(lm, task, conversations)
    task.set_fewshot_seed(seed=seed)
    found = evaluate(lm, {"tasks": {name: task}}, **prompting, bootstrap_iters=0, log_samples=True)
    return found["results"][name], found["samples"][name]


def _build_requests(
    tokenizer: PreTrainedTokenizerBase, task: Task, limit: int | None, seed: int
) -> tuple[dict[str, Any], dict[str, contract.Messages]]:
    """Put the task's requests to a model with this tokenizer into the task.

    Returns how, for lm-eval's `evaluate`, and of each rendered prompt that ends where an answer begins, the messages.
    """
    conversations: dict[str, contract.Messages] = {}

    def in_chat_template(messages: contract.Messages, add_generation_prompt: bool = True) -> str:
        text = _in_chat_template(tokenizer, messages, add_generation_prompt)
        if add_generation_prompt:
            conversations[text] = messages
        return text

    chat = bool(tokenizer.chat_template)
    prompting = {"limit": limit, "apply_chat_template": chat, "fewshot_as_multiturn": True}
    transformers.set_seed(seed)
    task.set_fewshot_seed(seed=seed)
    task.build_all_requests(**prompting, chat_template=in_chat_template if chat else None)
    return prompting, conversations


def _in_chat_template(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], add_generation_prompt: bool = True
) -> str:
    """A conversation as the model reads it. HFLM's own method drops system messages that a template rejects."""
    try:
        text: str = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
    except jinja2.TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise UserError(
            f"the chat template of {tokenizer.name_or_path} rejects a conversation of {roles}: {error}; "
            "a task's `description` is its system message"
        ) from error
    return text


def _check_lengths(lm: HFLM, task: Task) -> None:
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        return
    generates = task.OUTPUT_TYPE == "generate_until"
    for instance in task.instances:
        prompt, rest = instance.args[:2]
        room = rest.get("max_gen_toks", lm.max_gen_toks) if generates else len(lm.tok_encode(rest))
        length = len(lm.tok_encode(prompt))
        if length + room > lm.max_length:
            raise UserError(
                f"task {task.config.task}, item {instance.doc_id}: the prompt's {length} tokens and {room} for the "
                f"answer do not fit into the model's context of {lm.max_length}; shorten the item or max_gen_toks"
            )


def _check_ids(lm: HFLM, task: Task, conversations: dict[str, contract.Messages]) -> None:
    """Raise UserError unless HFLM makes of prompts in the chat template what training makes of them."""
    texts = [text for text in dict.fromkeys(instance.args[0] for instance in task.instances) if text in conversations]
    texts = texts[: contract.PROMPTS]
    if not texts:
        return
    ids, mask = lm.tok_batch_encode(texts)
    batched = [row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)]
    for found in (batched, [lm.tok_encode(text) for text in texts]):
        contract.check_same_ids(
            lm.tokenizer, [conversations[text] for text in texts], found, f"task {task.config.task}"
        )
