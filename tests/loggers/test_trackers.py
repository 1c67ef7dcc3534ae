"""The numbers of a run in TensorBoard, Weights & Biases and MLflow, read back from what they wrote."""

import json
import os
import shutil
import sqlite3
import struct
import sys
import time
from contextlib import closing
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from commands import pencil as command
from review_runs import many_classes_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import pencil
from pencil import RecipeError, Stopped
from pencil.errors import RunError
from pencil.loggers import mlflow_model, trackers
from pencil.recipe import parse
from pencil.runs.directory import RunReader
from pencil.runs.label_table import LabelTable
from pencil.training import checkpointing
from pencil.training.settings import TrackerName

EPOCHS = 4


@pytest.fixture(autouse=True)
def _at_home(monkeypatch):
    """No service is asked, whatever the environment says."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def train(out, *names, resume=False):
    rng = np.random.default_rng(0)
    given = np.arange(60) % 3
    x = (rng.normal(size=(60, 4)) + 2 * np.eye(4)[given]).astype(np.float32)
    settings = {"training.log": list(names), "training.batch_size": 16}
    return pencil.fit(
        "mlp", (x, given), test=(x, given), out=out, epochs=EPOCHS, settings=settings, resume=resume, progress=False
    )


def stop_and_go_on(out, *names):
    """Killed in the third epoch, with a checkpoint of the second: the second epoch ends, and is logged, twice."""
    original, saved = checkpointing.Checkpointer.__call__, []

    def look(self, trainer):
        where = (len(trainer.records), trainer.position.step)
        if where == (1, 2) and not saved:
            saved.append(where)
            self.request.signal = "SIGTERM"
            with pytest.raises(Stopped):
                original(self, trainer)
            self.request.signal = None
        elif where == (2, 1):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing.Checkpointer, "__call__", look)
        with pytest.raises(KeyboardInterrupt):
            train(out, *names)
    assert (out / "metrics.jsonl").read_text().count("\n") == 2
    return train(out, *names, resume=True)


def expected(run, name):
    return [(record["epoch"], pytest.approx(record[name], rel=1e-6)) for record in run.metrics]


def tensorboard_curve(out, name):
    return [(event.step, event.value) for event in EventAccumulator(str(out / "tensorboard")).Reload().Scalars(name)]


def wandb_records(path):
    """The records of a .wandb file: blocks of 32 KiB, each record with checksum, length and kind before it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def wandb_curve(path, name):
    found = []
    for record in wandb_records(path):
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if name in items:
            found.append((record.history.step.num, json.loads(items[name])))
    return found


def mlflow_run(out):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow' / 'mlflow.db'}")
    return client, client.get_run(json.loads((out / "mlflow" / "run.json").read_text())["run"])


def test_tensorboard_has_every_epoch_the_recipe_and_the_summary(tmp_path):
    run = train(tmp_path / "run", "tensorboard")
    for name in ("loss", "test_accuracy", "lr", "labels_changed"):
        assert tensorboard_curve(tmp_path / "run", name) == expected(run, name)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert events.Scalars("summary/seconds")[0].value == pytest.approx(run.summary.seconds)
    assert "recipe/text_summary" in events.Tags()["tensors"]
    (started,) = [
        data
        for plugin in ["hparams"]
        for tag, data in events.PluginTagToContent(plugin).items()
        if "session_start" in tag
    ]
    assert b"training.batch_size" in started


def test_wandb_offline_has_every_epoch_the_recipe_and_the_summary(tmp_path):
    run = train(tmp_path / "run", "wandb")
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(50):  # its service writes in its own time
        if wandb_curve(path, "loss"):
            break
        time.sleep(0.2)
    assert wandb_curve(path, "loss") == expected(run, "loss")
    records = list(wandb_records(path))
    config = {item.key: item.value_json for record in records for item in record.run.config.update}
    assert config["training.batch_size"] == "16"
    final = {item.key or item.nested_key[0] for record in records for item in record.summary.update}
    assert "summary/seconds" in final


def test_mlflow_has_every_epoch_the_recipe_the_summary_and_the_model(tmp_path, monkeypatch):
    run = train(tmp_path / "run", "mlflow")
    client, found = mlflow_run(tmp_path / "run")
    assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")] == expected(run, "loss")
    assert found.data.params["training.batch_size"] == "16"
    assert found.data.metrics["summary/seconds"] == pytest.approx(run.summary.seconds)
    assert found.info.status == "FINISHED"
    check_model(tmp_path / "run", run, client, found, monkeypatch)


