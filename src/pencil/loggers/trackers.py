"""Where the metrics of every epoch go: the run directory, and TensorBoard, Weights & Biases and MLflow.

A resumed run continues the same log: logged epochs are neither repeated nor lost, even if the last checkpoint is older
than the last logged epoch.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from pencil.errors import PencilWarning, RecipeError, RunError, reason_of, warn
from pencil.files import read_json, refuse_links, write_json
from pencil.loggers.mlflow_model import log_model, place_within
from pencil.recipe import Recipe
from pencil.recipe.trees import flatten
from pencil.runs.directory import RunWriter
from pencil.runs.label_table import LabelTable
from pencil.runs.run import Run
from pencil.training import Observer, Record

NEEDED = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic", "pandas")}
"""The packages that each name in ``training.log`` needs."""
FINAL = "summary"
NOTE = "run.json"
PARAMETERS_AT_ONCE = 100
"""MLflow's limit per call."""
CORRECTIONS = "corrections"
SHOWN = ("key", "split", "given", "corrected", "confidence", "issue_score")
"""The columns of the table of corrections."""
MOST_CORRECTIONS = 10_000
"""Maximum number of logged corrections, the most probable issues first; W&B does not show more rows of a table."""


class Tracker(Protocol):
    """A tracker. ``epoch`` counts from one and is the step of every number."""

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of an epoch; an epoch that is already logged is not changed."""

    def finish(self, run: Run) -> None:
        """Log the results of the whole run."""

    def close(self, finished: bool) -> None:
        """Close the tracker; an unfinished run may be resumed later."""


def refuse_missing(names: Sequence[str], out: Path | str | None) -> None:
    """Raise for trackers whose package is not installed, and for any tracker of a run without a directory."""
    for name in names:
        missing = [package for package in NEEDED[name] if importlib.util.find_spec(package) is None]
        if missing:
            raise RecipeError(
                f"training.log names {name}, which needs {', '.join(missing)}; "
                f"install it with pip install 'pencil-labels[{name}]'."
            )
    if names and out is None:
        raise RecipeError(
            f"training.log is {list(names)}, but this run has no directory to log to; pass out=... to pencil.fit"
        )


class MetricsFile(Observer):
    """Appends each epoch to ``metrics.jsonl`` as it ends."""

    def __init__(self, writer: RunWriter):
        self.writer = writer

    def on_epoch_end(self, record: Record) -> None:
        self.writer.append_metrics(record)


class Trackers(Observer):
    """All trackers of a run. A failing tracker causes a warning and does not stop the run."""

    def __init__(self, recipe: Recipe, path: Path):
        self.recipe, self.path = recipe, path
        self.trackers: dict[str, Tracker] = {}
        self._finished = False

    def begin(self, records: Sequence[Record]) -> None:
        """Open every tracker; ``records`` are the finished epochs of a resumed run."""
        for name in self.recipe.training.log:
            refuse_links_out(self.path, name)
            try:
                self.trackers[name] = TRACKERS[name](self.recipe, self.path)
            except _failures() as error:
                raise RunError(f"cannot log to {name}: {error}; fix it, or remove {name} from training.log.") from error
        for record in records:
            self.on_epoch_end(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._each("close", self._finished)

    def on_epoch_end(self, record: Record) -> None:
        self._each("log", record["epoch"], numbers_of(record, leave_out=("epoch", "phase_epoch")))

    def finish(self, run: Run) -> None:
        self._each("finish", run)
        self._finished = True

    def _each(self, what: str, *arguments: Any) -> None:
        for name, tracker in self.trackers.items():
            try:
                getattr(tracker, what)(*arguments)
            except _failures() as error:
                warn(f"{name} could not log: {error}; training continues", PencilWarning)


def refuse_links_out(run: Path, name: str) -> None:
    """Raise if a tracker's folder in a run directory is a link, or contains links that leave the directory.

    The tracker's library writes to this folder. W&B creates links in it, including links from the folders of earlier
    starts to its own log; it never writes to those folders again, so only the names next to them matter.
    """
    refuse_links(run / name, run)
    for folder, folders, files in os.walk(run / name):
        for entry in (*folders, *files):
            path = Path(folder) / entry
            if path.is_symlink() and not path.resolve().is_relative_to(run.resolve()):
                refuse_links(path, run)
        if name == "wandb":
            return


def numbers_of(tree: Mapping[str, Any], leave_out: Sequence[str] = ()) -> dict[str, float]:
    """Return every number in nested tables by its dotted name."""
    flat = {name: value for name, value in flatten(tree).items() if name not in leave_out}
    return {
        name: float(value)
        for name, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe by dotted keys, without unset keys."""
    return {key: value for key, value in flatten(recipe.model_dump(mode="json")).items() if value is not None}


def corrections(labels: LabelTable) -> list[list[Any]]:
    """Return the rows whose label changed, the most probable issue first; several classes are joined to one string."""
    rows = labels.to_fix().slice(0, MOST_CORRECTIONS).to_pylist()
    return [["; ".join(row[name]) if isinstance(row[name], list) else row[name] for name in SHOWN] for row in rows]


