"""Pairs: what DPO learns from, given in the data or made of the policy's own answers, versioned with DVC."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from tasks import probing, problems, stage, store, versioning
from tasks.config import Configuration
from tasks.prepare import dataset, prepared_version
from tasks.probe import Findings
from tasks.stage import Progress
from tasks.tracking import DatasetVersion

NAME = "pairs"


def plan(config: Configuration, prepare: store.Stage, probe: store.Stage) -> store.Stage:
    """The pairs, from the data, the probe's samples and how pairs are made of them."""
    return store.Stage(
        "pairs",
        {
            "parents": {each.name: each.key for each in (prepare, probe)},
            "seed": config.params.seed,
            "params": {"pairs_per_prompt": config.params.dpo.pairs_per_prompt},
            "code": stage.code("probing", "problems"),
        },
    )


@task(name="pairs", task_run_name="pairs", cache_policy=NO_CACHE)
def pairs(progress: Progress, planned: store.Stage, probed: Findings, prepared: store.Output) -> State[store.Output]:
    """Take the pairs that the train split has; if it has none, pair right with wrong answers of the probe."""
    config = progress.config

    def work(folder: Path, _run_id: str) -> Mapping[str, Any]:
        rows = problems.read_split(dataset(prepared.folder), "train")
        found = probing.given_pairs(rows)
        counts: dict[str, Any] = {"pairs": len(found), "origin": "given"}
        if not found:
            found, made = probing.make_pairs(rows, probed.train, config.params.dpo.pairs_per_prompt, config.params.seed)
            counts = {**made, "origin": "made"}
        probing.write_pairs(file(folder).parent, found, counts)
        return {"md5": versioning.version_folder(config.root, config.workspace, file(folder).parent, NAME), **counts}

    state = stage.run(
        progress,
        planned,
        work,
        params={"seed": config.params.seed, "pairs_per_prompt": config.params.dpo.pairs_per_prompt},
        summary=summary,
        datasets=[prepared_version(prepared, "train")],
    )
    output = state.result()
    if output.cached and not versioning.is_published(config.root, NAME, output.manifest.facts["md5"]):
        versioning.version_folder(config.root, config.workspace, file(output.folder).parent, NAME)
    return state


def file(folder: Path) -> Path:
    """The pairs inside the stage's output."""
    return folder / NAME / "pairs.jsonl"


def version(output: store.Output) -> DatasetVersion:
    """The pairs as a dataset version."""
    return DatasetVersion(NAME, f"data/{NAME}", output.manifest.facts["md5"], "train")


def summary(output: store.Output) -> dict[str, float]:
    """How many pairs there are, and of what they were made."""
    facts = output.manifest.facts
    return {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}