def check_model(out, run, client, found, monkeypatch):
    """The model loads again and predicts from raw inputs, without a pickle and without the keys of the data."""
    import mlflow.pyfunc

    assert "MLFLOW_TRACKING_URI" not in os.environ  # a second run in this process logs to its own directory
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    model = mlflow.pyfunc.load_model(f"runs:/{found.info.run_id}/model")
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(x), run.predict_probs(x).numpy())
    (saved,) = (out / "mlflow" / "artifacts").rglob("MLmodel")
    assert not [path for path in saved.parent.rglob("*") if path.suffix in (".pkl", ".pth", ".pt")]
    (labels,) = saved.parent.rglob("labels.parquet")
    assert LabelTable.read(labels).keys.to_pylist() == ["row"]


def test_an_mlflow_model_takes_rows_of_a_table(tmp_path):
    frame = pd.DataFrame(
        {"text": ["good film", "bad film"] * 30, "stars": [5.0, 1.0] * 30, "label": ["yes", "no"] * 30}
    )
    run = pencil.fit("mlp", frame, out=tmp_path / "run", epochs=3, progress=False)
    mlflow_model.copy_run_files(run, tmp_path / "model")
    shutil.rmtree(tmp_path / "run")
    new = pd.DataFrame({"text": ["good", "bad"], "stars": [4.0, None]})
    predicted = mlflow_model._load_pyfunc(str(tmp_path / "model")).predict(new)
    np.testing.assert_array_equal(predicted, run.predict_probs(new).numpy())


