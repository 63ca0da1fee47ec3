"""The MLflow model registry: candidates as versions, and the aliases that say which one is in production."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tasks.errors import ChampionMovedError

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, PREVIOUS = "champion", "previous"
MODEL_DIGEST = "model_digest"


@dataclass(frozen=True)
class Version:
    """A registered model version."""

    name: str
    version: str
    model_digest: str
    """As `store.Output.model_digest` gives it."""
    tags: Mapping[str, str]
    aliases: tuple[str, ...]


def champion(client: "MlflowClient", name: str) -> Version | None:
    """The version in production, if there is one."""
    return aliased(client, name, CHAMPION)


def aliased(client: "MlflowClient", name: str, alias: str) -> Version | None:
    """The version that an alias points to, if the model and the alias exist."""
    return next((version for version in versions(client, name) if alias in version.aliases), None)


def versions(client: "MlflowClient", name: str) -> list[Version]:
    """All versions of a registered model, newest first; none if the model is not registered."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

    try:
        aliases = client.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return []
        raise
    found = [
        Version(
            name=name,
            version=str(entry.version),
            model_digest=entry.tags.get(MODEL_DIGEST, ""),
            tags=entry.tags,
            aliases=tuple(sorted(alias for alias, version in aliases.items() if str(version) == str(entry.version))),
        )
        for entry in client.search_model_versions(f"name = '{name}'")
    ]
    return sorted(found, key=lambda version: int(version.version), reverse=True)


def model_folder(client: "MlflowClient", version: Version) -> Path:
    """The transformers folder inside a registered version, on this machine."""
    import mlflow.artifacts

    uri = client.get_model_version_download_uri(version.name, version.version)
    root = mlflow.artifacts.download_artifacts(artifact_uri=uri, tracking_uri=client.tracking_uri)
    [folder] = (Path(root) / "artifacts").iterdir()
    return folder


def register(
    client: "MlflowClient", name: str, run_id: str, model: Path, model_digest: str, tags: Mapping[str, str]
) -> Version:
    """Log a model to a run and register it as a version with tags, or find the version that this very model has.

    The registered model is made on first use. Every version is registered under the same lock as promotions are.
    """
    import mlflow
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

    from tasks.serving.flavor import model_kwargs

    known = next((version for version in versions(client, name) if version.model_digest == model_digest), None)
    if known is not None:
        return known
    mlflow.set_tracking_uri(client.tracking_uri)
    with mlflow.start_run(run_id=run_id):
        logged = mlflow.pyfunc.log_model(name="model", **model_kwargs(model))
    client.update_run(run_id, status="RUNNING")
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise
    created = client.create_model_version(
        name, logged.model_uri, run_id=run_id, model_id=logged.model_id, tags={**tags, MODEL_DIGEST: model_digest}
    )
    return Version(name, str(created.version), model_digest, created.tags, ())


def promote(client: "MlflowClient", lock: Path, candidate: Version, gated_champion: str | None) -> str | None:
    """Make a version the champion, if the champion is still the one it was gated against.

    Args:
        client: of the registry.
        lock: the lock file that serialises promotions; the operating system releases it after a crash.
        candidate: the version to promote.
        gated_champion: the version that was champion when the gate compared, if there was one.

    Returns:
        The version that was champion before, which is now `previous`; none if there was none.

    Raises:
        ChampionMovedError: another promotion came between; nothing was changed.
    """
    with FileLock(lock):
        current = champion(client, candidate.name)
        now = current.version if current else None
        if now != gated_champion:
            raise ChampionMovedError(
                f"{candidate.name}: version {candidate.version} was gated against champion {gated_champion or 'none'}, "
                f"and the champion is now {now or 'none'}: run again to be compared with it"
            )
        if now is not None:
            client.set_registered_model_alias(candidate.name, PREVIOUS, now)
        client.set_registered_model_alias(candidate.name, CHAMPION, candidate.version)
        return now
