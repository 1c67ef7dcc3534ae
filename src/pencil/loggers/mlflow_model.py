"""The network of a run as an MLflow model: it predicts class probabilities of raw inputs, and holds no pickle."""

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pencil.recipe import CUSTOM
from pencil.runs.layout import ENCODER, ENVIRONMENT, LABELS, METRICS, MODEL, RECIPE, SUMMARY
from pencil.runs.run import Run, open_run
from pencil.user_file import split_reference

NAME = "model"
FILES = (RECIPE, ENVIRONMENT, SUMMARY, MODEL)
LOADER = "pencil.loggers.mlflow_model"


def log_model(run: Run, tracking_uri: str, run_id: str) -> None:
    """Log the network as the model ``model`` of an MLflow run.

    A network that came from Python or from a file of the user's cannot be built again by its name: it is left out, with
    a warning.

    Parameters
    ----------
    run : Run
        The finished run, with its directory.
    tracking_uri : str
        Where the MLflow run is.
    run_id : str
        The MLflow run.
    """
    assert run.path is not None
    name = run.recipe.model.name
    if name == CUSTOM or split_reference(name) is not None:
        warnings.warn(
            f"the network {name!r} is not logged as a model, as MLflow could not build it again; log it with "
            "mlflow.pytorch.log_model(run.model).",
            stacklevel=4,
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / NAME
        _copy_network(run, data)
        _log(data, tracking_uri, run_id)


def _copy_network(run: Run, target: Path) -> None:
    """Copy what is needed to open the run as it is, without the rows of its data."""
    assert run.path is not None
    target.mkdir()
    for name in (*FILES, *([ENCODER] if run.encoder is not None else [])):
        shutil.copyfile(run.path / name, target / name)
    (target / METRICS).touch()
    run.labels.slice(0, 0).write(target / LABELS)


def _log(data: Path, tracking_uri: str, run_id: str) -> None:
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the type hints of its own classes
        import mlflow.pyfunc

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tracking_uri)
    try:
        with mlflow.start_run(run_id=run_id, nested=True):
            mlflow.pyfunc.log_model(
                name=NAME, loader_module=LOADER, data_path=str(data), pip_requirements=["pencil-labels"]
            )
    finally:
        mlflow.set_tracking_uri(before)


class Predictor:
    """What ``mlflow.pyfunc.load_model`` wraps: ``predict`` takes arrays, or frames with the columns of the table."""

    def __init__(self, run: Run):
        self.run = run

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return class probabilities, (rows, classes)."""
        probs: np.ndarray = self.run.predict_probs(model_input).numpy()
        return probs


def _load_pyfunc(path: str) -> Predictor:
    """Open the network; MLflow calls this by name."""
    return Predictor(open_run(path))