def test_a_network_from_python_is_no_mlflow_model(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    run = pencil.fit(nn.Linear(4, 3), (x, y), out=tmp_path / "run", epochs=3, progress=False)
    with pytest.warns(UserWarning, match=r"the network 'custom' is not logged as a model.*mlflow\.pytorch\.log_model"):
        mlflow_model.log_model(run, None, "none")


def test_wandb_has_a_table_of_the_corrections(tmp_path):
    rng = np.random.default_rng(0)
    clean = np.arange(300) % 3
    x = (rng.normal(size=(300, 4)) + 6 * np.eye(4)[clean]).astype(np.float32)
    given = np.where(np.arange(300) % 11 == 0, (clean + 1) % 3, clean)
    run = pencil.fit(
        "mlp", (x, given), out=tmp_path / "run", epochs=12, settings={"training.log": ["wandb"]}, progress=False
    )
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files/media/table/corrections_*.table.json")
    table = json.loads(path.read_text())
    fixed = run.labels.to_fix()
    assert len(fixed) > 10 and table["columns"][:4] == ["key", "split", "given", "corrected"]
    assert [row[:4] for row in table["data"]] == [
        [row[name] for name in table["columns"][:4]] for row in fixed.to_pylist()
    ]
    assert [row[5] for row in table["data"]] == pytest.approx(fixed.issue_score.tolist())


def test_corrections_of_several_classes_are_one_text(tmp_path):
    labels = RunReader(many_classes_run(tmp_path / "run")).labels
    assert [row[:4] for row in trackers.corrections(labels)] == [["0", "train", "sea", "sky"]]


def test_a_run_that_goes_on_repeats_nothing_and_loses_nothing(tmp_path):
    out = tmp_path / "run"
    run = stop_and_go_on(out, "tensorboard", "wandb", "mlflow")
    assert [record["epoch"] for record in run.metrics] == [1, 2, 3, 4]
    assert tensorboard_curve(out, "loss") == expected(run, "loss")
    client, found = mlflow_run(out)
    assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")] == expected(run, "loss")
    first, second = sorted((out / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    assert first.name == second.name  # the same id
    assert wandb_curve(second, "loss") == expected(run, "loss")


def change_database(out, *statements):
    with closing(sqlite3.connect(out / "mlflow" / "mlflow.db")) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize("location", ["file://{}/outside", "{}/outside", "s3://bucket"])
def test_a_database_that_leads_out_of_the_run_is_refused(mlflow_folder, location):
    """A received run may have been changed: MLflow would write wherever its database says."""
    out = mlflow_folder / "run"
    where = f"'{location.format(mlflow_folder)}'"
    inside = f"'{(out / 'mlflow' / 'artifacts').as_uri()}'"
    for experiments, runs, note in ((where, inside, True), (inside, where, True), (where, inside, False)):
        change_database(
            out, f"UPDATE experiments SET artifact_location = {experiments}", f"UPDATE runs SET artifact_uri = {runs}"
        )
        (out / "mlflow" / "run.json").write_text(mlflow_folder.joinpath("note").read_text())
        if not note:
            (out / "mlflow" / "run.json").unlink()
        with pytest.raises(RunError, match=r"cannot log to mlflow: its database keeps files in .*; remove this folder"):
            trackers.Trackers(parse({"training": {"log": ["mlflow"]}}), out).begin([])
    assert sorted(path.name for path in mlflow_folder.iterdir()) == ["note", "run"]


@pytest.fixture(scope="module")
def mlflow_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    (folder / "run").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        trackers.MLflow(parse({}), folder / "run")
    shutil.copyfile(folder / "run" / "mlflow" / "run.json", folder / "note")
    return folder


def test_only_places_in_the_folder_are_allowed(tmp_path):
    folder = tmp_path / "a folder"
    assert mlflow_model.place_within(folder, (folder / "x").as_uri()) == folder / "x"
    (tmp_path / "link").symlink_to(folder.parent)
    for location in (None, "", "x", "http://[", f"{folder.as_uri()}%00", f"{folder.as_uri()}/../x", f"file:{folder}x",
                     folder.as_uri().replace("file://", "file://host"), f"{tmp_path.as_uri()}/link/x"):  # fmt: skip
        with pytest.raises(RunError, match="its database keeps files in"):
            mlflow_model.place_within(folder, location)


def test_a_model_is_not_written_where_a_trigger_of_the_database_says(tmp_path):
    run = train(tmp_path / "run", "mlflow")
    log, outside = trackers.MLflow(run.recipe, run.path), (tmp_path / "outside").as_uri()
    update = f"UPDATE logged_models SET artifact_location = '{outside}'"
    change_database(run.path, f"CREATE TRIGGER move AFTER INSERT ON logged_models BEGIN {update}; END")
    with pytest.raises(RunError, match=r"its database keeps files in 'file:.*outside'"):
        log.finish(run)
    assert not (tmp_path / "outside").exists()


def test_logging_may_begin_when_a_run_is_resumed(tmp_path):
    out = tmp_path / "run"
    log = trackers.Trackers(parse({"training": {"log": ["tensorboard"]}}), out)
    with log:
        log.begin([{"epoch": 1, "phase": "backbone", "loss": 2.0}, {"epoch": 2, "phase": "backbone", "loss": 1.0}])
        log.on_epoch_end({"epoch": 3, "phase": "backbone", "loss": 0.5})
    assert tensorboard_curve(out, "loss") == [(1, 2.0), (2, 1.0), (3, 0.5)]


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, monkeypatch):
    def full(self, epoch, numbers):
        raise OSError("no space left")

    monkeypatch.setattr(trackers.TensorBoard, "log", full)
    with pytest.warns(UserWarning, match="tensorboard could not log: no space"):
        run = train(tmp_path / "run", "tensorboard")
    assert len(run.metrics) == EPOCHS


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_said_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda package: None if package == name else object())
    with pytest.raises(
        RecipeError, match=rf"names {name}, which needs {name}; .* pip install 'pencil-labels\[{name}\]'"
    ):
        train(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_directory_cannot_be_logged():
    with pytest.raises(RecipeError, match=r"no directory to log to; pass out="):
        train(None, "tensorboard")


def test_names_are_those_of_the_recipe():
    assert tuple(trackers.TRACKERS) == tuple(trackers.NEEDED) == get_args(TrackerName)
    with pytest.raises(RecipeError, match=r"training\.log\.0: .*; saw 'paper'"):
        parse({"training": {"log": ["paper"]}})


def test_numbers_are_taken_from_any_depth():
    tree = {
        "phase": "backbone",
        "loss": 1.5,
        "labels": {"changed": 3, "sure": True, "by": {"class": 0.5}},
        "none": None,
    }
    assert trackers.numbers_of(tree) == {"loss": 1.5, "labels.changed": 3.0, "labels.by.class": 0.5}


def test_the_command_line_names_as_many_as_one_likes(tmp_path):
    command("train", "digits", "--epochs", "3", "--out", "run", "--log", "tensorboard", "--log", "wandb", cwd=tmp_path)
    assert pencil.open_run(tmp_path / "run").recipe.training.log == ("tensorboard", "wandb")
    assert [step for step, _ in tensorboard_curve(tmp_path / "run", "loss")] == [1, 2, 3]
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert [step for step, _ in wandb_curve(path, "loss")] == [1, 2, 3]
    said = command("train", "digits", "--log", "paper", cwd=tmp_path, code=2).stderr
    assert "training.log" in said and "'tensorboard', 'wandb' or 'mlflow'" in said
