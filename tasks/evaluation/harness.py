"""Everything said to lm-eval: its tasks, its model class, its evaluation of one model on one task."""

import difflib
from functools import partial
from typing import Any

import torch
import transformers
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from tasks.errors import UserError
from tasks.evaluation.spec import EvaluatedModel, EvaluationSpec


def load_tasks(spec: EvaluationSpec) -> dict[str, Task]:
    """The spec's tasks by name, ready to be asked.

    They are looked for in `include_path`; only if one is not there are lm-eval's own tasks indexed too (12 seconds).
    Raises UserError for a folder or a name that does not exist, for a group of tasks and for a task that would run
    code written by the model.
    """
    if not spec.include_path.is_dir():
        raise UserError(f"evaluation.include_path: there is no folder {spec.include_path}")
    index = partial(TaskManager, include_path=str(spec.include_path), metadata={"prepared": str(spec.data)})
    manager = index(include_defaults=False)
    own_names = manager.all_tasks
    if any(name not in own_names for name in spec.tasks):
        manager = index(include_defaults=True)
    return {name: _load_task(name, manager, own_names) for name in spec.tasks}


def load_model(name: str, model: EvaluatedModel, batch_size: int) -> HFLM:
    """The model as lm-eval's HFLM, on the GPU if there is one; raises UserError if there is no such model.

    Of the model's own generation_config.json only the special tokens are kept: its penalties, sampling settings and
    `max_new_tokens` would otherwise silently take the place of what the task says.
    """
    try:
        lm = HFLM(
            pretrained=model.path,
            revision=model.revision or "main",
            dtype=model.dtype,
            device="cuda" if torch.cuda.is_available() else "cpu",
            batch_size=batch_size,
            trust_remote_code=model.trust_remote_code,
        )
    except OSError as error:
        raise UserError(f"model {name}: {model.path} cannot be loaded: {error}") from error
    own = lm.model.generation_config
    lm.model.generation_config = transformers.GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    for request in ("generate_until", "loglikelihood", "loglikelihood_rolling"):
        setattr(lm, request, partial(getattr(lm, request), disable_tqdm=True))
    return lm


def answer(lm: HFLM, task: Task, limit: int | None, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """lm-eval's results (metrics by `metric,filter`) and samples of one model on one task.

    The chat template is applied where the tokenizer has one. Raises UserError if a prompt does not fit into the
    model's context together with what is to be generated: lm-eval would cut off its beginning with a mere warning.
    """
    name = task.config.task
    chat = bool(lm.tokenizer.chat_template)
    prompting = {"limit": limit, "apply_chat_template": chat, "fewshot_as_multiturn": True}
    transformers.set_seed(seed)
    task.set_fewshot_seed(seed=seed)
    task.build_all_requests(**prompting, chat_template=lm.apply_chat_template if chat else None)
    _check_lengths(lm, task)
    task.set_fewshot_seed(seed=seed)
    found = evaluate(lm, {"tasks": {name: task}}, **prompting, bootstrap_iters=0, log_samples=True)
    return found["results"][name], found["samples"][name]


def settings(task: Task) -> dict[str, Any]:
    """What a task's scores depend on besides its items, as JSON."""
    config = task.config
    return {
        "version": task.VERSION,
        "output_type": config.output_type,
        "num_fewshot": config.num_fewshot,
        "generation_kwargs": config.generation_kwargs,
        "repeats": config.repeats,
        "higher_is_better": task.higher_is_better(),
    }


def _load_task(name: str, manager: TaskManager, own_names: list[str]) -> Task:
    if name not in manager.all_tasks:
        near = difflib.get_close_matches(name, manager.all_tasks, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        present = ", ".join(own_names) or "no task"
        raise UserError(
            f"evaluation.tasks: neither {manager.include_path} nor lm-eval has a task {name!r}{hint} "
            f"({manager.include_path} has: {present})"
        )
    if name not in manager.all_subtasks:
        members = ", ".join(manager.load(name)["tasks"])
        raise UserError(f"evaluation.tasks: {name!r} is a group of tasks; name those that you want: {members}")
    task = manager.load(name)["tasks"][name]
    if getattr(task, "UNSAFE_CODE", False):
        raise UserError(f"evaluation.tasks: {name!r} runs code written by the model outside any sandbox; leave it out")
    if task.config.num_fewshot is None:
        task.set_config(key="num_fewshot", value=0)
    return task


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
