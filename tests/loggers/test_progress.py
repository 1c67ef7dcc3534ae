import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from pencil.data import Splits
from pencil.loggers import progress
from pencil.loggers.progress import Bar, Lines, OneLine, clock, fit_line, loss_of, phase_at, score_of, show_progress
from pencil.methods import Pencil, Phase
from pencil.models import mlp
from pencil.training import Trainer, TrainingSettings

LONG = {
    "epoch": 199, "phase": "correction 2", "loss": -2.345, "loss_classification": 1.234, "loss_early_learning": -1.2,
    "validation_accuracy": 0.987, "labels_changed": 123_456, "seconds": 1.0,
}  # fmt: skip


def phases(*lengths):
    names = ("backbone", "correction 2", "a name of the user's own")
    return tuple(Phase(name, length, loss=None, lr=0.1) for name, length in zip(names, lengths, strict=False))


def run(blobs, observer):
    method = Pencil(backbone_epochs=2, correction_epochs=2, finetune_epochs=1)
    settings = TrainingSettings(batch_size=89)  # 90 rows: the one left over joins, so there is one step per epoch
    Trainer(mlp(2, 3), Splits(blobs, blobs, blobs), method, settings, observers=(observer,)).run()


def screen_of(width, act):
    """What a terminal of this width shows last."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)
    shown = OneLine(console=console, auto_refresh=False)
    act(Bar(shown))
    (line,) = shown.get_renderables()
    with console.capture() as captured:
        console.print(line)
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).rstrip("\n")


def test_the_bar_ends_full_and_names_the_last_phase(blobs):
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as bar:
        run(blobs, Bar(bar))
        (task,) = bar.tasks
        assert task.completed == task.total == 5
        assert task.fields["before"] == "epoch 5/5 finetune" and task.fields["score"].startswith("test ")


def test_every_state_of_the_bar_can_be_drawn():
    """Another thread draws it at any time, also between two calls of an observer."""
    drawn = []

    class Watched(OneLine):
        def refresh(self):
            drawn.extend(self.get_renderables())

        def update(self, *words, **options):
            super().update(*words, **options)
            self.refresh()

        def reset(self, *words, **options):
            super().reset(*words, **options)
            self.refresh()

    bar = Bar(Watched(console=Console(file=io.StringIO(), force_terminal=True), auto_refresh=False))
    bar.on_features(3, 7)
    bar.on_start(phases(3, 2), 4, 0, 0)
    bar.on_step()
    bar.on_plan(phases(3, 2))
    bar.on_epoch_end({"epoch": 1, "phase": "backbone", "loss": 1.0})
    bar.on_start(phases(3), 4, 0, 5)
    assert len(drawn) > 8
    assert screen_of(80, lambda bar: None).startswith("starting ━") and "%" not in screen_of(80, lambda bar: None)


def far_on(bar):
    bar.on_start(phases(100, 120), 10, 0, 0)
    for _ in range(1990):
        bar.on_step()
    bar.on_plan(phases(100, 120))
    bar.on_epoch_end(LONG)


def test_eighty_columns_hold_epoch_phase_bar_time_and_one_score():
    line = screen_of(80, far_on)
    assert len(line) <= 80 and "\n" not in line
    assert re.fullmatch(r"epoch 200/220 correction 2 [━╸╺]{10,} 90%  -?\d*:[-\d]+ left  held-out 98\.7%\s*", line), line


@pytest.mark.parametrize("width", [24, 40, 60, 79, 80, 81, 100, 120, 160, 250])
def test_no_width_cuts_or_wraps_what_is_always_there(width):
    line = screen_of(width, far_on)
    assert line.count("\n") == 0 and len(line) <= width
    if width >= 60:
        assert "epoch 200/220 correction 2" in line and "left" in line and "held-out 98.7%" in line
    assert ("so far" in line) == (width >= 100)
    assert ("loss 1.234 -3.579 (ELR)" in line) == (width >= 120)
    assert ("123,456 training labels changed" in line) == (width >= 160)


def test_a_wider_terminal_gets_more_figures_as_long_as_the_bar_stays_readable():
    kept = ["epoch 1/2 train", "50%", "0:10 left"]
    for width in range(32, 200):
        before, bar, after = fit_line(width, kept, ["one", "two"])
        assert len(before) + bar + len(after) + (2 if bar else 1) < width
        assert bar == 0 or bar >= progress.SHORTEST_BAR
        assert after.startswith("50%  0:10 left") and ("one" in after or "two" not in after)
        assert "one" not in after or bar >= progress.LONGEST_BAR // 2


def test_a_plan_that_changes_and_a_second_stage_keep_epochs_within_their_number():
    """A time budget plans anew after every epoch; fine-tuning continues to count where the head stopped."""
    seen = []
    shown = OneLine(console=Console(file=io.StringIO(), force_terminal=True), auto_refresh=False)
    bar = Bar(shown)
    bar.on_start(phases(3), 2, 0, 0)
    for epoch, planned in enumerate((40, 35, 33), 1):
        for _ in range(2):
            bar.on_step()
        bar.on_plan(phases(planned))
        bar.on_epoch_end({"epoch": epoch, "phase": "backbone", "loss": 1.0})
        seen.append(shown.tasks[0].fields["before"])
    assert seen == ["epoch 2/40 backbone", "epoch 3/35 backbone", "epoch 4/33 backbone"]
    assert shown.tasks[0].completed == 6 and shown.tasks[0].total == 66
    bar.on_start(phases(3), 4, 4, 33)
    assert shown.tasks[0].fields["before"] == "epoch 35/36 backbone"
    assert (shown.tasks[0].completed, shown.tasks[0].total) == (4, 12)


class Clock:
    def __init__(self, step):
        self.time, self.step = 0.0, step

    def __call__(self):
        return self.time


def test_lines_are_at_most_one_in_ten_seconds_and_the_last(capsys):
    now = Clock(1.0)
    lines = Lines(now)
    lines.on_start(phases(20, 15), 3, 0, 0)
    for epoch in range(1, 36):
        now.time += 1
        lines.on_plan(phases(20, 15))
        lines.on_epoch_end({"epoch": epoch, "phase": "backbone", "loss": 0.5, "test_accuracy": 0.75})
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["1/35", "11/35", "21/35", "31/35", "35/35"]
    assert said[1] == "epoch 11/35 backbone: test 75.0%, loss 0.500, 0:24 left"
    assert said[-1] == "epoch 35/35 backbone: test 75.0%, loss 0.500"


def test_slow_epochs_have_a_line_each_and_features_too(capsys):
    now = Clock(1.0)
    lines = Lines(now)
    for done in range(1, 8):
        now.time += 4
        lines.on_features(done, 7)
    lines.on_start(phases(3), 1, 0, 0)
    for epoch in (1, 2, 3):
        now.time += 60
        lines.on_epoch_end({"epoch": epoch, "phase": "backbone", "loss": 0.5})
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("features")] == [
        f"features of {done}/7 rows" for done in (1, 4, 7)
    ]
    assert [line.split()[1] for line in said[3:]] == ["1/3", "2/3", "3/3"] and said[3].endswith("2:00 left")


def test_a_log_says_once_how_long_training_will_take(capsys):
    now = Clock(0.0)
    lines = Lines(now)
    lines.on_start(phases(10), 20, 40, 0)  # resumed after two of ten epochs
    for _ in range(100):
        now.time += 1
        lines.on_step()
    assert capsys.readouterr().err.splitlines() == ["training will take about 2.7 min on this machine"]


def test_lines_of_a_real_run(blobs, capsys):
    run(blobs, Lines())
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("epoch 1/5 backbone: test ") and said[-1].startswith("epoch 5/5 finetune: test ")


def test_a_loss_below_zero_is_shown_in_its_parts():
    """ELR's regulariser is log(1 - <f, t>), which is never above 0."""
    assert (
        loss_of({"loss": -1.5, "loss_classification": 0.5, "loss_early_learning": -2 / 3}) == "loss 0.500 -2.000 (ELR)"
    )
    assert loss_of({"loss": 0.25, "loss_classification": 0.2, "loss_entropy": 0.1}) == "loss 0.250"


def test_the_score_is_that_of_the_test_set_if_there_is_one():
    assert score_of({"validation_accuracy": 0.5, "test_accuracy": 0.98}) == "test 98.0%"
    assert score_of({"validation_map": 0.5}) == "held-out mAP 50.0%" and score_of({"loss": 1.0}) == ""


def test_times_and_phases():
    assert [clock(seconds) for seconds in (0, 7.4, 61, 754, 3723, 36_000)] == [
        "0:00", "0:07", "1:01", "12:34", "1:02:03", "10:00:00",
    ]  # fmt: skip
    assert [phase_at(phases(2, 1), epoch) for epoch in (1, 2, 3, 9)] == ["backbone"] * 2 + ["correction 2"] * 2


def test_nothing_is_shown_where_nobody_watches():
    with show_progress(None) as watching, show_progress(False) as silent, show_progress(True) as lines:
        assert watching == silent == () and isinstance(lines[0], Lines)  # stderr is no terminal here
