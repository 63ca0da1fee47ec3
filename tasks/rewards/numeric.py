r"""One number as the answer, compared exactly.

**Where it looks.** Only after the last `</think>`; thinking that never ends has no answer in it. An answer is marked

- by a line that starts with one to four `#` and goes on as a number does: `#14`, `#### 18`, `## -$3.50`. Other
  lines that start so are headings (`### Step 1`, `## 1. Compute`) and mean nothing; and so is, after fewer than four
  `#` and a space, a number with words behind it (`### 3 Final answer`);
- by `\boxed{...}`, its braces matched.

Numbers anywhere else mean nothing either. Every marked answer must read as one number, and all of them must be the
same one: a completion that offers two has not answered.

**What a number is.** Optional sign, then one of

- digits with an optional fraction and exponent, `12`, `.5`, `1.23e5`, the exponent at most 308;
- thousands in groups of exactly three, `1,234`, `1{,}234`, `1\,234` or with a narrow no-break space, one separator
  throughout. Not with a plain space, which also separates the items of a list, so `1 234` is no number; `1,23` and
  `0,123` are none either, for they may be decimal commas;
- a fraction of whole numbers, `3/4`, `\frac{3}{4}`, or a mixed one, `1 1/2`, `1\frac{1}{2}`, whose fraction is proper.

Bold (`**18**`), math mode (`$18$`), one full stop at the end and `\text{...}` around units are taken away.

**Units.** `$`, `€`, `£` before or after the number, `%` or `°` after it, and then up to three words are its unit. A
unit changes no value, percent included: `50%` reads as 50, never as 0.5. It counts only where both sides name one: the
gold answer `50` takes `50%`, the gold `10 km` takes `10` but not `10 m`. So a gold answer should be the bare number and
the prompt should say in what unit. What changes a value (`18 million`, `3 halves`, `5 or six`, `18x`) is no unit.

**Bounds.** A marked answer has at most 100 characters. Everything is linear in the completion.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from tasks.problems.problem import Problem
from tasks.rewards.verdict import Status, Verdict

MAX_ANSWER = 100
MAX_EXPONENT = 308
MAX_UNIT_WORDS = 3

_BOX = re.compile(r"\\boxed\s{0,4}")
_ANSWER_LINE = re.compile(
    r"""
    (?P<hashes>\#{1,4}) (?!\#) (?P<gap>[ \t]{0,4}) (?P<answer>
        [*$]{0,4}                                       # bold, math mode, a dollar
        (?! [0-9]+ [.)] [ \t]+ [^\W\d_] )               # not a numbered heading
        [-+\u2212\u2013]? (?: \\?\$ | [€£] )? [-+\u2212\u2013]?
        (?: \.?[0-9] | \\[dt]?frac | \\(?:text|mathrm) )
        .*
    )
    """,
    re.VERBOSE,
)
_NUMBER_AND_WORDS = re.compile(r"[0-9*][ \t]+[^\W\d_]{2}")
_NUMBER = re.compile(
    r"""
    (?P<sign>[-+\u2212\u2013])? (?P<currency>\\?\$|[€£])? (?P<inner_sign>[-+\u2212\u2013])?
    (?:
        (?: (?P<whole>[0-9]+) (?:[ ]{1,4}|(?=\\)) )?
        (?: (?P<top>[0-9]+) [ ]?/[ ]? (?P<bottom>[0-9]+)
          | \\[dt]?frac \{(?P<frac_top>[0-9]+)\} \{(?P<frac_bottom>[0-9]+)\} )
      |
        (?P<digits> [1-9][0-9]{0,2} (?P<separator>,|\{,\}|\\,|\u202f) [0-9]{3} (?:(?P=separator)[0-9]{3})* (?![0-9])
                  | [0-9]+ | (?=\.[0-9]) )
        (?P<decimals>\.[0-9]+)?
        (?:[eE](?P<exponent>[-+]?[0-9]+))?
    )
    """,
    re.VERBOSE,
)
_UNIT_SYMBOL = re.compile(r"(?:\\,|~|\s){0,4}(?P<symbol>\\?[%$]|[€£°])?")
_MARKUP = (("**", "**"), ("*", "*"), ("$", "$"), (r"\(", r"\)"))
_UNIT_NAMES = {
    "dollar": "$",
    "euro": "€",
    "pound": "£",
    "percent": "%",
    "percentage": "%",
    "degree": "°",
}
# fmt: off
_NOT_UNITS = frozenset({
    # scales and parts
    "ten", "hundred", "thousand", "million", "billion", "trillion", "mn", "bn", "mio", "dozen", "score", "pair",
    "half", "halve", "third", "quarter", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth",
    "thousandth", "millionth",
    # arithmetic and constants
    "plus", "minus", "over", "divided", "multiplied", "squared", "cubed", "factorial", "power", "root", "mod", "modulo",
    "pi",
    # other numbers, alternatives, denials
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "eleven", "twelve", "and", "or",
    "to", "not", "maybe", "perhaps", "possibly", "about", "if", "but", "is", "are",
})
# fmt: on
_LETTER_UNITS = frozenset("mgshltLWVJNCF")  # any other single letter is a variable, a constant or a scale (18x, 2i, 5k)


@dataclass(frozen=True)
class Number:
    """An exact value and its unit, both as the text gives them; the unit is empty where there is none."""

    value: Fraction
    unit: str = ""


def verify(completion: str, problem: Problem) -> Verdict:
    """Whether the completion's marked answer is the problem's number; the module's docstring has the rules.

    The score is 1 for right, else 0. Raises for no completion; a problem that `check_gold` refuses gives an
    infrastructure verdict.
    """
    gold = read_number(problem.answer or "")
    if gold is None:
        return Verdict(None, Status.INFRASTRUCTURE, detail=check_gold(problem) or "")
    said = completion.rpartition("</think>")[2]
    if "<think>" in said:
        return Verdict(0.0, Status.NO_ANSWER, detail="the thinking never ends")
    numbers, text = [], None
    for text in dict.fromkeys(_marked(said)):
        number = read_number(text)
        if number is None:
            reason = "an unclosed or overlong answer" if len(text) > MAX_ANSWER else "not one number"
            return Verdict(0.0, Status.NO_ANSWER, text[:MAX_ANSWER], reason)
        numbers.append(number)
    if not numbers:
        return Verdict(0.0, Status.NO_ANSWER, detail=r"no line `#...` and no \boxed{...}")
    if not _all_same(numbers):
        return Verdict(0.0, Status.WRONG, text, "two different answers")
    if not _all_same([gold, *numbers]):
        return Verdict(0.0, Status.WRONG, text, f"not {problem.answer}")
    return Verdict(1.0, Status.RIGHT, text)


def check_gold(problem: Problem) -> str | None:
    """Why the problem's gold answer is no number; None if it is one."""
    if problem.answer is None:
        return "field 'answer' is missing, and the numeric verifier compares with it"
    if read_number(problem.answer) is None:
        shown = problem.answer if len(problem.answer) <= MAX_ANSWER else problem.answer[:MAX_ANSWER] + "..."
        return f"field 'answer': {shown!r} is not one number; right are for example 18, -3, 2.5, 1,234, 3/4, 1.5e6"
    return None


