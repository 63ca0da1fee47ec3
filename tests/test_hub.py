"""Base models are found, and pinned, before anything runs."""

import shutil
from pathlib import Path

import pytest

from tasks import hub
from tasks.config.schema import Model
from tasks.errors import UserError

BASE = Path(__file__).resolve().parents[1] / "data" / "base"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def resolve(root: Path, path: str, revision: str | None = None) -> hub.BaseModel:
    return hub.resolve(Model(path=path, revision=revision), root, "params.yaml:5")


def test_a_local_folder_is_known_by_its_files(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "a")
    shutil.copytree(BASE, tmp_path / "b")
    first, second = resolve(tmp_path, "a"), resolve(tmp_path, str(tmp_path / "b"))
    assert first.path == str(tmp_path / "a")
    assert first.digest == second.digest
    (tmp_path / "b" / "generation_config.json").write_text("{}")
    assert resolve(tmp_path, "b").digest != first.digest


@pytest.mark.parametrize("path", ["nothing", "./nothing", "some/deep/folder", "/nowhere"])
def test_a_folder_that_is_not_there(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^params\.yaml:5: model\.path") as caught:
        resolve(tmp_path, path)
    assert str((tmp_path / path).resolve()) in str(caught.value)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match=r"no model folder: it has no config\.json and no tokenizer_config\.json"):
        resolve(tmp_path, "model")


def test_weights_that_would_need_pickle_are_refused(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        resolve(tmp_path, "model")


def test_a_hub_id_is_pinned_to_the_commit_in_the_cache_when_the_hub_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub" / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(BASE, repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = resolve(tmp_path, "someone/tiny")
    assert (found.path, found.revision) == ("someone/tiny", COMMIT)
    with pytest.raises(UserError, match="neither a folder"):
        resolve(tmp_path, "someone/other")
