"""Progress inside a cell: what a worker reports, and how it is shown on a terminal and in a log."""

import io
import os
import pty
import re
import subprocess
import sys
import warnings

import pytest
from rich.console import Console
from test_bench import SMALL

from pencil.bench import progress, runner
from pencil.bench.progress import Bars, Log, Relay, show_cells, warnings_told
from pencil.bench.spec import Spec
from pencil.loggers.progress import OneLine, Status
from pencil.methods import Phase


class Clock:
    time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def cells():
    return list(Spec.model_validate(SMALL).cells())


def phases(*lengths):
    return tuple(Phase(f"phase {number}", length, loss=None, lr=0.1) for number, length in enumerate(lengths, 1))


def test_a_worker_reports_starts_at_once_and_steps_now_and_then():
    told, now = [], Clock()
    relay = Relay(told.append, now)
    relay.begin("loading data")
    relay.begin("starting")
    relay.on_start(phases(2, 1), 100, 0, 0)
    for epoch in (1, 2, 3):
        for _ in range(100):
            now.time += 0.01
            relay.on_step()
        relay.on_plan(phases(2, 1))
        relay.on_epoch_end({"epoch": epoch, "phase": "phase 1", "loss": 0.5, "test_accuracy": 0.75})
    assert [status.stage for status in told[:3]] == ["loading data", "starting", "epoch 1/3 phase 1"]
    assert len(told) <= 3 + 3 / progress.SECONDS_PER_MESSAGE
    assert {status.stage for status in told[3:]} == {"epoch 1/3 phase 1", "epoch 2/3 phase 1", "epoch 3/3 phase 2"}
    assert told[-1].total == 300 and told[-1].done > 250 and told[-1].score == "test 75.0%"


def test_a_cell_reports_its_epochs(cells, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_PER_MESSAGE", 0.0)
    told = []
    assert runner.run_cell(cells[0], told.append)["status"] == "done"
    stages = list(dict.fromkeys(status.stage for status in told))
    assert stages == ["loading data", "starting", *(f"epoch {epoch}/3 train" for epoch in (1, 2, 3))]


def test_the_log_says_which_cell_is_in_which_epoch(cells, capsys):
    now = Clock()
    log, (one, other) = Log(now), cells[:2]
    for second in range(61):
        now.time = float(second)
        for cell in (one, other):
            log.on_news(cell, Status(f"epoch {second // 10 + 1}/12 train", second, 120, "test 75.0%"))
    log.on_end(one, "one has ended")
    log.on_news(other, "UserWarning: \x1b[2J")
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"digits, clean, {name}, seed 1: epoch 1/12 train: test 75.0%" for name in ("cross_entropy", "pencil")
    ]
    assert said[2] == "digits, clean, cross_entropy, seed 1: epoch 3/12 train: test 75.0%, 1:40 left"
    assert len(said) == 2 * 4 + 2  # a line in ten seconds, of both together
    assert said[-2:] == ["one has ended", "digits, clean, pencil, seed 1: UserWarning: \\x1b[2J"]


def test_the_time_left_counts_from_the_start_of_a_stage(cells, capsys):
    now = Clock()
    log = Log(now)
    for time, status in (
        (0, Status("loading data")),
        (50, Status("epoch 1/10", 0, 10)),
        (60, Status("epoch 2/10", 1, 10)),
    ):
        now.time = float(time)
        log.on_news(cells[0], status)
    assert capsys.readouterr().err.splitlines()[-1].endswith("epoch 2/10: 1:30 left")


class DrawnAtOnce(OneLine):
    """Another thread may draw a bar as soon as it is there."""

    def add_task(self, *words, **options):
        task = super().add_task(*words, **options)
        assert list(self.get_renderables())
        return task


def test_a_terminal_has_a_bar_for_each_cell_and_lines_above(cells):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, legacy_windows=False)
    shown = DrawnAtOnce(console=console, auto_refresh=False)
    bars = Bars(shown)
    for cell, epoch in zip(cells[:2], (3, 7), strict=True):
        bars.on_news(cell, Status("loading data"))
        bars.on_news(cell, Status(f"epoch {epoch}/12 train", 10 * epoch, 120, "test 75.0%", ("loss 0.500",)))
    drawn = []
    for line in shown.get_renderables():
        with console.capture() as captured:
            console.print(line)
        drawn.append(re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).rstrip("\n"))
    assert [re.match(r"epoch \d+/12 train, digits, clean, \w+", line)[0] for line in drawn] == [
        "epoch 3/12 train, digits, clean, cross_entropy", "epoch 7/12 train, digits, clean, pencil",
    ]  # fmt: skip
    assert all(len(line) <= 80 and "test 75.0%" in line for line in drawn)
    bars.on_end(cells[0], "[one] has ended")
    bars.on_news(cells[1], "a sentence")
    assert [task.fields["before"] for task in shown.tasks] == ["epoch 7/12 train, digits, clean, pencil, seed 1"]
    printed = console.file.getvalue()
    assert "[one] has ended\n" in printed and "digits, clean, pencil, seed 1: a sentence\n" in printed


def test_warnings_of_a_worker_are_told():
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warnings_told(told.append):
            warnings.warn("few rows", stacklevel=1)
    assert told == ["UserWarning: few rows"]


def test_elsewhere_than_on_a_terminal_there_are_lines():
    with show_cells() as display:
        assert isinstance(display, Log)


@pytest.mark.slow
def test_the_command_on_a_terminal(tmp_path):
    """Both cells have bars on stderr while they run, and the tables alone are on stdout."""
    (tmp_path / "tiny.toml").write_text(
        'seeds = [1, 2]\n[recipe]\ndata = { source = "digits", rows = 400 }\ntraining = { epochs = 40 }\n'
        '[[methods]]\nname = "cross_entropy"\nset = { method = { name = "cross_entropy" } }\n'
    )
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "pencil", "bench", "tiny.toml", "--processes", "2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(words, cwd=tmp_path, stderr=theirs, stdout=subprocess.PIPE, env=environment) as command:
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                some = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not some:
                break
            shown += some
        out = command.stdout.read().decode()
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert command.returncode == 0, text
    for seed in (1, 2):
        assert re.search(rf"epoch \d+/40 train, data, as given, cross_entropy, seed {seed} ", text)
        assert re.search(rf"data, as given, cross_entropy, seed {seed}: test \d+\.\d% 40 epochs in", text)
    assert out.startswith("# tiny") and "epoch 1/40" not in out
