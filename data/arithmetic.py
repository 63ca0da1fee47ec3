"""Write the problems of the default run: chains of small integers, `7-5+5+7`, answered step by step.

    python data/arithmetic.py [--out DIR]

Three files of one JSON object per line (`id`, `prompt`, `answer`, for some a `solution`):

- `chains.jsonl`: 2,600 chains of four integers, of which 1,100 carry a demonstration.
- `short.jsonl`, `long.jsonl`: 400 chains of three and of five integers each, of which 200 carry one.

The demonstrations are of mixed quality on purpose, as real ones are: 60 % of them are the bare answer. A model warmed
up on them learns the form of an answer and the bad habit of blurting it out.

The numbers are drawn from a fixed seed and nothing else, so every machine writes the same bytes.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

SEED = 20
# Length of the chains, problems, and how many of these carry a demonstration.
FILES = {"chains": (4, 2600, 1100), "short": (3, 400, 200), "long": (5, 400, 200)}
BARE_SHARE = 0.6


def chain(rng: random.Random, length: int) -> str:
    """A chain of `length` integers from 0 to 9 joined by `+` and `-`, such as `7-5+5+7`."""
    return str(rng.randint(0, 9)) + "".join(rng.choice("+-") + str(rng.randint(0, 9)) for _ in range(length - 1))


def steps(prompt: str) -> list[str]:
    """The working of a chain, one operation a line: `7-5+5` gives `["7-5=2", "2+5=7"]`."""
    total, lines = int(prompt[0]), []
    for sign, digit in zip(prompt[1::2], prompt[2::2], strict=True):
        result = total + int(sign + digit)
        lines.append(f"{total}{sign}{digit}={result}")
        total = result
    return lines


def result(prompt: str) -> str:
    """The value of a chain, as the verifier expects it."""
    return steps(prompt)[-1].split("=")[1]


def distinct_chains(rng: random.Random, length: int, count: int) -> Iterator[str]:
    seen: set[str] = set()
    while len(seen) < count:
        prompt = chain(rng, length)
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def rows(name: str) -> Iterator[dict[str, object]]:
    """The problems of one file, as they stand in it."""
    length, count, demonstrations = FILES[name]
    rng = random.Random(f"{SEED}/{name}")
    for index, prompt in enumerate(distinct_chains(rng, length, count)):
        answer = result(prompt)
        row: dict[str, object] = {"id": f"{name}-{index:04d}", "prompt": prompt, "answer": answer}
        if index < demonstrations:
            bare = rng.random() < BARE_SHARE
            row["solution"] = f"#{answer}" if bare else "\n".join([*steps(prompt), f"#{answer}"])
        yield row


def write(path: Path, problems: Iterator[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "arithmetic")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        write(out / f"{name}.jsonl", rows(name))


if __name__ == "__main__":
    main()
