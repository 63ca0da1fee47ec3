"""The evaluation process: `python -m tasks.evaluation.process SPEC` (`tasks.evaluation.spec.EvaluationSpec`).

It writes into the spec's output folder `records/MODEL/TASK.jsonl`, one line per item (`tasks.evaluation.records`);
`scores.json`, lm-eval's aggregates by model, task and metric; and `settings.json`, what must be equal for the records
of two evaluations to be comparable. With `check_only` it writes nothing, and ends as soon as it has seen that the tasks
have items and the metrics that are asked of them.
"""

import gc
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.evaluation.records import Record, check_pairs, check_prompts, records, scores
from tasks.evaluation.spec import EvaluationSpec
from tasks.processes import entry

if TYPE_CHECKING:
    from lm_eval.api.task import Task


def work(spec: EvaluationSpec) -> None:
    """Evaluate every model on every task; raises UserError for what the user can mend."""
    import logging

    from tasks.evaluation.tasks import check_metrics, load_tasks

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    tasks = load_tasks(spec)
    for task_name, metrics in spec.metrics.items():
        check_metrics(tasks[task_name], metrics)
    if not spec.check_only:
        entry.make_deterministic()
        _evaluate(spec, tasks)


def _evaluate(spec: EvaluationSpec, tasks: dict[str, "Task"]) -> None:
    import lm_eval
    import torch
    import transformers

    from tasks.evaluation import harness
    from tasks.evaluation.tasks import settings

    tokenizers = {name: harness.load_tokenizer(name, model) for name, model in spec.models.items()}
    for name, model in spec.models.items():
        harness.check_contract(name, model, tokenizers[name], spec.data)
    own_prompt = {name for name, model in spec.models.items() if model.own_prompt}
    for task_name, task in tasks.items():
        prompts = {
            name: harness.prompts(tokenizer, task, spec.limit, spec.seed)
            for name, tokenizer in tokenizers.items()
            if name not in own_prompt
        }
        check_prompts(task_name, prompts)

    by_task: dict[str, dict[str, list[Record]]] = {name: {} for name in tasks}
    all_scores: dict[str, dict[str, dict[str, float]]] = {}
    for model_name, model in spec.models.items():
        lm = harness.load_model(model_name, model, tokenizers[model_name], spec.batch_size)
        for task_name, task in tasks.items():
            started = time.monotonic()
            results, samples = harness.answer(lm, task, spec.limit, spec.seed)
            found = by_task[task_name][model_name] = records(samples, task.doc_to_text)
            score = all_scores.setdefault(model_name, {})[task_name] = scores(results, len(found))
            _print(model_name, task_name, score, time.monotonic() - started)
        del lm
        gc.collect()
        torch.cuda.empty_cache()

    for task_name, by_model in by_task.items():
        check_pairs(task_name, by_model, own_prompt)
        for model_name, found in by_model.items():
            path = spec.output / "records" / model_name / f"{task_name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in found)
            path.write_text("".join(lines), encoding="utf-8")
    _write_json(spec.output / "scores.json", all_scores)
    _write_json(
        spec.output / "settings.json",
        {
            "lm_eval": lm_eval.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "dtype": next(iter(spec.models.values())).dtype,
            "batch_size": spec.batch_size,
            "limit": spec.limit,
            "seed": spec.seed,
            "tasks": {name: settings(task) for name, task in tasks.items()},
        },
    )


def _print(model: str, task: str, score: dict[str, float], seconds: float) -> None:
    metrics = "  ".join(f"{name} {value:.3f}" for name, value in score.items() if name != "n")
    print(f"{model}  {task}  {metrics}  n {score['n']:g}  {seconds:.1f} s", flush=True)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    entry.run(EvaluationSpec, work)
