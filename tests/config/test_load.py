"""params.yaml, recipes and overrides become one checked configuration, or one clear error."""

import re
from pathlib import Path

import pytest

from tasks.config import find_project, load
from tasks.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]

PARAMS = """\
model:
  path: base
data:
  sources:
    sums: {path: sums.jsonl, split: {train: 0.8, eval: 0.2}}
grpo:
  trainer:
    learning_rate: 1e-4
    beta: 0.0
evaluation:
  tasks: [sums]
gate:
  primary: {task: sums}
  guards:
registry:
  name: sums
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def write_recipe(project: Path, text: str) -> None:
    folder = project / "recipes" / "small"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(text)


def fault(project: Path, *overrides: str, recipe: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load(project, recipe, overrides)
    return str(caught.value)


def test_numbers_in_exponent_form_are_numbers(project: Path) -> None:
    assert load(project).params.grpo.trainer["learning_rate"] == 1e-4


def test_a_recipe_and_then_overrides_are_laid_over_params(project: Path) -> None:
    write_recipe(project, "grpo:\n  trainer: {learning_rate: 1e-5, max_steps: 3}\nseed: 1\n")
    params = load(project, "small", ["seed=2", "grpo.trainer.num_generations=4"]).params
    assert params.seed == 2
    assert params.grpo.trainer == {"learning_rate": 1e-5, "beta": 0.0, "max_steps": 3, "num_generations": 4}


def test_null_gives_the_default_back(project: Path) -> None:
    write_recipe(project, "data:\n  sources:\n    sums: null\n    more: {path: more.jsonl, split: {eval: 1}}\n")
    assert list(load(project, "small").params.data.sources) == ["more"]
    assert load(project, None, ["grpo.trainer.beta=null"]).params.grpo.trainer == {"learning_rate": 1e-4}


def test_a_list_replaces_a_list_and_one_item_of_it_can_be_set(project: Path) -> None:
    write_recipe(
        project,
        "evaluation: {tasks: [sums, more]}\ngate:\n  guards: [{task: more, margin: 0.1}]\n",
    )
    params = load(project, "small", ["gate.guards.0.margin=0.5"]).params
    assert params.evaluation.tasks == ["sums", "more"]
    assert (params.gate.guards[0].task, params.gate.guards[0].margin) == ("more", 0.5)


def test_the_resolved_file_loads_to_the_same_parameters(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = load(project, None, ["sft.lora.r=8"])
    again = tmp_path_factory.mktemp("again")
    (again / "params.yaml").write_text(config.to_yaml())
    assert load(again).params == config.params


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("grpo.trainr.beta=1", "unknown key 'grpo.trainr' (did you mean 'trainer'?)"),
        ("data.sources.sums.pth=x", "unknown key 'data.sources.sums.pth' (did you mean 'path'?)"),
        ("sft.trainer.hub_token=secret", "no secret belongs there; set HF_TOKEN"),
        ("workspce=x", "unknown key 'workspce' (did you mean 'workspace'?)"),
        ("seed=-1", "seed: input should be greater than or equal to 0, not -1"),
        ("model.path=null", "'model.path' is missing"),
        ("evaluation.tasks.3=x", "tasks is a list of 1"),
        ("gate.primary.task=other", "the gate needs task 'other'"),
        ("just-a-word", "expected key.path=value"),
        ("seed=[", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_named(project: Path, override: str, said: str) -> None:
    message = fault(project, override)
    assert said in message
    assert "\n" not in message


def test_a_fault_in_a_file_is_named_with_its_line(project: Path) -> None:
    (project / "params.yaml").write_text(PARAMS.replace("  name: sums", "  nmae: sums"))
    message = fault(project)
    assert f"{project / 'params.yaml'}:16: unknown key 'registry.nmae' (did you mean 'name'?)" in message
    assert "'registry.name' is missing" in message


def test_shares_that_do_not_add_up_are_named(project: Path) -> None:
    assert "params.yaml:5: data.sources.sums.split: the shares" in fault(
        project, "seed=1", "data.sources.sums.split.dev=0.1"
    )


def test_a_key_given_twice_is_an_error(project: Path) -> None:
    (project / "params.yaml").write_text(PARAMS + "seed: 1\nseed: 2\n")
    assert "params.yaml:18: not valid YAML: found duplicate key" in fault(project)


def test_an_unknown_recipe_names_the_known_ones(project: Path) -> None:
    write_recipe(project, "seed: 1\n")
    assert "no recipe 'smal' (did you mean 'small'?); recipes: small" in fault(project, recipe="smal")
    assert "no recipe '../small'" in fault(project, recipe="../small")


def test_the_project_is_the_nearest_folder_with_params(project: Path) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)
    assert find_project(below) == project.resolve()
    with pytest.raises(UserError, match=r"no params\.yaml"):
        find_project(project.parent)


def test_the_place_of_a_value_is_where_it_was_last_given(project: Path) -> None:
    config = load(project, None, ["grpo.trainer.beta=0.1"])
    assert config.place("grpo", "trainer", "beta") == "-S grpo.trainer.beta=0.1"
    assert config.place("grpo", "trainer", "learning_rate") == f"{project / 'params.yaml'}:8"
    assert config.place("grpo", "trainer", "not_given") == f"{project / 'params.yaml'}:7"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("grpo.health.kl=5", "grpo.health.kl"),
        ("grpo.health.kll.action=off", "there is no alarm 'kll'"),
        ("grpo.health.kl.action=panic", "'off', 'warn' or 'stop'"),
    ],
)
def test_an_alarm_that_is_not_one_is_refused(override, said):
    with pytest.raises(UserError, match=re.escape(said)):
        load(PROJECT, overrides=[override])


def test_an_alarm_keeps_the_defaults_that_are_not_given(tmp_path):
    (tmp_path / "params.yaml").write_text((PROJECT / "params.yaml").read_text())
    bare = load(tmp_path, overrides=["grpo.health=null", "grpo.health.kl.action=warn"]).params.grpo.health
    assert (bare["kl"].threshold, bare["kl"].patience, bare["kl"].action) == (2.0, 3, "warn")
    assert bare["reward_hacking"].action == "stop"
