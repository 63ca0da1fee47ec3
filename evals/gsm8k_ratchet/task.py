"""What the YAML file of this folder calls: the verdict on an answer, and a second, flexible look at it."""

import re
from typing import Any

from tasks.evaluation import items
from tasks.rewards.numeric import read_number

NUMBER = re.compile(
    r"""
    (?: (?<! [\w)] ) - )?                                 # a sign, where there is nothing to subtract from
    \$?
    (?: [0-9]{1,3} (?: , [0-9]{3} )+ (?! [0-9] ) | [0-9]+ | (?= \.[0-9] ) )
    (?: \.[0-9]+ )?
    """,
    re.VERBOSE,
)


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """`acc` and `answered` as the verifier says, and `flexible`: whether the last number in the text is the answer."""
    return {**items.process_results(doc, results), "flexible": float(last_number_is(doc["target"], results[0]))}


def last_number_is(target: str, completion: str) -> bool:
    """Whether the last number of the completion, marked as the answer or not, equals the target in value."""
    found, gold = NUMBER.findall(completion), read_number(target)
    last = read_number(found[-1]) if found else None
    return last is not None and gold is not None and last.value == gold.value
