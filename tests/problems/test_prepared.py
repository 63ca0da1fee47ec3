import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.config.schema import Source, Split
from tasks.errors import UserError
from tasks.problems import SPLITS, Problem, SplitName, fingerprint, normalise, prepare, read_split, split_of
from tasks.problems.prepared import read_summary
from tasks.rewards import check_gold

THIRDS = Split(train=0.4, dev=0.3, eval=0.3)
TRAIN, DEV, EVAL = Split(train=1), Split(dev=1), Split(eval=1)


def source(root: Path, name: str, split: Split, *rows: dict[str, Any]) -> Source:
    (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path=Path(f"{name}.jsonl"), split=split)


def row(prompt: str, answer: int | None = 1, **more: object) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, **more}


def run(root: Path, sources: dict[str, Source]) -> dict[str, Any]:
    return prepare(sources, root, root / "out", check_gold)


def places(folder: Path) -> dict[str, SplitName]:
    return {problem.id: split for split in SPLITS for problem in read_split(folder, split)}


def problem(prompt: Any) -> Problem:
    return Problem(id="x", source="s", prompt=prompt)


def test_spelling_does_not_count() -> None:
    assert normalise("  What IS\n\uff12\u00a0+ ½? ") == "what is 2 + 1\u20442?"
    assert fingerprint(problem("What is 2?")) == fingerprint(problem([{"role": "user", "content": "what  is 2?\n"}]))
    system = {"role": "system", "content": "Be brief."}
    assert fingerprint(problem([system, {"role": "user", "content": "What is 2?"}])) != fingerprint(
        problem("What is 2?")
    )


def test_a_place_is_the_share_of_the_interval_it_falls_in() -> None:
    digest = f"{int(0.5 * 16**13):013x}{'0' * 51}"
    assert split_of(digest, Split(train=0.51, dev=0.29, eval=0.2)) == "train"
    assert split_of(digest, Split(train=0.5, dev=0.3, eval=0.2)) == "dev"
    assert split_of(digest, Split(train=0.2, dev=0.3, eval=0.5)) == "eval"
    assert split_of("f" * 64, Split(train=0.9, dev=0.1 - 1e-12)) == "dev"  # never a split without a share
    assert split_of("0" * 64, EVAL) == "eval"


def test_shares_come_out_as_asked() -> None:
    digests = [fingerprint(problem(f"Problem {number}")) for number in range(20_000)]
    counts = {split: sum(split_of(digest, THIRDS) == split for digest in digests) for split in SPLITS}
    assert counts == pytest.approx({"train": 8000, "dev": 6000, "eval": 6000}, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(min_size=1).filter(lambda text: text.strip()), min_size=2, unique_by=normalise), st.data())
def test_rows_that_are_added_move_no_other(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("grown")
    early = data.draw(st.lists(st.sampled_from(prompts), min_size=1, unique=True))
    run(root, {"mine": source(root, "mine", THIRDS, *map(row, early))})
    before = places(root / "out")
    late = data.draw(st.permutations(prompts))
    run(root, {"renamed": source(root, "renamed", THIRDS, *map(row, late))})
    after = places(root / "out")
    assert len(after) == len(prompts)
    assert before.items() <= after.items()


def test_rows_are_in_the_order_of_sources_and_files_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    b = source(tmp_path, "b", TRAIN, row("z", metadata={"b": 1, "a": None}), row("ä", solution="#1"))
    a = source(tmp_path, "a", TRAIN, row("y"), row("hello", None, chosen="hi", rejected="no"))
    summary = prepare({"b": b, "a": a}, tmp_path, tmp_path / "one", check_gold)
    assert summary == prepare({"a": a, "b": b}, tmp_path, tmp_path / "two", check_gold)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["dev.jsonl", "eval.jsonl", "summary.json", "train.jsonl"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    problems = read_split(tmp_path / "one", "train")
    assert [(found.source, found.prompt) for found in problems] == [("a", "y"), ("a", "hello"), ("b", "z"), ("b", "ä")]
    assert problems[2].metadata == {"b": 1, "a": None}
    assert read_split(tmp_path / "one", "dev") == []

    none = {"rows": 0, "with_solution": 0, "verifiable": 0, "with_pair": 0, "sources": {}}
    assert summary == read_summary(tmp_path / "one") == {
        "splits": {
            "train": {
                "rows": 4, "with_solution": 1, "verifiable": 3, "with_pair": 1,
                "sources": {
                    "a": {"rows": 2, "with_solution": 0, "verifiable": 1, "with_pair": 1},
                    "b": {"rows": 2, "with_solution": 1, "verifiable": 2, "with_pair": 0},
                },
            },
            "dev": none,
            "eval": none,
        },
        "duplicates": 0,
        "set_aside": 0,
    }  # fmt: skip


def test_the_first_of_equal_prompts_stays(tmp_path: Path) -> None:
    a = source(tmp_path, "a", TRAIN, row("What is 1?", id="first"), row("what is  1?", id="second"))
    b = source(tmp_path, "b", TRAIN, row("WHAT IS 1?", id="third"))
    assert run(tmp_path, {"a": a, "b": b})["duplicates"] == 2
    assert places(tmp_path / "out") == {"first": "train"}


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_what_eval_asks_is_in_no_other_split(tmp_path: Path, order: str) -> None:
    shares = {"a": TRAIN, "b": DEV, "c": EVAL}
    sources = {
        name: source(tmp_path, name, shares[letter], row("same", id=letter), row(f"only {letter}", id=f"own {letter}"))
        for name, letter in zip(("x", "y", "z"), order, strict=True)
    }
    summary = run(tmp_path, sources)
    assert (summary["set_aside"], summary["duplicates"]) == (2, 0)
    assert places(tmp_path / "out") == {"own a": "train", "own b": "dev", "own c": "eval", "c": "eval"}
    assert [found.id for found in read_split(tmp_path / "out", "eval")] == ["c", "own c"]


def test_two_answers_to_one_prompt_are_refused_with_both_places(tmp_path: Path) -> None:
    a = source(tmp_path, "a", TRAIN, row("unasked", None), row("What is 1?", 1))
    b = source(tmp_path, "b", EVAL, row("what is 1?", None), row("WHAT IS 1?", 2))
    with pytest.raises(UserError) as caught:
        run(tmp_path, {"a": a, "b": b})
    assert str(caught.value).startswith(f"{tmp_path / 'b.jsonl'}:2: field 'answer' is '2', but ")
    assert f"{tmp_path / 'a.jsonl'}:2 gives '1'" in str(caught.value)


def test_a_folder_that_is_no_prepared_dataset_is_refused(tmp_path: Path) -> None:
    for read in (lambda: read_split(tmp_path, "train"), lambda: read_summary(tmp_path)):
        with pytest.raises(UserError, match="is not a prepared dataset"):
            read()
    (tmp_path / "train.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(UserError, match=r"train.jsonl: not a prepared dataset"):
        read_split(tmp_path, "train")
