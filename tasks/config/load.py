"""From params.yaml, a recipe and overrides to one checked `Params`, with the place of every value.

YAML is read by ruamel.yaml in YAML 1.2, where `1e-4` is a number and a key given twice is an error.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from tasks.config.schema import Params
from tasks.errors import UserError

KeyPath = tuple[str | int, ...]
PARAMS = "params.yaml"


@dataclass(frozen=True)
class Configuration:
    """Checked parameters of a run and where each of them was given."""

    root: Path
    """The project: the folder that params.yaml stands in. Relative paths in it start here."""
    params: Params
    places: Mapping[KeyPath, str] = field(repr=False)
    """For every key path that was given, the file and line (or the option) that gave it."""

    @property
    def workspace(self) -> Path:
        """The folder of all outputs, absolute."""
        return (self.root / self.params.workspace).resolve()

    def place(self, *path: str | int) -> str:
        """Where the value at `path`, or the nearest section above it, was given."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return str(self.root / PARAMS)

    def to_yaml(self) -> str:
        """The resolved parameters as a params.yaml."""
        stream = StringIO()
        yaml = YAML()
        yaml.default_flow_style = False
        yaml.width = 120
        yaml.dump(self.params.model_dump(mode="json"), stream)
        return stream.getvalue()


def find_project(start: Path) -> Path:
    """The nearest folder from `start` upwards that holds a params.yaml.

    Raises:
        UserError: there is none.
    """
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / PARAMS).is_file():
            return folder
    raise UserError(
        f"no {PARAMS} in {start.resolve()} or any folder above it: go to a Ratchet project, or give --project"
    )


def load(root: Path, recipe: str | None = None, overrides: Iterable[str] = ()) -> Configuration:
    """Read params.yaml in `root`, lay a recipe and then the overrides over it, and check the whole.

    A mapping is merged key by key; anything else replaces what was there; null removes the key, which gives the
    schema's or the library's own default.

    Args:
        root: the project.
        recipe: a folder name under `recipes/`; its params.yaml is the overlay.
        overrides: `key.path=value` with the value in YAML, as in `grpo.trainer.learning_rate=1e-5`.

    Raises:
        UserError: a file is missing or is not YAML, a key is unknown, a value does not fit; every fault is listed.
    """
    values: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    for file in [root / PARAMS, *([recipe_file(root, recipe)] if recipe else [])]:
        _merge(values, _read(file), (), _file_places(file), places)
    for override in overrides:
        path, value = _parse_override(override)
        place = f"-S {override}"
        _merge(values, _nested(values, path, value, place), (), lambda _path, place=place: place, places)
    try:
        params = Params.model_validate(values)
    except ValidationError as error:
        faults = [_explain(fault, places, root) for fault in error.errors(include_url=False)]
        raise UserError("\n".join(faults)) from None
    return Configuration(root, params, places)


def recipe_file(root: Path, recipe: str) -> Path:
    """The overlay of a recipe by name.

    Raises:
        UserError: there is no such recipe; the message names those that there are.
    """
    file = root / "recipes" / recipe / PARAMS
    if file.is_file() and re.fullmatch(r"[\w.-]+", recipe):
        return file
    known = sorted(path.parent.name for path in (root / "recipes").glob(f"*/{PARAMS}"))
    raise UserError(f"no recipe {recipe!r}{nearest(recipe, known)}; recipes: {', '.join(known) or 'none'}")


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name that looks most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read(file: Path) -> CommentedMap:
    try:
        content = YAML().load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file, and it is what makes a folder a project") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{file}{line}: not valid YAML: {error.problem or error.context}") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not UTF-8 text") from None
    if content is None:
        return CommentedMap()
    if not isinstance(content, CommentedMap):
        raise UserError(f"{file}:1: expected keys and values such as `seed: 42`")
    return content


def _file_places(file: Path) -> Any:
    lines: dict[KeyPath, int] = {}

    def walk(node: Any, path: KeyPath) -> None:
        if isinstance(node, CommentedMap):
            for key in node:
                lines[(*path, key)] = node.lc.key(key)[0] + 1
                walk(node[key], (*path, key))
        elif isinstance(node, CommentedSeq):
            for index, item in enumerate(node):
                lines[(*path, index)] = node.lc.item(index)[0] + 1
                walk(item, (*path, index))

    walk(_read(file), ())
    return lambda path: f"{file}:{lines[path]}"


def _merge(
    target: dict[str, Any], overlay: Mapping[str, Any], path: KeyPath, place: Any, places: dict[KeyPath, str]
) -> None:
    for key, value in overlay.items():
        here = (*path, key)
        if value is None:
            target.pop(key, None)
            _forget(places, here)
        elif isinstance(value, Mapping):
            places.setdefault(here, place(here))
            if not isinstance(target.get(key), dict):
                target[key] = {}
            _merge(target[key], value, here, place, places)
        else:
            _forget(places, here)
            places[here] = place(here)
            target[key] = _plain(value, here, place, places)


def _forget(places: dict[KeyPath, str], path: KeyPath) -> None:
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]


def _plain(value: Any, path: KeyPath, place: Any, places: dict[KeyPath, str]) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            places[(*path, key)] = place((*path, key))
        return {key: _plain(item, (*path, key), place, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*path, index), place, places) for index, item in enumerate(value)]
    return value


def _parse_override(override: str) -> tuple[list[str], Any]:
    key, separator, text = override.partition("=")
    if not separator or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise UserError(f"-S {override}: expected key.path=value, such as grpo.trainer.learning_rate=1e-5")
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        raise UserError(f"-S {override}: the value is not valid YAML: {error.problem}") from None
    return key.split("."), value


def _nested(values: dict[str, Any], path: list[str], value: Any, place: str) -> dict[str, Any]:
    """The overlay that sets one key path; an item of a list is set by replacing the list."""
    key, rest = path[0], path[1:]
    if not rest:
        return {key: value}
    below = values.get(key)
    if isinstance(below, list):
        if not (rest[0].isdecimal() and int(rest[0]) < len(below)):
            raise UserError(f"{place}: {key} is a list of {len(below)}: give an index from 0 to {len(below) - 1}")
        items = {str(index): item for index, item in enumerate(below)}
        changed = _nested(items, rest, value, place)
        for index, item in changed.items():
            merged = {**items[index], **item} if isinstance(item, dict) and isinstance(items[index], dict) else item
            items[index] = merged
        return {key: list(items.values())}
    return {key: _nested(below if isinstance(below, dict) else {}, rest, value, place)}


def _explain(fault: Any, places: Mapping[KeyPath, str], root: Path) -> str:
    location: KeyPath = tuple(part for part in fault["loc"])
    place = next(
        (places[location[:n]] for n in range(len(location), 0, -1) if location[:n] in places), str(root / PARAMS)
    )
    name = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        return f"{place}: unknown key {name!r}{nearest(str(location[-1]), _fields_at(location[:-1]))}"
    if fault["type"] == "missing":
        return f"{place}: {name!r} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    given = "" if fault["type"] == "value_error" else f", not {fault['input']!r}"
    return f"{place}: {name + ': ' if name else ''}{message[0].lower() + message[1:]}{given}"


def _fields_at(path: KeyPath) -> list[str]:
    """Names of the keys that the schema knows in the section at `path`."""
    here: Any = Params
    for part in path:
        here = here.model_fields[part].annotation if _is_model(here) else _section_in(here)
    return list(here.model_fields) if _is_model(here) else []


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _section_in(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    found = [section for section in (_section_in(argument) for argument in get_args(annotation)) if section is not None]
    return found[0] if found else None
