"""Which stages the climb runs, from what, and how far it is known beforehand; on outputs as the stages leave them."""

import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from flows import outlook
from flows import plan as planning
from flows.climb import Steps, climb
from tasks import pairs, prepare, probing, problems, rewards, stage, store
from tasks.climbed import Climb
from tasks.config import Configuration, load
from tasks.probe import Findings
from tasks.rewards import Status

ROOT = Path(__file__).parents[2]
SKILLS = {"never": [0], "seldom": [1, *[0] * 9], "sometimes": [2], "often": [6], "always": [8]}
"""Right answers of eight to the first prompt, the second and so on, over and over."""
STOP = {"step": 6, "alarm": "not_a_number", "value": 1.0, "threshold": 0.0, "action": "stop", "message": "loss is nan"}
WARNING = {**STOP, "alarm": "chosen_reward", "action": "warn", "message": "the reward falls"}
TO_GRPO = ["sft of base", "probe-sft of sft", "grpo of sft, probe-sft"]
CONTROL = "control of sft, probe-sft"
TO_DPO = ["sft of base", "probe-sft of sft", "pairs of probe-sft", "dpo of sft, pairs", "probe-dpo of dpo"]


@dataclass
class Run:
    """A project whose stages write what the real ones do, with the skill of each policy given."""

    config: Configuration
    skills: dict[str, str]
    alarms: list[dict[str, Any]]
    calls: list[str] = field(default_factory=list)
    """The stages that the climb asked for, and what each of them was given."""

    def __post_init__(self) -> None:
        self.plan = planning.make(self.config)

    def climb(self, control: bool = False) -> Climb:
        steps = Steps(self._train, self._probe, self._pairs, self._train, self._train, self._train)
        return climb(self.config, self.plan, self.prepared, steps, control)

    @cached_property
    def prepared(self) -> store.Output:
        def build(folder: Path) -> dict[str, Any]:
            sources = self.config.params.data.sources
            return problems.prepare(sources, self.config.root, prepare.dataset(folder), rewards.check_gold)

        return store.obtain(stage.stages_folder(self.config), self.plan.prepare, build)

    def rows(self, split: str) -> list[problems.Problem]:
        return problems.read_split(prepare.dataset(self.prepared.folder), split)

    def _obtain(self, build: Any, planned: store.Stage, *given: store.Output | Findings) -> store.Output:
        """Obtain a stage; its key must rest on the very outputs that it is handed."""
        handed = [(each.output if isinstance(each, Findings) else each).manifest for each in given]
        assert planned.inputs["parents"] == {each.stage: each.key for each in [self.prepared.manifest, *handed]}
        self.calls.append(f"{planned.name} of {', '.join(each.stage for each in handed) or 'base'}")
        return store.obtain(stage.stages_folder(self.config), planned, build)

    def _train(self, planned: store.Stage, *given: store.Output | Findings) -> store.Output:
        def build(folder: Path) -> dict[str, Any]:
            (folder / "model").mkdir()
            (folder / "model" / "model.safetensors").write_text(planned.key)
            write_lines(folder / "metrics.json", [{"loss": 0.5}])
            write_lines(folder / "history.jsonl", [{"step": 6, "loss": 0.5}])
            write_lines(folder / "alarms.jsonl", self.alarms if planned.name == "dpo" else [])
            return {}

        return self._obtain(build, planned, *given)

    def _probe(self, planned: store.Stage, policy: store.Output) -> store.Output:
        def build(folder: Path) -> dict[str, Any]:
            for split in ("dev", "train"):
                rows = self.rows(split)[: getattr(self.config.params.probe, f"{split}_prompts")]
                probing.write(folder / f"{split}.jsonl", probed(rows, SKILLS[self.skills[policy.manifest.stage]]))
            return {}

        return self._obtain(build, planned, policy)

    def _pairs(self, planned: store.Stage, found: Findings) -> store.Output:
        def build(folder: Path) -> dict[str, Any]:
            given = probing.given_pairs(self.rows("train"))
            made, counts = probing.make_pairs(self.rows("train"), found.train, per_prompt=2, seed=1)
            facts = {"pairs": len(given), "origin": "given"} if given else {**counts, "origin": "made"}
            probing.write_pairs(pairs.file(folder).parent, given or made, facts)
            return facts

        return self._obtain(build, planned, found)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def probed(rows: list[problems.Problem], rights: list[int]) -> list[probing.ProbedPrompt]:
    def attempt(place: int, right: bool) -> probing.Attempt:
        status = Status.RIGHT if right else Status.WRONG
        return probing.Attempt(completion=f"#{place}", tokens=3, ended=True, score=float(right), status=status)

    tried = cycle([attempt(place, place < right) for place in range(8)] for right in rights)
    return [probing.ProbedPrompt(id=row.id, source=row.source, attempts=next(tried)) for row in rows]


