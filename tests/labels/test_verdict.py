"""The verdict: each fact alone decides as documented."""

from dataclasses import replace

import pytest

from pencil.labels.verdict import DO_NOT_USE, DOUBTFUL, RELIABLE, Facts, decide

GOOD = Facts(
    knows=True, held_out_rows=500, epochs=30, score=0.8, best_score=0.81, rate=0.12, low=0.08, high=0.2, ceiling=0.25,
    expected_before=0.88, expected_after=0.95, changed=0.1, mismatch=0.01,
)  # fmt: skip


def test_a_good_run_is_reliable_and_says_why():
    found = decide(GOOD)
    assert found.level == RELIABLE and "80.0 %" in found.reasons[0]


@pytest.mark.parametrize(
    ("change", "level", "reason"),
    [
        ({"knows": False}, DO_NOT_USE, "no better than chance"),
        ({"expected_after": 0.8}, DO_NOT_USE, "fewer labels are right after correction than before: by 8.0 %"),
        ({"changed": 0.4}, DO_NOT_USE, "40.0 % of the labels changed"),
        ({"score": 0.6}, DO_NOT_USE, "fell from 81.0 % at the best epoch to 60.0 %"),
        ({"score": 0.74}, DOUBTFUL, "fell from 81.0 % at the best epoch to 74.0 %"),
        ({"held_out_rows": 0, "score": None, "best_score": None}, DOUBTFUL, "no rows were held out"),
        ({"held_out_rows": 20}, DOUBTFUL, "only 20 rows were held out"),
        ({"epochs": 3}, DOUBTFUL, "only 3 epochs"),
        ({"low": 0.0, "high": 0.5}, DOUBTFUL, "the interval of the noise rate is wider than 35 points"),
        ({"high": 0.31}, DOUBTFUL, "ends 18 points or more above the estimate"),
        ({"high": 0.29}, RELIABLE, "80.0 %"),
        ({"changed": 0.22}, DOUBTFUL, "22.0 % of the labels changed, which is above the interval of the noise rate"),
        (
            {"low": 0.03, "score": 0.75, "best_score": 0.75},
            DOUBTFUL,
            "changed, but the interval of the noise rate starts far below that",
        ),
        ({"low": 0.03}, RELIABLE, "80.0 %"),  # the network disagrees with 20 %, no more than may be wrong
        ({"gap": 0.05}, DOUBTFUL, "training shows clearly more wrong labels than held-out rows"),
        (
            {"network_high": 0.1},
            DOUBTFUL,
            "is higher than the network's predictions for held-out labels support",
        ),
        ({"network_high": 0.11}, RELIABLE, "80.0 %"),  # hardly above
        ({"network_high": 0.1, "changed": 0.004}, RELIABLE, "80.0 %"),  # nothing to spoil
        ({"mismatch": 0.2}, DOUBTFUL, "memorised"),
        ({"halved_classes": ("owl",)}, DOUBTFUL, "the class 'owl' lost more than half of its rows"),
        ({"kept_classes": ("owl",)}, DOUBTFUL, "the class 'owl' was not learned"),
    ],
)
def test_each_fact_decides(change, level, reason):
    found = decide(replace(GOOD, **change))
    assert found.level == level and any(reason in one for one in found.reasons), found


def test_an_insignificant_fall_is_none():
    assert decide(replace(GOOD, held_out_rows=60, best_score=0.86)).level == RELIABLE
