"""Verifiable rewards: one module for each kind of verifier.

A kind is a module of this package with two functions, and adding one is adding a file:

    verify(completion: str, problem: Problem) -> Verdict    never raises, in bounded time
    check_gold(problem: Problem) -> str | None              why the problem cannot be verified; None if it can

The same code scores completions in GRPO, in evaluation and on the command line.
"""

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from types import ModuleType

from tasks.errors import UserError
from tasks.problems.problem import Problem
from tasks.rewards.verdict import Status, Verdict

__all__ = ["MAX_COMPLETION", "Status", "Verdict", "check_gold", "kinds", "verify"]

MAX_COMPLETION = 50_000
"""Characters of a completion that any verifier looks at; a longer one is a violation."""


@cache
def kinds() -> list[str]:
    """The kinds of verifier there are, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "verdict")


def check_gold(problem: Problem) -> str | None:
    """Why the problem's completions could not be verified, starting with the field at fault; None if they can.

    A problem that names no verifier has nothing to check.
    """
    if problem.verifier is None:
        return None
    if problem.verifier not in kinds():
        return f"field 'verifier': {_unknown(problem.verifier)}"
    reason: str | None = _module(problem.verifier).check_gold(problem)
    return reason


def verify(completion: str, problem: Problem) -> Verdict:
    """The verdict of the problem's verifier on a completion; raises for no completion whatever.

    A failure inside a verifier is an infrastructure verdict, for one strange completion must not end a training.

    Raises UserError for a problem whose verifier is not named or not known.
    """
    if problem.verifier is None:
        raise UserError(f"problem {problem.id!r} of source {problem.source!r} names no verifier")
    if problem.verifier not in kinds():
        raise UserError(f"problem {problem.id!r} of source {problem.source!r}: {_unknown(problem.verifier)}")
    if len(completion) > MAX_COMPLETION:
        return Verdict(0.0, Status.VIOLATED, detail=f"the completion is longer than {MAX_COMPLETION:,} characters")
    try:
        verdict: Verdict = _module(problem.verifier).verify(completion, problem)
    except Exception as error:
        return Verdict(None, Status.INFRASTRUCTURE, detail=f"{type(error).__name__}: {error}")
    return verdict


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{kind}")


def _unknown(kind: str) -> str:
    close = get_close_matches(kind, kinds(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no verifier {kind!r}; {hint}There are: {', '.join(kinds())}"
