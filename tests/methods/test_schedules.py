from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from pencil import methods
from pencil.methods.schedules import (
    AnySchedule,
    Constant,
    Cosine,
    Linear,
    MultiplyEvery,
    Schedule,
    StepDecay,
    Triangle,
    as_schedule,
)

adapter = TypeAdapter(Schedule)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(0.3), {0: 0.3, 9: 0.3}),
        (StepDecay(0.2, at=(4, 8)), {0: 0.2, 3.99: 0.2, 4: 0.02, 8: 0.002}),
        (MultiplyEvery(0.1, 0.94, 2), {0: 0.1, 1.9: 0.1, 2: 0.094, 9: 0.1 * 0.94**4}),
        (Linear(3000.0), {0: 3000.0, 5: 1500.0, 10: 0.0}),
        (Cosine(1.0), {0: 1.0, 5: 0.5, 10: 0.0}),
        (Cosine(1.0, warmup=0.2), {0: 0.2, 1: 0.6, 2: 1.0, 6: 0.5, 10: 0.0}),
        (Triangle(1.0, start=0.2, end=0.1, warmup=0.25), {0: 0.2, 1.25: 0.6, 2.5: 1.0, 5.5: 0.64, 10: 0.1}),
        (Triangle(0.4), {0: 0.0, 1: 0.2, 2: 0.4, 6: 0.2, 10: 0.0}),
        (Triangle(0.4, warmup=0.0), {0: 0.4, 5: 0.2, 10: 0.0}),
        (Triangle(0.4, warmup=1.0), {0: 0.0, 5: 0.2, 10: 0.4}),
    ],
)
def test_values_over_a_phase_of_ten_epochs(schedule, values):
    for epoch, value in values.items():
        assert schedule(epoch, 10) == pytest.approx(value)
        assert schedule.scaled(3.0)(epoch, 10) == pytest.approx(3 * value)
        assert schedule.stretched(2.0)(2 * epoch, 20) == pytest.approx(value)
    assert adapter.validate_python(adapter.dump_python(schedule)) == schedule


def test_every_kind_can_be_imported_from_the_package():
    assert [kind.__name__ for kind in get_args(AnySchedule) if getattr(methods, kind.__name__, None) is not kind] == []
    assert {kind.__name__ for kind in get_args(AnySchedule)} <= set(methods.__all__)


def test_a_number_is_a_constant():
    assert adapter.validate_python(2) == Constant(2.0) == as_schedule(2)


@pytest.mark.parametrize(
    "bad",
    [
        "fast",
        True,
        {"kind": "step", "start": 1},
        {"kind": "stp"},
        {"kind": "triangle", "peak": 1, "warmup": 2},
        {"kind": "linear", "strt": 1},
    ],
)
def test_bad_schedules_are_refused(bad):
    with pytest.raises(ValidationError):
        adapter.validate_python(bad)
