"""The MLflow model registry: candidates as versions, and the aliases that say which one is in production."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    return next((version for version in versions(client, name) if CHAMPION in version.aliases), None)


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
    client: "MlflowClient",
    lock: Path,
    name: str,
    run_id: str,
    model: Path,
    model_digest: str,
    tags: Mapping[str, str],
    trust_remote_code: bool = False,
) -> Version:
    """Log a model to a run and register it as a version with tags; the registered model is made on first use.

    A model that is a version already, byte for byte, is not registered again: that version gets the tags, unless it
    has an alias, for then its tags are the record of its promotion. `lock` serialises registrations and promotions.
    """
    with FileLock(lock):
        known = next((version for version in versions(client, name) if version.model_digest == model_digest), None)
        if known is None:
            model_id, model_uri = _log(client, run_id, model, trust_remote_code)
            _ensure_registered_model(client, name)
            created = client.create_model_version(
                name, model_uri, run_id=run_id, model_id=model_id, tags={**tags, MODEL_DIGEST: model_digest}
            )
            return Version(name, str(created.version), model_digest, created.tags, ())
        if known.aliases:
            return known
        for tag, value in tags.items():
            client.set_model_version_tag(name, known.version, tag, value)
        return replace(known, tags={**known.tags, **tags})


def _log(client: "MlflowClient", run_id: str, model: Path, trust_remote_code: bool) -> tuple[str, str]:
    import mlflow

    from tasks.serving.flavor import model_kwargs

    mlflow.set_tracking_uri(client.tracking_uri)
    mlflow.set_registry_uri(client.tracking_uri)
    with mlflow.start_run(run_id=run_id):
        logged = mlflow.pyfunc.log_model(name="model", **model_kwargs(model, trust_remote_code))
    client.update_run(run_id, status="RUNNING")
    return logged.model_id, logged.model_uri


def _ensure_registered_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


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
