"""Versions and aliases in a real MLflow registry on sqlite."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks import registry, tracking
from tasks.errors import ChampionMovedError

BASE = Path(__file__).resolve().parents[1] / "data" / "base"


@pytest.fixture(scope="module")
def versions(client: MlflowClient, workspace: Path) -> list[registry.Version]:
    """Two versions of one model, as two progressions would register them."""
    experiment = tracking.experiment_id(client, "sums", workspace)
    found = []
    for digest in ("d1", "d2"):
        with tracking.run(client, experiment, "progression", {}) as run_id:
            found.append(
                registry.register(client, workspace / "lock", "sums", run_id, BASE, digest, {"verdict": "promote"})
            )
            assert client.get_run(run_id).info.status == "RUNNING"
        assert client.get_run(run_id).info.status == "FINISHED"
    return found


def test_a_name_that_was_never_registered_has_no_champion(client: MlflowClient) -> None:
    assert registry.champion(client, "nobody") is None
    assert registry.versions(client, "nobody") == []


def test_versions_carry_their_tags_and_model(client: MlflowClient, versions: list[registry.Version]) -> None:
    assert [version.version for version in registry.versions(client, "sums")] == ["2", "1"]
    assert versions[0].tags["verdict"] == "promote"
    folder = registry.model_folder(client, versions[0])
    assert (folder / "model.safetensors").read_bytes() == (BASE / "model.safetensors").read_bytes()


def test_the_same_model_is_not_registered_twice(
    client: MlflowClient, workspace: Path, versions: list[registry.Version]
) -> None:
    experiment = tracking.experiment_id(client, "sums", workspace)
    with tracking.run(client, experiment, "progression", {}) as run_id:
        again = registry.register(client, workspace / "lock", "sums", run_id, BASE, "d1", {"verdict": "hold"})
    assert (again.version, again.tags["verdict"]) == (versions[0].version, "hold")
    assert registry.versions(client, "sums")[-1].tags["verdict"] == "hold"
    assert len(registry.versions(client, "sums")) == len(versions)


def test_promotion_moves_both_aliases_and_only_from_the_gated_champion(
    client: MlflowClient, versions: list[registry.Version], tmp_path: Path
) -> None:
    first, second = versions
    lock = tmp_path / "lock"
    with pytest.raises(ChampionMovedError, match="gated against champion 7"):
        registry.promote(client, lock, first, gated_champion="7")
    assert registry.champion(client, "sums") is None

    assert registry.promote(client, lock, first, gated_champion=None) is None
    with pytest.raises(ChampionMovedError, match="the champion is now 1"):
        registry.promote(client, lock, second, gated_champion=None)
    assert registry.champion(client, "sums").version == first.version  # type: ignore[union-attr]

    assert registry.promote(client, lock, second, gated_champion=first.version) == first.version
    aliases = {version.version: version.aliases for version in registry.versions(client, "sums")}
    assert aliases == {second.version: ("champion",), first.version: ("previous",)}


def test_the_record_of_a_promotion_is_not_overwritten(
    client: MlflowClient, workspace: Path, versions: list[registry.Version]
) -> None:
    experiment = tracking.experiment_id(client, "sums", workspace)
    client.set_registered_model_alias("sums", "previous", versions[0].version)
    with tracking.run(client, experiment, "progression", {}) as run_id:
        again = registry.register(client, workspace / "lock", "sums", run_id, BASE, "d1", {"verdict": "blocked"})
    assert again.tags["verdict"] == "hold"
