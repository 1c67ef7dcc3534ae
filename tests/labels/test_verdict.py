"""The verdict: each fact alone decides as documented, and the gain behind it is an expectation."""

from dataclasses import replace

import pytest
import torch

from pencil.labels.gain import SHIFTS, gain_at, gain_curve
from pencil.labels.verdict import DO_NOT_USE, DOUBTFUL, RELIABLE, Facts, Gain, decide

GOOD = Facts(
    knows=True, held_out_rows=500, epochs=30, agreement=0.8, train_agreement=0.82, changed=0.1,
    gain=Gain(0.06, 0.02, 0.09),
)  # fmt: skip


def test_a_good_run_is_reliable_and_says_why():
    found = decide(GOOD)
    assert found.level == RELIABLE and "+6.0 points" in found.reasons[0] and "80.0 %" in found.reasons[0]


@pytest.mark.parametrize(
    ("change", "level", "reason"),
    [
        ({"knows": False}, DO_NOT_USE, "no better than chance"),
        ({"knows": False, "held_out_rows": 0}, DO_NOT_USE, "predicts its labels no better than chance"),
        ({"gain": Gain(-0.01, -0.05, 0.02)}, DO_NOT_USE, "expected to make labels worse: -1.0 points"),
        ({"gain": Gain(0.03, -0.01, 0.05)}, DOUBTFUL, "may make labels worse: +3.0 points"),
        (
            {"gain": Gain(0.0, 0.0, 0.0), "changed": 0.0},
            RELIABLE,
            "no label changed: training cannot tell these labels from clean ones",
        ),
        ({"train_agreement": 0.99}, DO_NOT_USE, "memorised its labels: it agrees with 99.0 %"),
        ({"train_agreement": 0.91}, RELIABLE, "80.0 %"),  # it repeats half of what it would not predict
        ({"agreement": 0.95, "train_agreement": 1.0}, RELIABLE, "95.0 %"),  # all of it, but hardly visible
        ({"held_out_rows": 0, "agreement": None}, DOUBTFUL, "no rows were held out"),
        ({"held_out_rows": 20}, DOUBTFUL, "only 20 rows were held out"),
        ({"epochs": 3}, DOUBTFUL, "only 3 epochs"),
        ({"halved_classes": ("owl",)}, DOUBTFUL, "the class 'owl' lost more than half of its rows"),
        ({"kept_classes": ("owl",)}, DOUBTFUL, "the class 'owl' was not learned"),
    ],
)
def test_each_fact_decides(change, level, reason):
    found = decide(replace(GOOD, **change))
    assert found.level == level and any(reason in one for one in found.reasons), found


def test_a_refusal_does_not_also_doubt_what_it_refuses():
    found = decide(replace(GOOD, train_agreement=0.99, gain=Gain(0.0, 0.0, 0.0)))
    assert found.level == DO_NOT_USE and len(found.reasons) == 1


def test_the_gain_is_the_expected_number_of_repaired_minus_broken_labels():
    wrong, right_after = torch.tensor([0.9, 0.6, 0.2]), torch.tensor([0.8, 0.3, 0.7])
    changed = torch.tensor([True, True, False])
    curve = gain_curve(wrong, right_after, changed)
    assert gain_at(curve, 3) == pytest.approx((0.8 - 0.1 + 0.3 - 0.4) / 3)


def test_the_gain_at_another_rate_shifts_all_log_odds_alike():
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(500, generator=generator).double()
    changed = wrong > 0.5
    curve = gain_curve(wrong, 0.9 * wrong, changed)
    shift = SHIFTS[20]
    shifted = (wrong.logit() + shift).sigmoid()
    rate = float(shifted.mean())
    expected = float((0.9 * shifted - (1 - shifted))[changed].sum() / 500)
    assert gain_at(curve, 500, rate) == pytest.approx(expected, abs=1e-6)
    halves = (
        gain_curve(wrong[:250], 0.9 * wrong[:250], changed[:250]),
        gain_curve(wrong[250:], 0.9 * wrong[250:], changed[250:]),
    )
    torch.testing.assert_close(halves[0] + halves[1], curve)


def test_a_lower_rate_gains_less():
    wrong = torch.linspace(0.01, 0.99, 300).double()
    curve = gain_curve(wrong, wrong, wrong > 0.5)
    gains = [gain_at(curve, 300, rate) for rate in (0.01, 0.1, 0.3, 0.5, 0.7)]
    assert gains == sorted(gains) and gains[0] < 0 < gains[-1]


def test_a_few_held_out_rows_do_not_prove_memorising():
    few = replace(GOOD, held_out_rows=45, agreement=0.75, train_agreement=0.93)
    assert decide(few).level == RELIABLE
    assert decide(replace(few, held_out_rows=2000)).level == DO_NOT_USE
