import pytest

from tasks.gating import Control, compare_control


def scores(right, n=200):
    return {f"q{i:03}": float(i < right) for i in range(n)}


def control(start, grpo, random, n=200, step=0, dev=(0.2, 0.02)):
    return compare_control(
        "chains", "acc", scores(start, n), scores(grpo, n), scores(random, n), 0.95, step=step, dev_accuracy=dev
    )


@pytest.mark.parametrize(
    ("start", "grpo", "random", "distinguishable", "said"),
    [
        (40, 180, 40, False, ["indistinguishable from zero", "that is what its reward has taught"]),
        (40, 180, 42, False, ["indistinguishable from zero", "+69.0 points", "more than its control"]),
        (40, 180, 10, True, ["Random rewards made the model worse", "that is what its reward has taught"]),
        (40, 180, 90, True, ["Random rewards gain as well", "+45.0 points", "more than its control"]),
        (40, 90, 90, True, ["Random rewards gain as well", "need not come from what its reward says"]),
        (40, 40, 40, False, ["indistinguishable from zero", "nothing to explain"]),
        (40, 10, 40, False, ["indistinguishable from zero", "nothing to explain"]),
    ],
)
def test_the_conclusion_follows_from_all_three_models(start, grpo, random, distinguishable, said):
    found = control(start, grpo, random)
    assert found.distinguishable is distinguishable
    assert all(words in found.conclusion for words in said)


def test_on_few_items_nothing_is_claimed():
    found = control(2, 4, 2, n=8)
    assert not found.distinguishable
    assert "not shown to gain" in found.conclusion
    assert "taught" not in found.conclusion


def test_the_course_of_the_control_is_told_where_it_was_measured():
    assert "went from 20.0 % to 2.0 % on dev; its best model is the model that it started from" in (
        control(40, 180, 40).conclusion
    )
    assert "that of step 10" in control(40, 180, 40, step=10).conclusion
    assert "on dev" not in control(40, 180, 40, step=None, dev=None).conclusion


def test_it_is_read_back_from_json():
    found = control(40, 180, 42)
    assert Control.model_validate_json(found.model_dump_json()) == found
