"""The figures of a probe over the attempts of one split."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from tasks.errors import UserError
from tasks.probing.findings import Attempt, Measures, ProbedPrompt
from tasks.rewards import Status


def measure(prompts: Sequence[ProbedPrompt], group: int, max_tokens: int) -> Measures:
    """The figures of all attempts at the prompts, for groups of `group` completions cut at `max_tokens`.

    An attempt that could not be verified counts for its length alone, and a prompt without any other for no more than
    that. A prompt with fewer judged attempts than the others has its pass@k at the number it has.

    Raises UserError when not one attempt could be judged.
    """
    attempts = [attempt for prompt in prompts for attempt in prompt.attempts]
    judged = [prompt.judged for prompt in prompts if prompt.judged]
    if not judged:
        raise UserError(
            f"the probe knows nothing: of {len(attempts)} attempts at {len(prompts)} prompts none could be verified,"
            " for the verifier itself failed each time; run it on one of the completions and mend it"
        )
    samples = max(len(prompt.attempts) for prompt in prompts)
    right = [(len(found), sum(attempt.right for attempt in found)) for found in judged]
    guesses = [[attempt.chance for attempt in found if attempt.chance is not None] for found in judged]
    # A verifier gives 1 for right and less for anything else.
    lucky = [(len(scores), sum(score >= 1 for score in scores)) for scores in guesses if scores]
    greedy = [p.greedy.right for p in prompts if p.greedy and p.greedy.status is not Status.INFRASTRUCTURE]
    counts = Counter(number for _, number in right)
    lengths = sorted(attempt.tokens for attempt in attempts if attempt.ended)
    return Measures(
        prompts=len(prompts),
        samples=samples,
        pass_at_1=fmean(pass_at(1, *numbers) for numbers in right),
        pass_at_k=fmean(pass_at(samples, *numbers) for numbers in right),
        greedy=fmean(greedy) if greedy else None,
        chance_at_1=fmean(pass_at(1, *numbers) for numbers in lucky) if lucky else None,
        chance_at_k=fmean(pass_at(samples, *numbers) for numbers in lucky) if lucky else None,
        histogram=[counts[number] for number in range(samples + 1)],
        zero_variance=fmean(same_score(found, group) for found in judged),
        mean_tokens=fmean(attempt.tokens for attempt in attempts),
        # The nearest rank. Of attempts that were all cut nothing is known but that they are longer.
        p99_tokens=lengths[math.ceil(0.99 * len(lengths)) - 1] if lengths else max_tokens,
        ended=len(lengths) / len(attempts),
        max_tokens=max_tokens,
        infrastructure=(len(attempts) - sum(map(len, judged))) / len(attempts),
    )


def pass_at(k: int, n: int, right: int) -> float:
    """The probability that one of `k` attempts is right, when `right` of `n` were; of all `n` where `k` is more.

    The unbiased estimate of Chen et al. 2021, "Evaluating large language models trained on code",
    https://arxiv.org/abs/2107.03374, equation 1: the share of subsets of `k` attempts that hold a right one.
    """
    k = min(k, n)
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - right, k)) / subsets


def same_score(judged: Sequence[Attempt], group: int) -> float:
    """The probability that a GRPO group of `group` completions of the prompt all score the same, and teach nothing.

    It is the score that counts, so two wrong answers with different partial scores have spread. With at least `group`
    attempts the unbiased estimate, in the manner of pass@k: the share of subsets of `group` attempts within which all
    scores are equal. With fewer the plug-in estimate, the sum over the scores of share ** group (p^g + (1-p)^g where
    scores are 0 and 1), which is too high for a prompt that is almost always or almost never solved.
    """
    n, counts = len(judged), Counter(attempt.score for attempt in judged).values()
    if n >= group:
        return sum(math.comb(count, group) for count in counts) / math.comb(n, group)
    return sum((count / n) ** group for count in counts)
