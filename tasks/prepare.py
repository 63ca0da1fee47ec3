"""Prepare the data: bring the sources, split them, and version both with DVC."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tasks import problems, rewards, stage, store, versioning
from tasks.config import Configuration
from tasks.errors import UserError
from tasks.stage import Progress
from tasks.tracking import DatasetVersion

NAME = "prepared"


def plan(config: Configuration) -> store.Stage:
    """The stage, from the md5 of every source.

    Raises:
        UserError: a source is missing and DVC does not know it.
    """
    sources = {
        name: {
            "md5": _md5(config, name, source.path),
            "split": source.split.model_dump(),
            "verifier": source.verifier,
        }
        for name, source in config.params.data.sources.items()
    }
    return store.Stage("prepare", {"data": sources, "code": stage.code("problems", "rewards")})


@task(
    name="prepare",
    task_run_name="prepare",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=5,
    retry_condition_fn=lambda _task, _run, state: not isinstance(state.data, UserError),
)
def prepare(progress: Progress, planned: store.Stage) -> State[store.Output]:
    """Obtain the prepared dataset: `train.jsonl`, `dev.jsonl` and `eval.jsonl`, versioned as `data/prepared`.

    A failure that is not the user's, such as a DVC remote that is away, is tried again.
    """
    config = progress.config
    sources = config.params.data.sources

    def work(folder: Path, _run_id: str) -> Mapping[str, Any]:
        versioning.materialise(config.root, config.workspace, [source.path for source in sources.values()])
        problems.prepare(sources, config.root, dataset(folder), rewards.check_gold)
        return {"md5": versioning.version_folder(config.root, config.workspace, dataset(folder), NAME)}

    state = stage.run(
        progress,
        planned,
        work,
        params=config.params.data.model_dump(mode="json"),
        summary=summary,
        datasets=source_versions(config, planned),
    )
    output = state.result()
    if output.cached:
        _publish_again(config, output)
    counts = problems.read_summary(dataset(output.folder))
    if left_out := counts["duplicates"] + counts["set_aside"]:
        get_run_logger().warning("%d rows were left out: a prompt counts once, and theirs had come before", left_out)
    return state


def _publish_again(config: Configuration, output: store.Output) -> None:
    """See to it that DVC's pointers and `data/prepared` are those of this output, and not of another run's since."""
    present = [source.path for source in config.params.data.sources.values() if (config.root / source.path).is_file()]
    versioning.materialise(config.root, config.workspace, present)
    if not versioning.is_published(config.root, NAME, output.manifest.facts["md5"]):
        versioning.version_folder(config.root, config.workspace, dataset(output.folder), NAME)


def dataset(folder: Path) -> Path:
    """The prepared dataset inside the stage's output."""
    return folder / "dataset"


def summary(output: store.Output) -> dict[str, float]:
    """Rows per split."""
    counts = problems.read_summary(dataset(output.folder))
    return {f"rows/{split}": float(count["rows"]) for split, count in counts["splits"].items()}


def source_versions(config: Configuration, planned: store.Stage) -> list[DatasetVersion]:
    """The raw sources as dataset versions."""
    return [
        DatasetVersion(name, str(config.params.data.sources[name].path), source["md5"], "source")
        for name, source in planned.inputs["data"].items()
    ]


def prepared_version(output: store.Output, context: str) -> DatasetVersion:
    """The prepared dataset as a dataset version, read for `context`."""
    return DatasetVersion(NAME, f"data/{NAME}", output.manifest.facts["md5"], context)


def dataset_versions(config: Configuration, planned: store.Stage, output: store.Output) -> list[DatasetVersion]:
    """Every dataset version of a progression: the raw sources, and the prepared dataset for each of its splits."""
    splits = [prepared_version(output, split) for split in problems.SPLITS]
    return [*source_versions(config, planned), *splits]


def _md5(config: Configuration, name: str, path: Path) -> str:
    try:
        return versioning.source_md5(config.root, path)
    except UserError as error:
        raise UserError(f"{config.place('data', 'sources', name, 'path')}: data.sources.{name}.path: {error}") from None