@pytest.fixture
def run(tmp_path: Path):
    """Of a project with 60 problems: `run(sft="often")` says how often SFT's model is right."""

    def make(*overrides: str, alarms: Any = (), pair: Any = (), **skills: str) -> Run:
        shutil.copy(ROOT / "params.yaml", tmp_path)
        (tmp_path / "data/arithmetic").mkdir(parents=True)
        rows = [{"prompt": f"{i}+1", "answer": i + 1, **dict(pair)} for i in range(60)]
        write_lines(tmp_path / "data/arithmetic/chains.jsonl", rows)
        sources = "data.sources={short: null, long: null, chains: {split: {train: 0.5, dev: 0.5, eval: 0.0}}}"
        return Run(load(tmp_path, None, [f"model.path={ROOT}/data/base", sources, *overrides]), skills, list(alarms))

    return make


def test_grpo_starts_from_sft_where_it_can_learn_from_the_verifier_directly(run):
    made = run(sft="sometimes")
    climbed = made.climb()
    assert made.calls == TO_GRPO
    assert climbed.candidate == climbed.outputs["grpo"]
    assert climbed.findings.model == "sft"
    assert climbed.preference.sentence.startswith("DPO did not run: the data has no preference pairs, and 0 % of")


def test_grpo_and_its_control_start_from_dpo_where_that_was_kept(run):
    made = run(sft="seldom", dpo="often", alarms=[WARNING])
    climbed = made.climb(control=True)
    assert made.calls == [*TO_DPO, "grpo of dpo, probe-dpo", "control of dpo, probe-dpo"]
    assert climbed.preference.reason.endswith("a signal too thin to start GRPO with")
    assert climbed.preference.kept.kept
    assert climbed.preference.pairs == climbed.outputs["pairs"].manifest.facts
    assert list(climbed.trained) == ["sft", "dpo", "grpo", "control"]
    assert climbed.candidate == climbed.outputs["grpo"]
    assert climbed.findings == climbed.probes[1]


@pytest.mark.parametrize(
    ("dpo", "alarms", "reason"),
    [
        ("sometimes", [], "Thrown away, as it is not shown to beat SFT"),
        ("never", [], "Thrown away, as it is not shown to beat SFT"),
        ("often", [WARNING, STOP], "Thrown away: an alarm stopped it. The alarm not_a_number stopped dpo at step 6"),
    ],
)
def test_grpo_starts_from_sft_where_dpo_was_thrown_away(run, dpo, alarms, reason):
    made = run("dpo.enabled=true", sft="sometimes", dpo=dpo, alarms=alarms)
    climbed = made.climb()
    assert made.calls == [*TO_DPO, "grpo of sft, probe-sft"]
    assert not climbed.preference.kept.kept
    assert climbed.preference.kept.reason.startswith(reason)
    assert list(climbed.trained) == ["sft", "grpo"]
    assert climbed.candidate == climbed.outputs["grpo"]
    assert climbed.findings.model == "sft"


def test_pairs_that_the_data_gives_are_used(run):
    made = run(pair={"chosen": "#1", "rejected": "#2"}, sft="sometimes", dpo="often")
    climbed = made.climb()
    count = len(made.rows("train"))
    assert made.calls == [*TO_DPO, "grpo of dpo, probe-dpo"]
    assert climbed.preference.reason == f"the data has {count} preference pairs"
    assert (climbed.preference.pairs["origin"], climbed.preference.pairs["pairs"]) == ("given", count)


