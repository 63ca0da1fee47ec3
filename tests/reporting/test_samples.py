import pytest

from tasks.reporting import changed_items


def rows(scores, completion):
    return [
        {"id": f"q{i}", "question": f"p{i}", "target": "1", "completion": completion, "score": {"acc": s, "length": 1}}
        for i, s in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("improved", "worse", "shown"),
    [
        (40, 20, (5, 5)),
        (40, 2, (8, 2)),
        (3, 20, (3, 7)),
        (0, 4, (0, 4)),
        (2, 1, (2, 1)),
        (0, 0, (0, 0)),
        (12, 0, (10, 0)),
    ],
)
def test_both_kinds_are_shown_where_there_are_both(improved, worse, shown):
    before = rows([0] * improved + [1] * worse + [1] * 5, "before")
    after = rows([1] * improved + [0] * worse + [1] * 5, "after")
    samples = changed_items("sft", "t", "acc", before, after)
    assert (samples.improved, samples.worse) == (improved, worse)
    assert (sum(i.improved for i in samples.items), sum(not i.improved for i in samples.items)) == shown
    assert len({item.id for item in samples.items}) == len(samples.items)
    for item in samples.items:
        assert (item.baseline.completion, item.candidate.completion, item.gold) == ("before", "after", "1")


def test_shown_items_are_spread_over_the_records_and_do_not_depend_on_the_baselines_order():
    before, after = rows([0] * 100, "before"), rows([1] * 100, "after")
    samples = changed_items("sft", "t", "acc", before, after, limit=4)
    assert [item.id for item in samples.items] == ["q0", "q25", "q50", "q75"]
    assert changed_items("sft", "t", "acc", before[::-1], after, limit=4) == samples
