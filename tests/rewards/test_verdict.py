import pytest

from tasks import rewards
from tasks.errors import UserError
from tasks.problems import Problem
from tasks.rewards import MAX_COMPLETION, Status, Verdict, numeric


def problem(verifier: str | None = "numeric", answer: str | None = "14") -> Problem:
    return Problem(id="p", source="mine", prompt="7+7", answer=answer, verifier=verifier)


def test_only_an_infrastructure_failure_has_no_score() -> None:
    assert Verdict(None, Status.INFRASTRUCTURE).score is None
    for score, status in ((None, Status.WRONG), (0.0, Status.INFRASTRUCTURE)):
        with pytest.raises(ValueError, match="does not go with"):
            Verdict(score, status)


def test_every_module_but_the_verdict_is_a_kind() -> None:
    assert "numeric" in rewards.kinds()
    assert "verdict" not in rewards.kinds()
    for kind in rewards.kinds():
        assert rewards.verify("", problem(kind)).status is not Status.RIGHT


def test_the_problems_verifier_is_asked() -> None:
    assert rewards.verify("#14", problem()) == Verdict(1.0, Status.RIGHT, "14")
    assert rewards.verify("#15", problem()) == Verdict(0.0, Status.WRONG, "15", "not 14")
    assert rewards.check_gold(problem()) is None
    assert rewards.check_gold(problem(verifier=None)) is None
    assert "field 'answer'" in str(rewards.check_gold(problem(answer="fourteen")))


@pytest.mark.parametrize(
    ("verifier", "message"),
    [(None, "'p' of source 'mine' names no verifier"), ("numerc", "did you mean 'numeric'?"), ("verdict", "There are")],
)
def test_a_problem_without_a_known_verifier_is_refused(verifier: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rewards.verify("#14", problem(verifier))
    if verifier:
        assert message in str(rewards.check_gold(problem(verifier)))


def test_a_completion_without_end_is_a_violation() -> None:
    assert rewards.verify("#14".rjust(MAX_COMPLETION), problem()).status is Status.NO_ANSWER
    assert rewards.verify("#14".rjust(MAX_COMPLETION + 1), problem()).status is Status.VIOLATED
    assert rewards.verify("\n#14".rjust(MAX_COMPLETION), problem()).status is Status.RIGHT


def test_a_verifier_that_breaks_is_not_the_completions_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_text: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(numeric, "read_number", broken)
    verdict = rewards.verify("#14", problem())
    assert (verdict.score, verdict.status, verdict.detail) == (None, Status.INFRASTRUCTURE, "RecursionError: too deep")
