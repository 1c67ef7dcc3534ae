"""The network of a run as an MLflow model: it predicts class probabilities for raw inputs and contains no pickle."""

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa

from pencil.errors import PencilWarning, RunError, warn
from pencil.recipe import CUSTOM
from pencil.runs.label_table import LabelTable
from pencil.runs.layout import ENCODER, ENVIRONMENT, LABELS, METRICS, MODEL, RECIPE, SUMMARY
from pencil.runs.run import Run, open_run
from pencil.user_file import split_reference

NAME = "model"
FILES = (RECIPE, ENVIRONMENT, SUMMARY, MODEL)
LOADER = "pencil.loggers.mlflow_model"


def place_within(folder: Path, location: str | None) -> Path:
    """Return the path of an artifact location; raise RunError unless it is in the folder of the local database.

    The database may come from a stranger, and MLflow writes wherever it says. A run that was moved has another folder.
    """
    try:
        found = urlsplit(location or "")
        path = Path(os.path.realpath(url2pathname(found.path)))
        inside = found.scheme == "file" and not found.netloc and path.is_relative_to(folder)
    except ValueError:  # a NUL
        inside = False
    if not inside:
        raise RunError(
            f"its database keeps files in {str(location)[:200]!r}; expected a place in {folder}, where the run is now; "
            "remove this folder to log all epochs again"
        )
    return path


def log_model(run: Run, client: Any, run_id: str, local: Path | None = None) -> None:
    """Log the network as the model ``model`` of an MLflow run; ``local`` is the folder of a local database.

    A network that was passed as a Python object or comes from a user's file cannot be rebuilt by name: it is
    skipped with a warning. The functions of ``mlflow`` itself would change the tracking URI of the process, so the
    client is used.
    """
    assert run.path is not None
    name = run.recipe.model.name
    if name == CUSTOM or split_reference(name) is not None:
        warn(
            f"the network {name!r} is not logged as a model, because MLflow could not rebuild it; log it with "
            "mlflow.pytorch.log_model(run.model).",
            PencilWarning,
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        copy_run_files(run, Path(folder) / NAME)
        _save_model(Path(folder) / NAME, Path(folder) / "saved")
        model = client.create_logged_model(client.get_run(run_id).info.experiment_id, NAME, run_id)
        if local is None:
            client.log_model_artifacts(model.model_id, str(Path(folder) / "saved"))
        else:  # the client would read the location again, and a view in the database may return another one
            shutil.copytree(Path(folder) / "saved", place_within(local, model.artifact_location))
        client.finalize_logged_model(model.model_id, "READY")


def copy_run_files(run: Run, target: Path) -> None:
    """Copy the files needed to open the run.

    A label table needs at least one row: the first row of the run is kept, without its key.
    """
    assert run.path is not None
    target.mkdir()
    for name in (*FILES, *([ENCODER] if run.encoder is not None else [])):
        shutil.copyfile(run.path / name, target / name)
    (target / METRICS).touch()
    first = run.labels.table.slice(0, 1)
    LabelTable(first.set_column(first.column_names.index("key"), "key", pa.array(["row"]))).write(target / LABELS)


def _save_model(data: Path, target: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the type hints of its own classes
        import mlflow.pyfunc

    mlflow.pyfunc.save_model(target, loader_module=LOADER, data_path=str(data), pip_requirements=["pencil-labels"])


class Predictor:
    """The model behind ``mlflow.pyfunc.load_model``: ``predict`` takes arrays, or frames with the table's columns."""

    def __init__(self, run: Run):
        self.run = run

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return class probabilities, (rows, classes)."""
        probs: np.ndarray = self.run.predict_probs(model_input).numpy()
        return probs


def _load_pyfunc(path: str) -> Predictor:
    """Open the network; MLflow calls this by name."""
    return Predictor(open_run(path))