def test_without_any_pair_dpo_does_not_run(run):
    made = run("dpo.enabled=true", "probe.train_prompts=0", sft="sometimes")
    climbed = made.climb()
    assert made.calls == [*TO_DPO[:3], "grpo of sft, probe-sft"]
    assert climbed.preference.kept is None
    assert climbed.preference.reason == "dpo.enabled is true, but no prompt has both a right and a wrong answer"


@pytest.mark.parametrize(
    ("overrides", "skills", "calls", "trained"),
    [
        ([], {"sft": "sometimes"}, [*TO_GRPO, CONTROL], ["sft", "grpo", "control"]),
        ([], {"sft": "never"}, TO_GRPO[:2], ["sft"]),
        ([], {"sft": "always"}, TO_GRPO[:2], ["sft"]),
        (["probe.decision=stop"], {"sft": "sometimes"}, TO_GRPO[:2], ["sft"]),
        (["probe.decision=climb"], {"sft": "never"}, [*TO_GRPO, CONTROL], ["sft", "grpo", "control"]),
        (["probe.decision=climb"], {"sft": "always"}, [*TO_GRPO, CONTROL], ["sft", "grpo", "control"]),
        ([], {"sft": "seldom", "dpo": "always"}, TO_DPO, ["sft", "dpo"]),
        (["probe.decision=stop"], {"sft": "seldom", "dpo": "often"}, TO_DPO, ["sft", "dpo"]),
        (["probe.decision=stop", "dpo.enabled=true"], {"sft": "often", "dpo": "never"}, TO_DPO, ["sft"]),
    ],
)
def test_the_candidate_is_the_last_model_that_was_worth_it(run, overrides, skills, calls, trained):
    made = run(*overrides, **skills)
    climbed = made.climb(control=True)
    assert made.calls == calls
    assert list(climbed.trained) == trained
    assert climbed.candidate is (climbed.outputs[trained[1]] if trained[1:] else None)


def look(made: Run, control: bool = False) -> tuple[outlook.Outlook, list[str], list[str], list[str]]:
    """The outlook, and the names of the stages that are known, of those that are done and of those that may follow."""
    seen = outlook.look(made.config, made.plan, control)
    known, done = ([each.name for each in stages] for stages in (seen.known, seen.done))
    return seen, known, done, [row.stage for row in outlook._open(made.config, known[-1], control)]


def test_the_outlook_follows_the_climb_up_to_the_first_stage_that_has_no_output(run):
    made = run(sft="seldom", dpo="often")
    climbed = made.climb(control=True)
    outputs = {"prepare": made.prepared, **climbed.outputs}
    seen, known, done, opened = look(made, control=True)
    assert (known, done, opened) == ([*outputs], [*outputs], ["evaluate"])
    assert seen.climb == climbed
    for count, name in reversed([*enumerate(outputs)]):
        shutil.rmtree(outputs[name].folder)
        seen, known, done, opened = look(made, control=True)
        assert seen.climb is None
        assert done == [*outputs][:count]
        assert known == [*outputs][: max(count + 1, 3)]
        assert known + opened == [*outputs, "evaluate"]
    assert len(made.calls) == len(climbed.outputs)


def test_the_outlook_ends_at_a_damaged_output_and_leaves_out_what_the_climb_does(run):
    made = run(sft="sometimes")
    (made.climb().outputs["grpo"].folder / "model" / "model.safetensors").write_text("cut off")
    seen, known, done, opened = look(made)
    assert (known, done, opened) == (["prepare", "sft", "probe-sft", "grpo"], known[:3], ["evaluate"])
    assert seen.climb is None


@pytest.mark.parametrize(
    ("overrides", "follow", "methods"),
    [
        ([], ["pairs", "dpo", "probe-dpo", "grpo", "evaluate"], {"sft", "dpo", "grpo"}),
        (["dpo.enabled=false"], ["grpo", "evaluate"], {"sft", "grpo"}),
        (["probe.decision=stop"], ["pairs", "dpo", "probe-dpo", "evaluate"], {"sft", "dpo"}),
    ],
)
def test_where_nothing_has_run_the_outlook_tells_what_may_follow(run, overrides, follow, methods):
    made = run(*overrides)
    seen, known, done, opened = look(made)
    assert (known, done, opened) == (["prepare", "sft", "probe-sft"], [], follow)
    assert outlook._to_train(made.config, seen) == methods
