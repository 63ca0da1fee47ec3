"""Promote: register the candidate with what stands behind it and, on a verdict to promote, make it the champion."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from pydantic import BaseModel

from tasks import gating, registry, stage, store, tracking
from tasks.evaluate import records, scores
from tasks.serving.smoke import Prompt, SmokeSpec
from tasks.stage import Progress

SMOKE_PROMPTS, SMOKE_TIMEOUT = 4, 1800.0
GREEDY = {
    "until": [],
    "do_sample": False,
    "temperature": 0.0,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
"""Generation settings of lm-eval that change nothing about a greedy answer."""


class Promotion(BaseModel):
    """A version that became the champion."""

    name: str
    version: str
    alias: str
    previous: str | None
    """The version that was champion before."""


@task(name="register", task_run_name="register", cache_policy=NO_CACHE)
def register(
    progress: Progress,
    candidate: store.Output,
    prepared: store.Output,
    evaluation: store.Output,
    verdict: gating.Verdict,
) -> registry.Version:
    """Register the candidate as a model version, tagged with run, data, code, verdict and scores.

    A model that is a version already, byte for byte, is not registered again; its tags are brought up to date.
    """
    params = progress.config.params
    found = scores(evaluation)[candidate.manifest.stage]
    tags = {
        "progression": progress.run_id,
        "stage": candidate.manifest.stage,
        "data_md5": prepared.manifest.facts["md5"],
        "base_model": params.model.path,
        "verdict": verdict.decision.value,
        **tracking.git_state(progress.config.root),
        **{f"score/{task_name}/{name}": f"{value:.6g}" for task_name, m in found.items() for name, value in m.items()},
    }
    version = registry.register(
        progress.client,
        _lock(progress),
        params.registry.name,
        progress.run_id,
        candidate.folder / "model",
        candidate.manifest.model_digest(),
        tags,
        params.model.trust_remote_code,
    )
    get_run_logger().info("%s version %s", version.name, version.version)
    return version


@task(name="promote", task_run_name="promote", cache_policy=NO_CACHE)
def promote(
    progress: Progress,
    version: registry.Version,
    gated_champion: str | None,
    evaluation: store.Output,
) -> Promotion:
    """Make a version the champion, once a fresh process has loaded it and got the answers that were evaluated.

    Raises:
        StageFailed: the version cannot be loaded, or answers otherwise than in its evaluation; it gets no alias.
        ChampionMovedError: the champion is no longer the one that the gate compared with; nothing changed.
    """
    _smoke(progress, version, evaluation)
    previous = registry.promote(progress.client, _lock(progress), version, gated_champion)
    promotion = Promotion(name=version.name, version=version.version, alias=registry.CHAMPION, previous=previous)
    progress.client.set_tag(progress.run_id, tracking.PROMOTED, version.version)
    get_run_logger().info(
        "models:/%s@champion is version %s, before it %s", version.name, version.version, previous or "none"
    )
    return promotion


def _lock(progress: Progress) -> Path:
    return progress.config.workspace / "mlflow" / "registry.lock"


def _smoke(progress: Progress, version: registry.Version, evaluation: store.Output) -> None:
    params = progress.config.params
    task_name = params.gate.primary.task
    settings = json.loads((evaluation.folder / "settings.json").read_bytes())["tasks"][task_name]
    answers = _asked_plainly(settings)
    folder = progress.folder / "smoke"
    folder.mkdir(parents=True, exist_ok=True)
    spec = SmokeSpec(
        tracking_uri=progress.client.tracking_uri,
        model_uri=f"models:/{version.name}/{version.version}",
        prompts=[
            Prompt(
                messages=[{"role": "user", "content": row["question"]}],
                expected=row["completion"] if answers else None,
            )
            for row in records(evaluation, version.tags["stage"], task_name)[:SMOKE_PROMPTS]
        ],
        max_tokens=settings["generation_kwargs"]["max_gen_toks"] if answers else None,
        # In lower precision the size of a batch changes answers, and a server's batch is not the evaluation's.
        min_equal=1.0 if params.model.dtype == "float32" else 0.0,
        output=folder,
    )
    stage.launch(progress, "smoke", "tasks.serving.smoke", spec, folder, progress.run_id, SMOKE_TIMEOUT)


def _asked_plainly(settings: Mapping[str, Any]) -> bool:
    """Whether a task asks as a chat user does: the question alone, answered greedily."""
    generation = settings["generation_kwargs"] or {}
    return (
        settings["output_type"] == "generate_until"
        and settings["num_fewshot"] == 0
        and settings["repeats"] == 1
        and not settings["description"]
        and "max_gen_toks" in generation
        and all(value == GREEDY.get(name) for name, value in generation.items() if name != "max_gen_toks")
    )
