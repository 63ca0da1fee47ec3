"""Write GSM8K (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168) as problems of this project.

    python recipes/qwen2.5-0.5b-gsm8k/problems.py [--from DIR] [--out DIR]

Reads `openai/gsm8k` from the Hugging Face hub or, with `--from`, a folder with its `train.jsonl` and `test.jsonl`, and
writes files of the same names. A row of theirs is a `question` and an `answer`: the working, with annotations for a
calculator (`48/2 = <<48/2=24>>24`), and a last line `#### 72`. A row of ours asks for that last line, and has the
working without annotations as its `solution`.

Every answer has to be one that the verifier can check, and every solution one that it finds right; the first row that
is not ends the script with its place. The same input gives the same bytes.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import rewards
from tasks.errors import UserError
from tasks.problems import Problem, jsonl

DATASET, CONFIGURATION = "openai/gsm8k", "main"
SPLITS = ("train", "test")
OUT = Path(__file__).resolve().parents[2] / "data" / "gsm8k"
INSTRUCTION = 'Work it out step by step. End with a line "#### NUMBER" that gives the answer as a bare number.'
ANNOTATION = re.compile(r"<<[^<>]*>>")
FINAL = re.compile(r"(?P<working>.*)\n#### (?P<answer>\S+)", re.DOTALL)

Row = dict[str, Any]


def from_folder(folder: Path, split: str) -> Iterator[tuple[str, Row]]:
    """The rows of a split with their places, `file:line`; raises UserError for a file that is missing or no JSON."""
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; --from takes a folder with train.jsonl and test.jsonl")
    return ((f"{path}:{line}", row) for line, row in jsonl.rows(path))


def from_hub(split: str) -> Iterator[tuple[str, Row]]:
    """The rows of a split with their places, `dataset split:row`; raises UserError when the hub cannot be reached."""
    from datasets import load_dataset

    try:
        rows = load_dataset(DATASET, CONFIGURATION, split=split)
    except Exception as error:  # the hub's client fails in many ways, and all of them mean this
        raise UserError(
            f"{DATASET} cannot be had from the Hugging Face hub ({str(error).splitlines()[0]}); get its train.jsonl and"
            " test.jsonl from https://github.com/openai/grade-school-math and name their folder with --from"
        ) from error
    return ((f"{DATASET} {split}:{line}", row) for line, row in enumerate(rows, start=1))


def problem(row: Row, index: int, place: str) -> Row:
    """A row of GSM8K as a row of this project.

    Raises UserError, which starts with `place`, for a row of another form, for an answer that cannot be verified, and
    for a solution that the verifier does not find right.
    """
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not question.strip() or not isinstance(answer, str):
        raise UserError(f"{place}: expected the texts 'question' and 'answer', found {', '.join(row) or 'nothing'}")
    parts = FINAL.fullmatch(ANNOTATION.sub("", answer).strip())
    if parts is None:
        raise UserError(f"{place}: field 'answer' does not end in a line such as '#### 72': {answer[-60:]!r}")
    ours: Row = {
        "prompt": f"{question.strip()}\n\n{INSTRUCTION}",
        "answer": parts["answer"],
        "solution": f"{parts['working'].strip()}\n#### {parts['answer']}",
        "verifier": "numeric",
        "metadata": {"index": index},
    }
    checked = Problem.model_validate({"id": str(index), "source": "gsm8k", **ours})
    if (reason := rewards.check_gold(checked)) is not None:
        raise UserError(f"{place}: {reason}")
    verdict = rewards.verify(ours["solution"], checked)
    if verdict.status is not rewards.Status.RIGHT:
        raise UserError(f"{place}: the verifier does not find the solution right: {verdict.status}, {verdict.detail}")
    return ours


def problems(split: str, folder: Path | None) -> list[Row]:
    """All rows of a split, of a folder or else of the hub; raises UserError as `problem` does, or if there are none."""
    rows = from_folder(folder, split) if folder else from_hub(split)
    ours = [problem(row, index, place) for index, (place, row) in enumerate(rows)]
    if not ours:
        raise UserError(f"the split {split} has no rows")
    return ours


def write(path: Path, rows: list[Row]) -> None:
    """Write JSON lines; the file is either the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    partial.write_text("".join(lines), encoding="utf-8", newline="\n")
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=Path, help="read train.jsonl and test.jsonl here, not the hub")
    parser.add_argument("--out", type=Path, default=OUT, help="default: data/gsm8k of the project")
    options = parser.parse_args()
    try:
        ours = {split: problems(split, options.folder) for split in SPLITS}
    except UserError as error:
        print(f"problems.py: {error}", file=sys.stderr)
        sys.exit(2)
    for split, rows in ours.items():
        write(options.out / f"{split}.jsonl", rows)
        print(f"{options.out / f'{split}.jsonl'}: {len(rows):,} problems")


if __name__ == "__main__":
    main()
