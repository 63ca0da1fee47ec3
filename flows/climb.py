"""The climb: from the SFT model upwards, one rung after the other, as far as the figures say that it pays."""

from collections.abc import Callable
from dataclasses import dataclass

from flows.plan import Plan
from tasks import deciding
from tasks.climbed import Climb, Preference
from tasks.config import Configuration
from tasks.prepare import dataset
from tasks.probe import Findings, findings
from tasks.problems import read_summary
from tasks.store import Output, Stage
from tasks.train import stopped_by


@dataclass(frozen=True)
class Steps:
    """How the stages of the climb are obtained: run, or looked up to see how far a plan is decided."""

    sft: Callable[[Stage], Output]
    probe: Callable[[Stage, Output], Output]
    pairs: Callable[[Stage, Findings], Output]
    dpo: Callable[[Stage, Output, Output], Output]
    grpo: Callable[[Stage, Output, Findings], Output]
    control: Callable[[Stage, Output, Findings], Output]


def climb(config: Configuration, plan: Plan, prepared: Output, steps: Steps, control: bool) -> Climb:
    """SFT, a probe, DPO where quality needs it, GRPO where it can teach something."""
    outputs = {"sft": steps.sft(plan.sft)}
    trained = {"sft": outputs["sft"]}

    def probed(model: str, planned: Stage) -> Findings:
        stage = plan.probe(planned)
        outputs[stage.name] = steps.probe(stage, outputs[model])
        return findings(config, model, outputs[stage.name])

    first = now = probed("sft", plan.sft)
    probes, policy = [first], plan.sft
    given = read_summary(dataset(prepared.folder))["splits"]["train"]["with_pair"]
    wanted = deciding.wanted(config.params.dpo, given, first.measures, first.decision)
    choice = Preference(wanted.reason)
    if wanted.runs:
        paired = plan.pairs(plan.probe(plan.sft))
        outputs["pairs"] = steps.pairs(paired, first)
        counts = outputs["pairs"].manifest.facts
        if counts["pairs"]:
            planned = plan.dpo(paired)
            outputs["dpo"] = steps.dpo(planned, outputs["sft"], outputs["pairs"])
            probes.append(second := probed("dpo", planned))
            kept = deciding.kept(first.dev, second.dev, config.params.gate.confidence, stopped_by(outputs["dpo"]))
            choice = Preference(wanted.reason, kept, counts)
            if kept.kept:
                policy, now, trained["dpo"] = planned, second, outputs["dpo"]
        else:
            choice = Preference(f"{wanted.reason}, but no prompt has both a right and a wrong answer")

    candidate, start = trained.get("dpo"), outputs[policy.name]
    if now.decision.climbs:
        candidate = outputs["grpo"] = trained["grpo"] = steps.grpo(plan.grpo(policy), start, now)
        if control:
            outputs["control"] = trained["control"] = steps.control(plan.control(policy), start, now)
    return Climb(outputs, probes, choice, trained, candidate)
