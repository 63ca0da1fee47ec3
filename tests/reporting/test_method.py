import re

import pytest
from pydantic import ValidationError

from tasks.config.schema import GRPO_ALARMS, Probe
from tasks.deciding import decide
from tasks.probing import Attempt, ProbedPrompt, measure
from tasks.reporting import Report, render


def probe(model="sft", rights=(0, 0, 0, 1, 2, 2, 3, 4), chance=0.0, saved=None, **settings):
    """A probe of 4 attempts at each prompt, of which so many were right."""
    prompts = [
        ProbedPrompt(
            id=str(number),
            source="chains",
            attempts=[
                Attempt(
                    completion="#1",
                    tokens=10 + place,
                    ended=True,
                    score=float(place < right),
                    status="right" if place < right else "wrong",
                    chance=chance,
                )
                for place in range(4)
            ],
        )
        for number, right in enumerate(rights)
    ]
    measures = measure(prompts, group=4, max_tokens=48)
    decision = decide(measures, Probe(**settings))
    found = {"measures": measures.model_dump(), "decision": decision.model_dump()}
    return {"model": model, "saved": saved, **found}


PREFERENCE = {
    "pairs": 1611,
    "origin": "made",
    "kept": True,
    "reason": "Kept: it is better.",
    "before": 0.131,
    "after": 0.224,
    "low": 0.061,
    "high": 0.124,
    "chosen_tokens": 22.4,
    "rejected_tokens": 12.9,
}
DIFFICULTY = {
    "prompts": 2262,
    "active": 1991,
    "solved": 5,
    "unsolved": 266,
    "unprobed": 1750,
    "zero_variance_before": 0.521,
    "zero_variance_expected": 0.312,
    "zero_variance": 0.284,
}
CHECKPOINT = {
    "step": 10,
    "accuracy": 0.9,
    "points": [(0, 0.12), (5, 0.64), (10, 0.9), (15, 0.87)],
    "stopped": "Enough.",
}
ALARM = {
    "stage": "grpo",
    "step": 27,
    "alarm": "zero_variance",
    "value": 0.84,
    "threshold": 0.8,
    "action": "warn",
    "message": "Too little spread.",
}
HEALTH = [{"stage": "grpo", "alarm": name, **settings} for name, settings in GRPO_ALARMS.items()]
CONTROL = {
    "task": "chains",
    "real": {"difference": 0.73, "low": 0.68, "high": 0.77, "p_value": 1e-80},
    "control": {"difference": 0.004, "low": -0.018, "high": 0.026, "p_value": 0.79},
    "conclusion": "The rewards taught it.",
}


def charts(html):
    return {
        re.search('aria-label="([^"]*)"', chart).group(1): chart
        for chart in re.findall(r"<svg.*?</svg>", html, flags=re.S)
    }