class TensorBoard:
    """Event files in RUN/tensorboard. Each start discards the existing files and writes all epochs again."""

    def __init__(self, recipe: Recipe, path: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.recipe = recipe
        self.writer: Any = SummaryWriter(str(path / "tensorboard"), purge_step=0)
        self.writer.add_text("recipe", f"```\n{recipe.to_toml()}\n```", 0)

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def finish(self, run: Run) -> None:
        from torch.utils.tensorboard.summary import hparams

        results = {f"{FINAL}/{name}": value for name, value in numbers_of(run.summary.to_dict()).items()}
        plain = {
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in hyperparameters(self.recipe).items()
        }
        for part in hparams(plain, results):
            self.writer.file_writer.add_summary(part)
        for name, value in results.items():
            self.writer.add_scalar(name, value, 0)

    def close(self, finished: bool) -> None:
        self.writer.close()


class Note:
    """The tracker's name for the run and its last epoch, in a small file of the run directory."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.path = folder / NOTE
        known = self._read() if os.path.lexists(self.path) else {}
        self.run: str | None = known.get("run")
        self.epoch: int = known.get("epoch", 0)

    def _read(self) -> dict[str, Any]:
        try:
            known = read_json(self.path)
            if not isinstance(known, dict) or not isinstance(known.get("run"), str):
                raise ValueError("it does not name a run")
            if not isinstance(known.get("epoch"), int):
                raise ValueError("it has no epoch number")
        except (OSError, ValueError) as error:
            what = f"{self.path}: {reason_of(error)}"
            raise RunError(f"{what}; remove the file to log to a new run of the tracker.") from error
        return known

    def write(self, run: str, epoch: int) -> None:
        self.run, self.epoch = run, epoch
        write_json(self.path, {"run": run, "epoch": epoch}, indent=None)


class WeightsAndBiases:
    """Weights & Biases: offline in RUN/wandb (for ``wandb sync``) unless WANDB_MODE says otherwise.

    Online, a resumed run continues on the server. Offline, each start has its own folder under the same id; an uploaded
    folder may replace another, so each contains every epoch from the first.
    """

    def __init__(self, recipe: Recipe, path: Path):
        import wandb

        self.note = Note(path / "wandb")
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            dir=str(path.resolve()),  # the service may have started in another folder
            project=os.environ.get("WANDB_PROJECT", "pencil"),
            name=os.environ.get("WANDB_NAME", path.name),
            id=self.note.run,
            resume="allow" if self.note.run and mode == "online" else None,  # ignored offline, with a warning
            config=hyperparameters(recipe),
            mode=mode,
            settings=wandb.Settings(console="off"),
        )
        self.note.write(self.run.id, self.note.epoch if mode == "online" else 0)

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        if epoch > self.note.epoch:
            self.run.log(dict(numbers), step=epoch)
            self.note.write(self.run.id, epoch)

    def finish(self, run: Run) -> None:
        import wandb

        found = flatten(run.summary.to_dict())
        self.run.summary.update({f"{FINAL}/{name}": value for name, value in found.items()})
        self.run.log({CORRECTIONS: wandb.Table(list(SHOWN), corrections(run.labels))})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """MLflow at MLFLOW_TRACKING_URI, otherwise in RUN/mlflow (``mlflow ui --backend-store-uri sqlite:///...``)."""

    def __init__(self, recipe: Recipe, path: Path):
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.note = Note(path / "mlflow")
        folder = (path / "mlflow").resolve()
        elsewhere = os.environ.get("MLFLOW_TRACKING_URI")
        self.local = None if elsewhere else folder
        self.client = MlflowClient(tracking_uri=elsewhere or f"sqlite:///{folder / 'mlflow.db'}")
        if self.note.run is not None:
            self.run = self.note.run
            self._refuse_files_outside()
            self.client.update_run(self.run, status="RUNNING")
            there = (metric.step for metric in self.client.get_metric_history(self.run, "loss"))
            self.note.epoch = max(
                self.note.epoch, *there, 0
            )  # the process may have been killed between an epoch and its note
            return
        experiment = self._experiment(None if elsewhere else (folder / "artifacts").as_uri())
        self.run = self.client.create_run(experiment, run_name=path.name).info.run_id
        self._refuse_files_outside()  # the database may be older than the run: only its note is missing
        self.note.write(self.run, 0)
        values = [Param(key, str(value)) for key, value in hyperparameters(recipe).items()]
        for first in range(0, len(values), PARAMETERS_AT_ONCE):
            self.client.log_batch(self.run, params=values[first : first + PARAMETERS_AT_ONCE])

    def _refuse_files_outside(self) -> None:
        """Raise if the local database would make MLflow write files outside of its folder."""
        if self.local is not None:
            info = self.client.get_run(self.run).info
            for location in (self.client.get_experiment(info.experiment_id).artifact_location, info.artifact_uri):
                place_within(self.local, location)

    def _experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pencil")
        known = self.client.get_experiment_by_name(name)
        identifier: str = (
            self.client.create_experiment(name, artifact_location=artifacts) if known is None else known.experiment_id
        )
        return identifier

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        if epoch > self.note.epoch:
            self._log_numbers(numbers, epoch)
            self.note.write(self.run, epoch)

    def finish(self, run: Run) -> None:
        found = numbers_of(run.summary.to_dict())
        self._log_numbers({f"{FINAL}/{name}": value for name, value in found.items()}, self.note.epoch)
        log_model(run, self.client, self.run, self.local)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run, status="FINISHED" if finished else "KILLED")

    def _log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.run, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that the imported libraries raise if a disk, a service or a login fails."""
    found: list[type[Exception]] = [OSError]
    for module, name in (("wandb.errors", "Error"), ("mlflow.exceptions", "MlflowException")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)
