"""The file of attempts: what is written is read, and a file that is none is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import UserError
from tasks.probing.attempts import read, write
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.rewards import Status

attempts = st.builds(
    Attempt,
    completion=st.text(),
    tokens=st.integers(1, 1000),
    ended=st.booleans(),
    score=st.floats(0, 1) | st.none(),
    status=st.sampled_from(Status),
    chance=st.floats(0, 1) | st.none(),
)
prompts = st.builds(ProbedPrompt, id=st.text(), source=st.text(), attempts=st.lists(attempts, max_size=3))


@given(st.lists(prompts, max_size=3))
def test_what_is_written_is_read(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("attempts") / "dev.jsonl"
    write(path, found)
    assert read(path) == found
    assert path.read_bytes().count(b"\n") == len(found)
    assert list(path.parent.iterdir()) == [path]


def line(**changes: object) -> str:
    attempt = Attempt(completion="#1", tokens=2, ended=True, score=1.0, status=Status.RIGHT)
    return ProbedPrompt(id="a", source="s", attempts=[attempt]).model_copy(update=changes).model_dump_json()


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("not json", "the line: Invalid JSON"),
        ("", "the line: Invalid JSON"),
        ('{"id": "a", "source": "s"}', "attempts: Field required"),
        (line().replace('"tokens":2', '"tokens":"many"'), "attempts.0.tokens: Input should be a valid integer"),
        (line().replace('"right"', '"fine"'), "attempts.0.status: Input should be 'right'"),
        (line()[:-1] + ', "more": 1}', "more: Extra inputs are not permitted"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, second, said):
    path = tmp_path / "train.jsonl"
    path.write_text(f"{line()}\n{second}\n{line()}\n")
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: {said}")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: cannot be read \(No such file"):
        read(tmp_path / "none.jsonl")
