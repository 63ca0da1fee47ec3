"""Gate: may the candidate replace what is in production?"""

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks import gating, tracking
from tasks.evaluate import scores
from tasks.stage import Progress
from tasks.store import Output
from tasks.train import dev_accuracy, metrics

BASELINE = "sft"
VERDICT_FILE = "verdict.json"


@task(name="gate", task_run_name="gate", cache_policy=NO_CACHE)
def gate(
    progress: Progress,
    evaluation: Output,
    candidate: Output | None,
    candidate_is_champion: bool,
    decision: str,
    objection: str | None,
) -> gating.Verdict:
    """Compare the candidate with the SFT baseline and, where one was evaluated, with the champion.

    The verdict goes to the log, to MLflow and to Prefect's artifacts.

    Args:
        progress: the progression.
        evaluation: of all models.
        candidate: the trained model; None where the climb stopped at SFT.
        candidate_is_champion: they are equal, byte for byte.
        decision: why the climb went as far as it did.
        objection: why the candidate must not be promoted, whatever its scores.
    """
    rules = progress.config.params.gate
    records = evaluation.folder / "records"
    baselines = [name for name in (BASELINE, gating.CHAMPION) if (records / name).is_dir()]
    if candidate is None:
        verdict = gating.nothing(f"The climb stopped at SFT, so there is no candidate. {decision}", rules)
    else:
        verdict = gating.decide(
            gating.read_records(records / candidate.manifest.stage, rules),
            {name: gating.read_records(records / name, rules) for name in baselines},
            rules,
            candidate_is_champion=candidate_is_champion,
            objection=objection,
        )
    prose = gating.verdict_prose(verdict)
    logger = get_run_logger()
    for line in prose.replace("**", "").splitlines():
        if line:
            logger.info(line)
    _track(progress, verdict)
    create_markdown_artifact(prose, key="verdict", description=f"Verdict of progression {progress.run_id}")
    create_table_artifact(_table(evaluation), key="evaluation", description="Scores of every model on every task")
    return verdict


def control_gain(progress: Progress, evaluation: Output, trained: Output) -> gating.Control:
    """What GRPO gained over the model it started from, and what its random-reward control did, on the primary task.

    `trained` is the output of the control's stage.
    """
    gate = progress.config.params.gate
    rule = gate.primary
    answered = {
        model: gating.read_records(evaluation.folder / "records" / model, gate)[rule.task, rule.metric]
        for model in scores(evaluation)
    }
    step, course = metrics(trained).get("best_step"), dev_accuracy(trained)
    found = gating.compare_control(
        rule.task,
        rule.metric,
        start=answered.get("dpo", answered[BASELINE]),
        grpo=answered["grpo"],
        control=answered["control"],
        confidence=gate.confidence,
        step=None if step is None else int(step),
        dev_accuracy=(course[0][1], course[-1][1]) if course else None,
    )
    get_run_logger().info(found.conclusion)
    return found


def _track(progress: Progress, verdict: gating.Verdict) -> None:
    progress.folder.mkdir(parents=True, exist_ok=True)
    file = progress.folder / VERDICT_FILE
    file.write_text(verdict.model_dump_json(indent=2), encoding="utf-8")
    client, run_id = progress.client, progress.run_id
    client.log_artifact(run_id, str(file))
    client.set_tag(run_id, tracking.VERDICT, verdict.decision.value)
    client.set_tag(run_id, tracking.REASON, verdict.reasons[0])
    for comparison in verdict.comparisons:
        figures = comparison.figures
        prefix = f"gate/{comparison.baseline}/{comparison.task}/{comparison.metric.replace(',', '/')}"
        gains = {"difference": figures.difference, "low": figures.low, "high": figures.high, "p": figures.p_value}
        tracking.log_metrics(client, run_id, {f"{prefix}/{name}": value for name, value in gains.items()})


def _table(evaluation: Output) -> list[dict[str, str | float]]:
    return [
        {"model": model, "task": task_name, **metrics}
        for model, tasks in scores(evaluation).items()
        for task_name, metrics in tasks.items()
    ]