def bars(chart):
    """The widths of the filled rectangles of a chart with horizontal bars, as shares of the first one, a full track."""
    outlines = [
        [float(x) for x, _ in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
        for path in re.findall(r'<path d="([^"]*)"[^>]*clip-path="[^>]*style="fill', chart)
    ]
    widths = [max(xs) - min(xs) for xs in outlines]
    return [round(width / widths[0], 3) for width in widths]


def test_the_story_is_told_in_the_order_in_which_it_happened(parse, make):
    first, second = probe(), probe("dpo", (0, 1, 1, 2, 2, 3, 3, 4))
    report = make(
        probes=[first, second],
        preference=PREFERENCE,
        difficulty=DIFFICULTY,
        checkpoint=CHECKPOINT,
        alarms=[ALARM],
        health=HEALTH,
        control=CONTROL,
    )
    page = parse(render(report))
    order = [
        "The climb",
        "Probe of sft",
        first["decision"]["reason"],
        "8 prompts of the dev split, by how many of 4 answers were right",
        "3 prompts never right, 1 always, 4 sometimes.",
        "DPO do pairs",
        "Kept: it is better.",
        "+9.3 points (+6.1 to +12.4)",
        "1,611, made of sft's own answers",
        "22.4 tokens chosen, 12.9 rejected",
        "Probe of dpo",
        second["decision"]["reason"],
        "271 prompts of 2,262 set aside: 5 too easy, 266 too hard. 1,750 prompts of which nothing is known stayed in.",
        "Step 10 was taken, with 90.0 % right on the dev split (12.0 % at step 0; 87.0 % at step 15).",
        "Enough.",
        "1 warning",
        "Too little spread.",
        "reward_hacking",
        "The rewards taught it.",
        "Gain on chains",
        "The gate",
    ]
    places = [page.visible.index(text) for text in order]
    assert places == sorted(places)


def test_a_probe_is_drawn_with_pass_at_1_pass_at_k_chance_and_headroom(make):
    found = probe(rights=(0, 0, 0, 0, 1, 2, 3, 4), chance=1.0)
    html = render(make(probes=[found], curves=[], climb=[]))
    (histogram, counts), (scale, drawn) = charts(html).items()
    assert (
        histogram
        == "Probe of sft, prompts by right answers of 4: 0 right: 4, 1 right: 1, 2 right: 1, 3 right: 1, 4 right: 1"
    )
    assert [int(n) for n in re.findall(r">(\d)</text>", counts)] == [4, 0, 1, 1, 1, 2, 1, 3, 1, 4]
    assert scale == (
        "Probe of sft: Guessing, best of 4 (chance) 100.0 %, One answer (pass@1) 31.2 %, "
        "Best of 4 answers (pass@4) 50.0 %, Headroom: what it can do, but not every time 18.8 points"
    )
    assert bars(drawn) == [1, 1, 1, 0.312, 1, 0.5, 1, 0.188]
    never = render(make(probes=[probe(chance=None)], curves=[], climb=[]))
    assert "chance" not in "".join(charts(never)) and "Guessing" not in never


@pytest.mark.parametrize("samples", [2, 12, 16, 64])
def test_a_histogram_has_a_column_for_each_number_of_right_answers(make, samples):
    found = probe()
    found["measures"] |= {"samples": samples, "histogram": [7] * (samples + 1)}
    chart = next(iter(charts(render(make(probes=[found], curves=[], climb=[]))).values()))
    assert len(re.findall("<path [^>]*clip-path=", chart)) == samples + 1
    assert ">never</text>" in chart and ">always</text>" in chart


@pytest.mark.parametrize(
    ("rights", "settings", "pill"),
    [
        ((0, 1, 2, 3), {}, "▲ climb"),
        ((0, 0, 0, 0), {}, "■ stop: no signal"),
        ((4, 4, 4, 4), {}, "■ stop: no headroom"),
        ((4, 4, 4, 4), {"decision": "climb"}, "▲ climb: no headroom, by parameter"),
        ((0, 1, 2, 3), {"decision": "stop"}, "■ stop, by parameter"),
    ],
)
def test_each_outcome_of_a_probe_is_named_and_also_who_decided(parse, make, rights, settings, pill):
    page = parse(render(make(probes=[probe(rights=rights, saved="40 steps were saved.", **settings)])))
    assert f"{pill} " in page.visible
    assert "40 steps were saved." in page.visible


def test_notes_of_a_probe_are_told(parse, make):
    found = probe(rights=(*[0] * 11, 2))
    assert found["decision"]["notes"]
    page = parse(render(make(probes=[found])))
    assert all(note in page.visible for note in found["decision"]["notes"])


def test_dpo_that_was_not_kept_and_dpo_that_was_not_run(parse, make):
    page = parse(render(make(preference=PREFERENCE | {"kept": False, "chosen_tokens": None})))
    assert "not kept" in page.visible and "tokens chosen" not in page.visible
    page = parse(render(make(preference={"skipped": "The data has no pairs."})))
    assert "not run The data has no pairs." in page.visible and "kept" not in page.visible


def test_difficulty_is_drawn_as_far_as_it_is_known(make):
    def drawn(**changes):
        return charts(render(make(difficulty=DIFFICULTY | changes, curves=[], climb=[])))

    prompts, spread = drawn().items()
    assert prompts[0].endswith(
        "sometimes 241, Trained on: not probed 1,750, Set aside: too easy 5, Set aside: too hard 266"
    )
    assert bars(prompts[1])[1::2] == [round(count / 2262, 3) for count in (241, 1750, 5, 266)]
    assert bars(spread[1]) == [1, 0.521, 1, 0.312, 1, 0.284]
    only_measured = drawn(zero_variance_before=None, zero_variance_expected=None)
    assert list(only_measured)[1] == "Groups without spread: In training (measured) 28.4 %"
    assert len(drawn(zero_variance_before=None, zero_variance_expected=None, zero_variance=float("nan"))) == 1


def test_the_chosen_checkpoint_is_marked(parse, make):
    html = render(make(checkpoint=CHECKPOINT, curves=[], climb=[]))
    description, chart = next(iter(charts(html).items()))
    assert description.endswith("step 10 90.0 %, step 15 87.0 %; chosen: step 10")
    assert ">step 10: 90.0 %</text>" in chart and "var(--accent)" in chart
    first = CHECKPOINT | {"step": 0, "accuracy": 0.12, "points": [(0, 0.12)]}
    assert (
        "Step 0 was taken, with 12.0 % right on the dev split. The items"
        in parse(render(make(checkpoint=first))).visible
    )


def test_alarms_are_listed_and_their_absence_is_said_only_where_something_was_watched(parse, make):
    stop = ALARM | {"alarm": "not_a_number", "value": float("nan"), "action": "stop"}
    page = parse(render(make(alarms=[ALARM, stop])))
    assert "did training go wrong? ■ stopped" in page.visible
    assert "27 0.84 0.8 ! warned Too little spread." in page.visible
    assert "27 not finite 0.8 ■ stopped" in page.visible
    assert "No alarm was raised." in parse(render(make(alarms=[]))).visible
    assert "Health" not in parse(render(make())).visible


def test_the_control_stands_beside_the_real_gain_and_the_line_of_no_gain(parse, make):
    html = render(make(control=CONTROL, curves=[], climb=[]))
    description, chart = next(iter(charts(html).items()))
    assert description == (
        "Gain on chains: Real rewards: +73.0 points (+68.0 to +77.0), "
        "Random rewards (control): +0.4 points (-1.8 to +2.6)"
    )
    lines = [
        [float(x) for x in re.findall(r"[ML] ([\d.]+) ", p)]
        for p in re.findall(r'<path d="([^"]*)"[^>]*fill: none', chart)
    ]
    zero, real, control = [line for line in lines if len(line) == 2][:3]
    assert zero[0] == zero[1] and control[0] < zero[0] < control[1] < real[0] < real[1]
    assert ">0, no gain</text>" in chart
    assert "random +0.4 -1.8 to +2.6 0.790" in parse(html).visible


def test_series_of_the_new_stages_are_drawn(make):
    names = ("reward", "verified", "dev/accuracy", "rewards/chosen")
    series = {name: [(5, 0.1), (10, 0.3)] for name in reversed(names)}
    drawn = charts(render(make(climb=[], curves=[{"stage": "s", "series": series}])))
    assert [label.split(",")[1].split(":")[0].strip() for label in drawn] == [
        "Reward",
        "Verified right (share)",
        "Accuracy on dev (greedy)",
        "Reward of the chosen answers",
    ]


def test_text_of_the_story_stays_text(parse, make, evil):
    found = probe(saved=evil)
    found["decision"] |= {"reason": evil, "notes": [evil]}
    report = make(
        probes=[found],
        preference=PREFERENCE | {"reason": evil},
        checkpoint=CHECKPOINT | {"stopped": evil},
        alarms=[ALARM | {"stage": evil, "alarm": evil, "message": evil}],
        health=[HEALTH[0] | {"stage": evil, "alarm": evil}],
        control=CONTROL | {"task": evil, "conclusion": evil},
        samples=None,
    )
    page = parse(render(report))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.visible.count('<script>alert("x")</script>') >= 12
    assert "49" not in page.visible.replace("{{ 7 * 7 }}", "")
    assert evil not in render(make(preference={"skipped": evil}, samples=None))
    labels = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg"]
    assert any(label.startswith(f"Gain on {evil}") for label in labels)


def test_the_story_gives_the_same_bytes_also_from_json_and_no_id_twice(make):
    report = make(
        probes=[probe(), probe("dpo")],
        preference=PREFERENCE,
        difficulty=DIFFICULTY,
        checkpoint=CHECKPOINT,
        alarms=[ALARM | {"value": float("inf")}],
        health=HEALTH,
        control=CONTROL,
    )
    html = render(report)
    assert render(Report.model_validate_json(report.model_dump_json())) == html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:url\(|href=")#([\w-]+)', html)) <= set(ids)
    assert not re.search(r"#0[0-9]0[0-9]0[0-9]\b", html), "every colour comes from the page's style"


def test_a_checkpoint_without_a_measurement_is_refused(make):
    with pytest.raises(ValidationError, match="points"):
        make(checkpoint=CHECKPOINT | {"points": []})
