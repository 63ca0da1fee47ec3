"""The `ratchet` command: parses, calls a flow, prints. Results go to stdout, logs and errors to stderr."""

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tasks.errors import ChampionMovedError, UserError
from tasks.launcher import StageFailed

if TYPE_CHECKING:
    from tasks.config import Configuration


class Control(StrEnum):
    """What a control run does to GRPO's rewards."""

    random_reward = "random-reward"


app = typer.Typer(
    help="Retrain language models and only ever move production forward.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Project = Annotated[Path | None, typer.Option(help="Folder of params.yaml; default: this one or the nearest above.")]
Recipe = Annotated[str | None, typer.Option(help="Lay recipes/NAME/params.yaml over params.yaml.", metavar="NAME")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-S", "--set", help="Override a parameter; may be repeated.", metavar="KEY.PATH=VALUE"),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def main() -> None:
    """Run the command; a user's mistake ends it with its message and exit code 2, never with a traceback."""
    try:
        app()
    except UserError as error:
        typer.echo(f"ratchet: {error}", err=True)
        sys.exit(2)
    except (StageFailed, ChampionMovedError) as error:
        typer.echo(f"ratchet: {error}", err=True)
        sys.exit(1)


@app.command()
def run(
    project: Project = None,
    recipe: Recipe = None,
    overrides: Overrides = None,
    control: Annotated[
        Control | None,
        typer.Option(help="Also train GRPO on shuffled rewards, and set the real gain beside the gain of that."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the parameters and the plan; run nothing.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to FILE.", metavar="FILE")] = None,
) -> None:
    """Retrain: prepare, SFT, DPO and GRPO as far as they pay, evaluate, gate, and promote what has earned it."""
    config = _configure(project, recipe, overrides)
    if json_file and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: there is no folder {json_file.parent}")
    if dry_run:
        from flows import outlook, show
        from flows import plan as planning

        show.plan(config, outlook.rows(config, planning.make(config), control is not None))
        return
    # A polite kill ends the run as Ctrl-C does: stages stopped, every MLflow run with its true status.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from flows import server

    wait = server.start(config.workspace)
    # What the run needs anyway is imported while the server starts, and mistakes that are cheap to see are seen now.
    import matplotlib.figure  # noqa: F401

    from flows import plan as planning
    from flows import show
    from flows.environment import log_mistakes_briefly
    from flows.progression import progression
    from tasks import tracking

    planning.make(config)
    planning.champion(config, tracking.connect(config.workspace))
    log_mistakes_briefly()
    wait()
    result = progression(config.root, recipe, overrides, control.value if control else None)
    if json_file:
        temporary = json_file.with_name(f".{json_file.name}.partial")
        temporary.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        temporary.replace(json_file)
    show.result(config, result, control is not None)


@app.command()
def status(
    project: Project = None, recipe: Recipe = None, overrides: Overrides = None, as_json: JsonFlag = False
) -> None:
    """Show the champion and the last progressions with their verdicts."""
    config = _configure(project, recipe, overrides)
    from flows import show

    show.status(config, as_json)


@app.command()
def gate(
    baseline: Annotated[Path, typer.Option(help="Scores of the model to beat: JSON lines of {id, score}.")],
    candidate: Annotated[Path, typer.Option(help="Scores of the candidate, of the same items.")],
    min_gain: Annotated[float, typer.Option(help="The smallest gain worth a promotion.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="Level of the interval.")] = 0.95,
    metric: Annotated[str | None, typer.Option(help="Which metric, where a score is an object of several.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two files of scores, item by item, and print the verdict."""
    from tasks import gating

    verdict = gating.compare_files(baseline, candidate, min_gain=min_gain, confidence=confidence, metric=metric)
    if as_json:
        typer.echo(verdict.model_dump_json(indent=2))
    else:
        typer.echo(gating.verdict_prose(verdict).replace("**", ""))


@app.command()
def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A progression's run id, its start, or `latest`.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; default: the run's own folder.")] = None,
    project: Project = None,
    overrides: Overrides = None,
) -> None:
    """Write the one-page report of a progression and print where it is."""
    config = _configure(project, None, overrides)
    from flows import show

    typer.echo(show.report(config, run_id, out))


def _configure(project: Path | None, recipe: str | None, overrides: list[str] | None) -> "Configuration":
    from flows import environment
    from tasks.config import find_project, load

    root = find_project(Path.cwd()) if project is None else project.resolve()
    config = load(root, recipe, overrides or [])
    environment.configure(config.workspace)
    return config


if __name__ == "__main__":
    main()
