"""The reward of GRPO: what a completion is trained on, and what its verifier says of it.

It is the verifier's score, or what a Python file of the user's says, beside which the verifier stands as an independent
judge: a reward that rises while `verified` does not is a reward that is being hacked.
"""

import importlib.util
import inspect
import json
import numbers
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.problems import Problem
from tasks.rewards import Status, Verdict, verify

Reward = Callable[..., list[float | None]]
"""A reward function of `trl.GRPOTrainer`."""
Score = Callable[[str, Problem], Any]
"""The user's `reward(completion, problem)`."""

SECONDS = 30.0
"""What the user's reward may take for one completion. Verifiers bound themselves."""


@dataclass(frozen=True)
class Judged:
    """A completion with what it earns: None where nothing is known of it, and then why."""

    verdict: Verdict
    reward: float | None
    failure: str = ""

    @property
    def status(self) -> Status:
        """The verifier's status; a reward that failed is a failure of the machinery, whatever the verifier says."""
        return Status.INFRASTRUCTURE if self.reward is None else self.verdict.status


def reward_function(
    rows: Sequence[Problem],
    samples: Path,
    samples_per_step: int,
    score: Score | None = None,
    shuffle_seed: int | None = None,
) -> Reward:
    """The reward for TRL: a number for each completion, None where it could not be judged (TRL leaves those out).

    `score` is trained on in place of the verifiers. With `shuffle_seed` the rewards change places within the batch, by
    the seed and the step, the None among them: the control of Shao et al. 2025, "Spurious Rewards",
    https://arxiv.org/abs/2506.10947, that keeps the distribution of the rewards.

    Logs how many completions got each status (`verdict/right`, ...: of one generation batch, averaged over the logged
    steps); with `score` or `shuffle_seed` also `verified`, the mean of the verifiers' scores. Appends
    `samples_per_step` completions, spread over the batch, to the file `samples`, with the verifier's score. Raises
    RuntimeError when not one completion of a batch could be judged.
    """

    def rewards(
        completions: list[list[dict[str, str]]],
        row: list[int],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        texts = [completion[0].get("content") or "" for completion in completions]
        problems = [rows[index] for index in row]
        judged = [_judge(text, problem, score) for text, problem in zip(texts, problems, strict=True)]
        if all(each.reward is None for each in judged):
            raise RuntimeError(f"no completion of the batch could be judged: {judged[0].failure}")
        counts = Counter(each.status for each in judged)
        for status in Status:
            log_metric(f"verdict/{status}", float(counts[status]))
        known = [each.verdict.score for each in judged if each.verdict.score is not None]
        if known and (score is not None or shuffle_seed is not None):
            log_metric("verified", sum(known) / len(known))
        given = [each.reward for each in judged]
        if shuffle_seed is not None:
            random.Random(f"{shuffle_seed}/{trainer_state.global_step}").shuffle(given)
        if samples_per_step and trainer_state.is_world_process_zero:
            chosen = range(0, len(texts), -(-len(texts) // samples_per_step))
            with samples.open("a", encoding="utf-8") as file:
                for index in chosen:
                    record = _sample(
                        trainer_state.global_step + 1, problems[index], texts[index], judged[index], given[index]
                    )
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        return given

    # TRL names its metrics after the function: `rewards/verifier/mean`.
    rewards.__name__ = "verifier" if score is None else "reward"
    return rewards


def load(path: Path) -> Score:
    """The function `reward(completion, problem)` of a Python file, which is run; raises UserError naming the file."""
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"grpo.reward: {path} is not a Python file; give one that has reward(completion, problem)")
    specification = importlib.util.spec_from_file_location("grpo_reward", path)
    assert specification is not None and specification.loader is not None  # noqa: S101  # it is a .py file
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and the like look their module up there.
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"grpo.reward: {_place(path, error)} cannot be imported: {_reason(error)}") from error
    score: Score | None = getattr(module, "reward", None)
    if not callable(score):
        raise UserError(f"grpo.reward: {path} has no function reward(completion: str, problem: Problem) -> float")
    try:
        inspect.signature(score).bind("", None)
    except TypeError as error:
        raise UserError(
            f"grpo.reward: {path}: reward must take a completion and its problem, reward(completion, problem): {error}"
        ) from error
    return score


def try_out(score: Score, path: Path, problem: Problem) -> None:
    """Raise UserError when the user's reward cannot be asked about the solution or answer of a problem."""
    completion = problem.solution or problem.answer or ""
    try:
        _number(score, completion, problem)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"grpo.reward: {_place(path, error)}: tried on the completion {completion!r} of problem {problem.id!r}:"
            f" {_reason(error)}; it must return a number from 0 to 1 for every completion"
        ) from error


def _judge(completion: str, problem: Problem, score: Score | None) -> Judged:
    verdict = verify(completion, problem)
    if score is None:
        return Judged(verdict, verdict.score, verdict.detail)
    try:
        return Judged(verdict, _number(score, completion, problem))
    except (Exception, SystemExit) as error:
        return Judged(verdict, None, f"reward(completion, problem): {_reason(error)}")


def _number(score: Score, completion: str, problem: Problem) -> float:
    """What the user's reward says, between 0 and 1 as a verifier's score is, so that the two can be compared.

    Raises what it raises, TimeoutError, and ValueError for anything else.
    """
    with _deadline(SECONDS):
        value = score(completion, problem)
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"it returned {value!r}, which is no number from 0 to 1")
    return float(value)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside when it takes longer. Rewards are asked in the main thread, where alarms ring."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} seconds")

    handler = signal.signal(signal.SIGALRM, ring)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, handler)


def _sample(step: int, problem: Problem, completion: str, judged: Judged, reward: float | None) -> dict[str, Any]:
    """A line of `samples.jsonl`: `score` and `status` are the verifier's, `reward` is what it was trained on with."""
    return {
        "step": step,
        "id": problem.id,
        "prompt": "\n\n".join(message["content"] for message in problem.messages),
        "completion": completion,
        "reward": reward,
        "score": judged.verdict.score,
        "status": judged.verdict.status,
        "answer": problem.answer,
    }


def _place(path: Path, error: BaseException) -> str:
    """The file, with the line of it that the error came through last."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