def read_number(text: str) -> Number | None:
    """The one number that the text is, and nothing else beside its unit; None if it is anything else."""
    if len(text) > MAX_ANSWER:
        return None
    text = _bare(text)
    match = _NUMBER.match(text)
    if match is None or (match["sign"] and match["inner_sign"]):
        return None
    value = _value(match)
    unit = _unit(match["currency"] or "", text[match.end() :])
    if value is None or unit is None:
        return None
    negative = (match["sign"] or match["inner_sign"] or "+") != "+"
    return Number(-value if negative else value, unit)


def _marked(text: str) -> Iterator[str]:
    """The texts that are marked as answers. One that does not end in time is given one character too long."""
    for line in text.split("\n"):
        match = _ANSWER_LINE.match(line)
        if match is not None and not _is_heading(match):
            yield match["answer"].strip()[: MAX_ANSWER + 1]
    position = 0
    while (match := _BOX.search(text, position)) is not None:
        position = match.end()
        content = _braced(text, position)
        yield content
        position += len(content)


def _is_heading(match: re.Match[str]) -> bool:
    spaced = match["gap"] and len(match["hashes"]) < 4
    return bool(spaced and _NUMBER_AND_WORDS.search(match["answer"]))


def _braced(text: str, start: int) -> str:
    depth = 0
    for position in range(start, min(len(text), start + MAX_ANSWER + 2)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return text[start:].ljust(MAX_ANSWER + 1)[: MAX_ANSWER + 1]


def _bare(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1 ", text).strip()
    for _ in range(2):
        text = text.removesuffix(".").rstrip()
        for opening, closing in _MARKUP:
            inner = text.removeprefix(opening).removesuffix(closing)
            if len(inner) == len(text) - len(opening) - len(closing):
                text = inner.strip()
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    if match["digits"] is None:
        whole = int(match["whole"] or 0)
        top, bottom = int(match["top"] or match["frac_top"]), int(match["bottom"] or match["frac_bottom"])
        if bottom == 0 or (match["whole"] and top >= bottom):
            return None
        return whole + Fraction(top, bottom)
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    digits = re.sub(r"[^0-9]", "", match["digits"])
    decimals = (match["decimals"] or ".")[1:]
    return Fraction(int(digits + decimals)) * Fraction(10) ** (exponent - len(decimals))


def _unit(currency: str, rest: str) -> str | None:
    symbol = _UNIT_SYMBOL.match(rest)
    after = rest[symbol.end() :] if symbol else rest
    words = after.split()
    parts = [part for word in words for part in re.split(r"[/-]", word)]
    if len(words) > MAX_UNIT_WORDS or not all(_is_unit_word(part) for part in parts):
        return None
    if currency and any(len(part) == 1 for part in parts):  # $5m
        return None
    named = [_UNIT_NAMES.get(_singular(word), _singular(word)) for word in words]
    symbols = [currency.removeprefix("\\"), (symbol["symbol"] or "").removeprefix("\\") if symbol else ""]
    return " ".join(dict.fromkeys(part for part in [*symbols, *named] if part))


def _is_unit_word(word: str) -> bool:
    # Letters that are numbers (as 万, ten thousand) are letters to str.isalpha too.
    if not word.isalpha() or any(unicodedata.numeric(letter, None) is not None for letter in word):
        return False
    return word in _LETTER_UNITS if len(word) == 1 else _singular(word) not in _NOT_UNITS


def _singular(word: str) -> str:
    folded = word.casefold()
    return folded[:-1] if len(folded) > 2 and folded.endswith("s") else folded


def _all_same(numbers: list[Number]) -> bool:
    return len({number.value for number in numbers}) == 1 and len({n.unit for n in numbers if n.unit}) <= 1
