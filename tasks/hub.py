"""Base models: a local folder, or a Hugging Face id at a fixed commit."""

from dataclasses import dataclass
from pathlib import Path

from tasks import store
from tasks.config.schema import Model
from tasks.errors import UserError


@dataclass(frozen=True)
class BaseModel:
    """A base model that is known to exist."""

    path: str
    """An absolute folder, or a Hugging Face id."""
    revision: str | None
    """The commit of a Hugging Face id; none for a folder."""
    digest: str
    """Equal for equal files: what the keys of all stages rest on."""


def resolve(model: Model, root: Path, place: str) -> BaseModel:
    """Find the base model, without downloading its weights.

    Args:
        model: the section of params.yaml.
        root: the project; a relative folder starts here.
        place: where `model.path` was given, for the error.

    Raises:
        UserError: it is neither a folder with a model nor an id that the hub, or its cache on disk, knows.
    """
    folder = (root / model.path).resolve()
    if folder.is_dir():
        missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{place}: {folder} is no model folder: it has no {' and no '.join(missing)}")
        if not [*folder.glob("*.safetensors")]:
            raise UserError(
                f"{place}: {folder} has no *.safetensors: save it with save_pretrained (no pickle is loaded)"
            )
        return BaseModel(str(folder), None, store.digest(store.file_digests(folder)))
    if model.path.count("/") > 1 or model.path.startswith((".", "/", "~")):
        raise UserError(f"{place}: model.path: there is no folder {folder}")
    commit = _hub_commit(model, folder, place)
    return BaseModel(model.path, commit, store.digest({"id": model.path, "commit": commit}))


def _hub_commit(model: Model, folder: Path, place: str) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        commit = HfApi().model_info(model.path, revision=model.revision).sha
        if commit:
            return commit
        problem = "the hub names no commit"
    # However the hub fails (its HTTP library has many ways), the cache on disk is the next place to look.
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    try:
        snapshot = snapshot_download(
            model.path, revision=model.revision, local_files_only=True, allow_patterns=["config.json"]
        )
    except (LocalEntryNotFoundError, HFValidationError):
        raise UserError(
            f"{place}: model.path {model.path!r} is neither a folder ({folder}) nor a model that the Hugging Face hub "
            f"or its cache on disk can give: {problem}"
        ) from None
    return Path(snapshot).name
