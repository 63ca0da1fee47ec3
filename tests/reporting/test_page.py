import re
import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.reporting import Report, render

NOTHING_COMPARED = {"decision": "hold", "reasons": ["No signal: probed."], "comparisons": [], "confidence": 0.95}


def test_the_page_says_what_the_run_did_in_the_order_a_reader_needs(parse, make):
    page = parse(render(make(promotion={"version": "3", "alias": "champion", "previous": "2"})))
    places = [
        page.visible.index(text)
        for text in (
            "Version 3 of arithmetic is now @champion; before it, version 2 was.",
            "Primary chains (acc) against sft: from 2.0 % to 75.0 %, +73.0 points",
            "The climb",
            "The gate",
            "Training: grpo",
            "Training: sft",
            "Answers that changed",
            "300 improved, 8 got worse. Shown: 10.",
            "Stages",
            "of an earlier run",
            "Lineage",
            "c0ffee with changes that are not committed",
            "0cc175b9c0f1b6a831c399e269772661",
            '"confidence": 0.95',
            "trl==1.16.0",
        )
    ]
    assert places == sorted(places)
    assert "2031-02-03 04:05 UTC · took 1 min 11 s" in page.visible and "1 h 2 min" in page.visible


@pytest.mark.parametrize(
    ("wins", "losses", "label"), [(300, 8, "Promote"), (8, 300, "Hold"), (12, 8, "Inconclusive"), (0, 0, "Hold")]
)
def test_each_decision_has_its_headline_and_deciding_reason(parse, make, wins, losses, label):
    report = make(wins, losses)
    page = parse(render(report))
    assert report.verdict.decision == {"Promote": "promote"}.get(label, label.lower())
    assert label in page.visible
    assert report.verdict.reasons[0] in page.visible


def test_the_page_needs_nothing_but_itself(parse, make):
    html = render(make())
    page = parse(html)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "img", "object", "embed", "base", "form"}
    links = [value for _, attrs in page.tags for key, value in attrs.items() if key in ("href", "src", "srcset")]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


def test_text_of_the_run_stays_text_wherever_it_stands(parse, make, evil):
    rungs = [{"model": model, "score": 0.5, "n": 9, "low": 0.2, "high": 0.8} for model in (evil, "grpo")]
    html = render(
        make(
            name=evil,
            run_id=evil,
            candidate=evil,
            climb=[{"task": evil, "metric": evil, "rungs": rungs}],
            curves=[{"stage": evil, "series": {"loss": [(1, 1.0)]}}],
            stages=[{"name": evil, "key": evil, "cached": False, "seconds": 1, "status": evil}],
            promotion={"version": evil, "alias": evil, "previous": evil},
        )
    )
    page = parse(html)
    assert "script" not in {tag for tag, _ in page.tags} and "<script" not in html.lower()
    assert page.visible.count('<script>alert("x")</script>') > 15
    assert page.visible.count("{{ 7 * 7 }}") > 15 and "49" not in page.visible


def test_charts_are_drawn_for_known_series_and_follow_the_colour_scheme(make):
    html = render(make())
    charts = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert len(charts) == 1 + 6 + 1
    assert all('role="img"' in chart and "currentColor" in chart for chart in charts)
    assert "num_tokens" not in html
    reward = next(chart for chart in charts if 'aria-label="grpo, Reward: from 0.05 to 1"' in chart)
    assert "var(--band)" in reward and "var(--line)" in reward
    drawn = set(re.findall(r"#[0-9a-f]{6}", "".join(charts)))
    assert drawn == set(), "every colour comes from the page's style"
    assert ">75.0 %</text>" in charts[0] and ">grpo</text>" in charts[0] and "var(--accent)" in charts[0]
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:url\(|href=")#([\w-]+)', html)) <= set(ids)


def test_dollar_signs_in_a_name_are_no_formula(make):
    rungs = [{"model": "a $x_1$", "score": 0.5, "n": 9, "low": 0.2, "high": 0.8}]
    assert ">a $x_1$</text>" in render(make(climb=[{"task": "t", "metric": "acc", "rungs": rungs}]))


def test_a_gap_in_a_curve_splits_its_line(make):
    def line(values):
        html = render(make(curves=[{"stage": "s", "series": {"kl": list(enumerate(values))}}]))
        chart = next(c for c in re.findall(r"<svg.*?</svg>", html, flags=re.S) if "KL from" in c)
        return max((path.count("M") for path in re.findall(r' d="([^"]*)"', chart) if path.count("L") > 3), default=0)

    assert line([0.1, 0.3, 0.2, 0.5, 0.1, 0.4]) == 1
    assert line([0.1, 0.3, 0.2, None, 0.1, 0.4, 0.2]) == 2


def test_the_same_report_gives_the_same_bytes_also_from_json(make):
    report = make()
    html = render(report)
    assert render(report) == html
    assert render(Report.model_validate_json(report.model_dump_json())) == html


def test_a_bare_report_still_has_its_page(parse, make):
    report = make(climb=[], curves=[], stages=[], samples=None)
    page = parse(render(report))
    assert "Lineage" in page.visible and "Training" not in page.visible and "Answers" not in page.visible
    assert not any(tag == "svg" for tag, _ in page.tags)


def test_scores_that_are_no_shares_are_shown_as_they_are(parse, make):
    rungs = [{"model": "sft", "score": 22.5, "n": 9, "low": 20, "high": 25}]
    html = render(make(climb=[{"task": "t", "metric": "length", "rungs": rungs}]))
    assert ">22.5</text>" in html and "22.50" in parse(html).visible


def test_the_line_of_the_climb_goes_through_the_models_that_led_up_to_its_end(make):
    def line(**changes):
        models = ("base", "sft", "dpo", "grpo", "champion")
        rungs = [{"model": m, "score": i / 5, "n": 9, "low": i / 5, "high": i / 5} for i, m in enumerate(models)]
        climb = [{"task": "t", "metric": "acc", "rungs": rungs}]
        html = render(make(climb=climb, curves=[], **changes))
        path = re.search(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--line\)', html).group(1)
        return len(re.findall("[ML]", path))

    kept, dropped = (
        {"pairs": 9, "origin": "made", "kept": kept, "reason": "", "before": 0, "after": 0, "low": 0, "high": 0}
        for kept in (True, False)
    )
    stopped = {"candidate": None, "samples": None, "verdict": NOTHING_COMPARED}
    assert line(preference=kept) == 4
    assert line(preference=dropped) == 3
    assert line(candidate="champion", preference=kept) == 5
    assert line(preference=kept, **stopped) == 3
    assert line(preference=dropped, **stopped) == 2


def test_without_a_candidate_the_page_says_so_and_nothing_is_compared(parse, make):
    stopped = {"candidate": None, "verdict": NOTHING_COMPARED}
    page = parse(render(make(samples=None, **stopped)))
    for text in ("Hold", "the climb ended with sft, and GRPO was not run", "No signal: probed."):
        assert text in page.visible
    for text in ("None", "The gate", "judged item by item", "Answers that changed"):
        assert text not in page.visible
    with pytest.raises(ValidationError, match="without a candidate"):
        make(**stopped)


def test_an_unknown_key_is_refused(make):
    with pytest.raises(ValidationError, match="titel"):
        make(titel="x")


def test_the_package_loads_without_matplotlib():
    code = (
        "import sys, tasks.reporting; sys.exit(any(name in sys.modules for name in ('matplotlib', 'jinja2', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
