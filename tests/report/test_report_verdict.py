import math
from dataclasses import replace

import pytest
from demo_report import LEGEND, burgers_page, darcy_page

from ups.evaluation.labels import labels
from ups.report.contents import Report, SummaryRow
from ups.report.html import page
from ups.report.legend import Legend
from ups.report.verdict import (
    duration,
    geometric_mean,
    headline,
    mean_against,
    number,
    ratio,
    summary_rows,
    times,
)


def row(task, operator, fno, persistence=1.0, view="rollout", ci95=None, **others):
    values = {"operator": operator, "fno": fno, "persistence": persistence} | others
    return SummaryRow(task, view, "nRMSE", values, "operator", {} if ci95 is None else {"operator": ci95})


def said(*rows, compared=("fno",)):
    return headline(rows, Legend(labels(["operator"], compared), "operator"))


def test_the_headline_names_wins_and_losses():
    sentence = said(
        row("advection", 0.02, 0.04), row("burgers", 0.06, 0.04), row("burgers", 0.01, 0.02, view="one step")
    )
    assert "2 physical systems" in sentence
    assert "beats the FNO on advection" in sentence
    assert "loses to it on burgers (1.50× its error)" in sentence


def test_a_win_that_one_step_does_not_have_is_qualified():
    rows = [row("advection", 0.02, 0.04), row("advection", 0.006, 0.005, view="one step"), row("burgers", 0.02, 0.04)]
    assert "beats the FNO on advection and burgers (but not in one step on advection, 1.20× its error)" in said(*rows)
    level = row("advection", 0.006, 0.005, view="one step", ci95=(0.004, 0.008))
    assert "one step" not in said(rows[0], level)


def test_the_headline_does_not_claim_a_win_inside_the_interval():
    sentence = said(row("darcy", 0.038, 0.040, ci95=(0.035, 0.041)))
    assert "level with the FNO on darcy" in sentence
    assert "beats" not in sentence


def test_a_model_no_better_than_the_trivial_guess_is_said_to_be():
    assert "no better than the trivial guess on burgers" in said(row("burgers", 1.2, 0.1))


def test_a_failure_is_the_headline():
    assert said(row("a", 0.1, 0.2), row("b", math.nan, 0.2)) == (
        "The model failed on b: its error there is not a finite number."
    )


def test_many_tasks_are_counted_and_not_listed():
    assert "beats the FNO on 6 tasks" in said(*(row(f"t{i}", 0.1, 0.2) for i in range(6)))


def test_every_compared_predictor_is_in_the_headline_and_equal_outcomes_share_a_clause():
    rows = [row("advection", 0.02, 0.04, unet=0.03, mine=0.01), row("burgers", 0.06, 0.08, unet=0.09, mine=0.08)]
    assert said(*rows, compared=("fno", "unet", "mine")).endswith(
        "; it beats the FNO and the U-Net on advection and burgers"
        "; it beats mine on burgers and loses to it on advection (2.00× its error)."
    )


def test_without_anything_to_compare_with_the_headline_ends_at_the_trivial_guess():
    assert said(row("advection", 0.02, 0.04), compared=()).endswith("of the trivial guess's error.")


def test_the_best_of_a_row_is_bold_even_when_it_is_not_ours():
    html = page(Report("run", "ups run", "", {}, LEGEND, [row("burgers", 0.06, 0.04)], [], [], {}))
    assert '<td class="best">0.0400</td>' in html
    assert html.count('class="best"') == 1
    assert '<td class="worse">▲ 1.50×</td>' in html


def test_rows_follow_the_metrics_file_and_null_is_a_failure():
    failed = replace(burgers_page(count=1), metrics={"rollout": {"nrmse": {"model": None, "fno": 0.1}}})
    (found,) = summary_rows([failed])
    assert math.isnan(found.own)
    assert {name: found.values.get(name) for name in ("fno", "persistence")} == {"fno": 0.1, "persistence": None}
    assert found.intervals == {}
    burgers, darcy = summary_rows([burgers_page(count=1)]), summary_rows([darcy_page(count=1)])
    assert [r.view for r in burgers] == ["one step", "rollout"]
    assert [r.view for r in darcy] == ["steady"]


def test_a_rival_that_failed_does_not_flatter_the_mean():
    rows = [row("a", 0.1, 0.2), row("b", 0.1, math.nan), row("c", 0.1, 0.2, persistence=0.4)]
    assert mean_against(rows, "fno") == pytest.approx(0.5)
    assert mean_against(rows[1:2], "fno") is None


def test_ratios_by_hand():
    assert ratio(0.5, 2.0) == 0.25
    assert ratio(0.5, None) is None
    assert ratio(math.nan, 1.0) == math.inf
    assert ratio(1.0, math.nan) == 0.0
    assert geometric_mean([0.25, 4.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (1.5, "1.50"),
        (12345.0, "1.23·10⁴"),
        (2e-5, "2.00·10⁻⁵"),
        (0.0, "0"),
        (math.nan, "not finite"),
    ],
)
def test_numbers_read_as_people_write_them(value, text):
    assert number(value) == text


def test_times_and_durations_read_as_people_say_them():
    assert times(0.0451) == "0.045×"
    assert times(1.5) == "1.50×"
    assert [duration(s) for s in (0.0021, 2.14, 200, 7500)] == ["2.10 ms", "2.1 s", "3 min 20 s", "2 h 5 min"]
