"""lm-eval's tasks: finding them, and what they measure. No model is needed here, and neither is torch."""

import difflib
from collections.abc import Iterable
from functools import partial
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.models.dummy import DummyLM
from lm_eval.tasks import TaskManager

from tasks.errors import UserError
from tasks.evaluation.records import records
from tasks.evaluation.spec import EvaluationSpec


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


def check_metrics(task: Task, metrics: Iterable[str]) -> None:
    """Check that the gate can take the metrics, named as in the task's records.

    What the records hold is seen from one: the first item, with an answer that no model gave. Raises UserError for a
    metric that is no number per item there, and for one whose lower values are better.
    """
    name = task.config.task
    task.set_fewshot_seed(seed=0)
    found = evaluate(without_bars(DummyLM()), {"tasks": {name: task}}, limit=1, bootstrap_iters=0, log_samples=True)
    (record,) = records(found["samples"][name], task.doc_to_text)
    higher_is_better = task.higher_is_better()
    for metric in metrics:
        if metric not in record.score:
            raise UserError(
                f"gate: task {name!r} has no metric {metric!r}{_hint(metric, record.score)} "
                f"(its metrics of single items: {', '.join(record.score) or 'none'})"
            )
        if higher_is_better.get(metric.rpartition(",")[0] or metric) is False:
            raise UserError(
                f"gate: of task {name!r}, lower values of {metric!r} are better, but the gate takes higher as better; "
                f"name another metric (its metrics of single items: {', '.join(record.score)})"
            )


def without_bars(lm: LM) -> LM:
    """The same model, which shows no progress bars while it answers."""
    for request in ("generate_until", "loglikelihood", "loglikelihood_rolling"):
        setattr(lm, request, partial(getattr(lm, request), disable_tqdm=True))
    return lm


def settings(task: Task) -> dict[str, Any]:
    """What a task's scores depend on besides its items, as JSON."""
    config = task.config
    return {
        "version": task.VERSION,
        "output_type": config.output_type,
        "description": config.description,
        "num_fewshot": config.num_fewshot,
        "generation_kwargs": config.generation_kwargs,
        "repeats": config.repeats,
        "higher_is_better": task.higher_is_better(),
    }


def _load_task(name: str, manager: TaskManager, own_names: list[str]) -> Task:
    if name not in manager.all_tasks:
        present = ", ".join(own_names) or "no task"
        raise UserError(
            f"evaluation.tasks: neither {manager.include_path} nor lm-eval has a task {name!r}"
            f"{_hint(name, manager.all_tasks)} ({manager.include_path} has: {present})"
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


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
