"""Pairs of a right and a wrong answer: who may be in one, and how lengths are balanced."""

import json
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import UserError
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.probing.pairs import given_pairs, make_pairs, read_pairs, write_pairs
from tasks.problems import Problem
from tasks.rewards import Status

SCORES = {Status.RIGHT: 1.0, Status.INFRASTRUCTURE: None}


def attempt(completion: str, status: Status, ended: bool = True, tokens: int | None = None) -> Attempt:
    length = len(completion) + 1 if tokens is None else tokens
    return Attempt(completion=completion, tokens=length, ended=ended, score=SCORES.get(status, 0.0), status=status)


def problem(name: str, **fields: object) -> Problem:
    return Problem(id=name, source="s", prompt=f"{name}?", answer="1", verifier="numeric", solution="#1", **fields)


def prompt(name: str, *attempts: Attempt) -> ProbedPrompt:
    return ProbedPrompt(id=name, source="s", attempts=list(attempts))


RIGHT, WRONG = Status.RIGHT, Status.WRONG
attempts = st.builds(
    attempt,
    completion=st.text("12#\n ", max_size=6),
    status=st.sampled_from(Status),
    ended=st.booleans(),
    tokens=st.integers(1, 30),
)
probes = st.lists(st.lists(attempts, max_size=8), max_size=6).map(
    lambda found: [prompt(f"p{place}", *each) for place, each in enumerate(found)]
)


def problems_of(probed: list[ProbedPrompt]) -> list[Problem]:
    return [problem(each.id) for each in probed]


@settings(deadline=None)
@given(probes, st.integers(1, 3), st.integers(0, 5))
def test_a_pair_is_a_right_and_a_wrong_answer_to_one_prompt_and_no_text_is_there_twice(probed, per_prompt, seed):
    pairs, counts = make_pairs(problems_of(probed), probed, per_prompt, seed)
    by_id = {each.id: each.attempts for each in probed}
    used: dict[str, list[str]] = {}
    for pair in pairs:
        name = pair.id.rsplit("-", 1)[0]
        used.setdefault(name, []).extend([pair.chosen, pair.rejected])
        of_chosen = [each for each in by_id[name] if each.completion == pair.chosen]
        of_rejected = [each for each in by_id[name] if each.completion == pair.rejected]
        assert any(each.right and each.ended for each in of_chosen)
        assert not any(each.status in (Status.WRONG, Status.NO_ANSWER) for each in of_chosen)
        assert any(each.status in (Status.WRONG, Status.NO_ANSWER) for each in of_rejected)
        assert not any(each.right for each in of_rejected)
        Problem.model_validate_json(pair.model_dump_json())
    assert all(len(texts) == len(set(texts)) <= 2 * per_prompt for texts in used.values())
    assert len({pair.id for pair in pairs}) == len(pairs) == counts["pairs"]
    assert len(used) == counts["mixed_prompts"] <= counts["prompts"] == len(probed)


