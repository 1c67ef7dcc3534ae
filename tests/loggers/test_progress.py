import io

from rich.console import Console
from rich.progress import Progress

from pencil.data import Splits
from pencil.loggers.progress import Bar, Lines, show_progress
from pencil.methods import Pencil
from pencil.models import mlp
from pencil.training import Trainer, TrainingSettings


def run(blobs, observer):
    method = Pencil(backbone_epochs=2, correction_epochs=2, finetune_epochs=1)
    settings = TrainingSettings(batch_size=89)  # 90 rows: the one left over joins, so there is one step per epoch
    Trainer(mlp(2, 3), Splits(blobs, blobs, blobs), method, settings, observers=(observer,)).run()


def test_the_bar_ends_full_and_names_phase_and_figures(blobs):
    screen = io.StringIO()
    with Progress(
        "{task.description} {task.fields[figures]}", console=Console(file=screen, force_terminal=True)
    ) as bar:
        run(blobs, Bar(bar))
        (task,) = bar.tasks
        assert task.completed == task.total == 5
    assert "finetune" in screen.getvalue() and "validation" in screen.getvalue()


def test_lines_are_one_per_epoch(blobs, capsys):
    run(blobs, Lines())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and lines[0].startswith("epoch 1/5 backbone: loss") and "test" in lines[-1]


def test_nothing_is_shown_where_nobody_watches():
    with show_progress(None) as watching, show_progress(False) as silent, show_progress(True) as lines:
        assert watching == silent == () and isinstance(lines[0], Lines)  # stderr is no terminal here