@settings(deadline=None)
@given(probes, st.integers(1, 3), st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_seed_decides_and_no_order_does(probed, per_prompt, seed, rng):
    problems = problems_of(probed)
    shuffled = [each.model_copy(update={"attempts": rng.sample(each.attempts, len(each.attempts))}) for each in probed]
    rng.shuffle(shuffled)
    assert make_pairs(problems, probed, per_prompt, seed) == make_pairs(problems, shuffled, per_prompt, seed)


def test_another_seed_chooses_otherwise_among_equals():
    probed = [prompt(f"p{n}", attempt("#1", RIGHT), *(attempt(f"#{k}", WRONG) for k in range(2, 8))) for n in range(20)]
    first, second = (make_pairs(problems_of(probed), probed, 1, seed)[0] for seed in (0, 1))
    assert [pair.chosen for pair in first] == [pair.chosen for pair in second]
    assert [pair.rejected for pair in first] != [pair.rejected for pair in second]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_the_pair_of_one_prompt_is_the_nearest_in_length(right, wrong):
    probed = [
        prompt(
            "p",
            *(attempt(f"right {n} {tokens}", RIGHT, tokens=tokens) for n, tokens in enumerate(right)),
            *(attempt(f"wrong {n} {tokens}", WRONG, tokens=tokens) for n, tokens in enumerate(wrong)),
        )
    ]
    _, counts = make_pairs(problems_of(probed), probed, 1, 0)
    gap = abs(counts["mean_chosen_tokens"] - counts["mean_rejected_tokens"])
    assert gap == min(abs(a - b) for a in right for b in wrong)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_lengths_are_balanced_better_than_by_chance(seed):
    """Right answers are longer, as when working a problem out helps; the gap is at most half of what chance leaves."""
    rng = random.Random(seed)
    sizes = [
        ([rng.randint(8, 30) for _ in range(rng.randint(1, 6))], [rng.randint(4, 24) for _ in range(rng.randint(1, 6))])
        for _ in range(60)
    ]
    probed = [
        prompt(
            f"p{place}",
            *(attempt(f"r{n}", RIGHT, tokens=tokens) for n, tokens in enumerate(right)),
            *(attempt(f"w{n}", WRONG, tokens=tokens) for n, tokens in enumerate(wrong)),
        )
        for place, (right, wrong) in enumerate(sizes)
    ]
    _, counts = make_pairs(problems_of(probed), probed, 1, seed)
    by_chance = mean(abs(mean(rng.choice(right) - rng.choice(wrong) for right, wrong in sizes)) for _ in range(20))
    assert abs(counts["mean_chosen_tokens"] - counts["mean_rejected_tokens"]) <= by_chance / 2


def test_a_dataset_whose_right_answers_are_longer_is_balanced_as_far_as_its_samples_allow():
    """Half of the prompts force a chosen answer ten tokens longer; the other half can make up for it exactly."""
    forced = [prompt(f"f{n}", attempt("r", RIGHT, tokens=20), attempt("w", WRONG, tokens=10)) for n in range(10)]
    free = [
        prompt(
            f"a{n}",
            attempt("long", RIGHT, tokens=20),
            attempt("short", RIGHT, tokens=10),
            attempt("wrong", WRONG, tokens=20),
        )
        for n in range(10)
    ]
    pairs, counts = make_pairs(problems_of([*free, *forced]), [*free, *forced], 1, 0)
    assert counts["mean_chosen_tokens"] == counts["mean_rejected_tokens"] == 15
    assert all(pair.chosen == "short" for pair in pairs[:10])


def test_a_truncated_answer_is_rejected_only_where_there_is_no_other_and_never_chosen():
    cut = attempt("cut", WRONG, ended=False, tokens=2)
    probed = [
        prompt("other", attempt("#1", RIGHT), cut, attempt("a long wrong answer", WRONG)),
        prompt("alone", attempt("#1", RIGHT), cut),
        prompt("never", attempt("#1", RIGHT, ended=False), attempt("#2", WRONG)),
    ]
    pairs, _ = make_pairs(problems_of(probed), probed, 2, 0)
    assert [(pair.id, pair.rejected) for pair in pairs] == [("other-1", "a long wrong answer"), ("alone-1", "cut")]


def test_counts_and_fields():
    probed = [
        prompt("a", *[attempt("#1", RIGHT)] * 3, *[attempt("2+2=4\n#4", WRONG)] * 2, attempt("?", Status.NO_ANSWER)),
        prompt("b", *[attempt("#1", RIGHT)] * 2),
        prompt("c", attempt("#9", WRONG), attempt("#1", Status.INFRASTRUCTURE)),
        prompt("d", attempt("#1", RIGHT), attempt("#1", WRONG)),
    ]
    problems = [each.model_copy(update={"metadata": {"topic": "sums"}}) for each in problems_of(probed)]
    pairs, counts = make_pairs(problems, probed, 2, 0)
    expected = {"id": "a-1", "solution": None, "chosen": "#1", "rejected": "?"}
    assert pairs == [problems[0].model_copy(update=expected)]
    assert counts == {
        "prompts": 4,
        "mixed_prompts": 1,
        "pairs": 1,
        "mean_chosen_tokens": 3,
        "mean_rejected_tokens": 2,
        "duplicates": 4,
    }
    assert make_pairs(problems, [], 2, 0) == (
        [],
        dict.fromkeys(counts, 0),
    )


def test_a_prompt_that_is_not_in_the_data_is_refused():
    with pytest.raises(UserError, match="'x' of source 's' was probed, but is not in the train split"):
        make_pairs([problem("a")], [prompt("x")], 1, 0)


def test_given_pairs_are_those_of_the_data():
    rows = [problem("a"), problem("b", chosen="#1", rejected="#2")]
    assert given_pairs(rows) == [rows[1].model_copy(update={"solution": None})]
    with pytest.raises(UserError, match="row 'c' of source 's': `chosen` and `rejected` are the same text"):
        given_pairs([problem("c", chosen="#1", rejected="#1")])


def test_what_is_written_is_read_again_and_is_the_same_each_time(tmp_path):
    probed = [prompt("a", attempt("#1", RIGHT), attempt("#2 é", WRONG))]
    pairs, counts = make_pairs(problems_of(probed), probed, 1, 0)
    for name in ("one", "two"):
        write_pairs(tmp_path / name, pairs, {**counts, "origin": "made"})
    files = ["pairs.jsonl", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == files
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert read_pairs(tmp_path / "one" / "pairs.jsonl") == pairs
    assert json.loads((tmp_path / "one" / "summary.json").read_text()) == {**counts, "origin": "made"}
    assert "solution" not in (tmp_path / "one" / "pairs.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there are no pairs, so there is nothing to prefer.*probe.train_prompts"),
        (problem("a").model_dump_json(exclude_defaults=True), "line 1: `chosen` and `rejected` are missing"),
        ('{"id": "a"}', "line 1: Field required; make the pairs again"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused(tmp_path, content, message):
    path = tmp_path / "pairs.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_pairs(path)
