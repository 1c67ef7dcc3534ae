"""The run directory: one writer, one reader, a format that is checked, and one clear line for each damage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import pencil
from pencil.errors import RunError, on_command_line
from pencil.report import write_report
from pencil.runs.directory import DamagedError, RunReader, RunWriter
from pencil.runs.layout import FORMAT, is_empty, is_run, is_unfinished, unfinished_path
from pencil.runs.manifest import check_first_files, verify
from pencil.runs.summary import Summary


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    given = np.arange(40) % 2
    out = tmp_path_factory.mktemp("runs") / "whole"
    return pencil.fit(
        "mlp",
        (x, given),
        test=(x, given),
        clean_labels=given,
        out=out,
        epochs=3,
        method="cross_entropy",
        progress=False,
    )


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run.path, tmp_path / "copy")


def test_a_reader_has_everything(run):
    reader = RunReader(run.path)
    assert reader.environment["format"] == FORMAT and reader.environment == run.environment
    assert reader.recipe_tree["data"]["source"] == "python" and reader.recipe().to_toml() == run.recipe.to_toml()
    assert reader.rows["split"].to_pylist().count("train") == run.summary.data.rows["train"]
    assert reader.metrics == run.metrics and reader.summary == run.summary and reader.labels.equals(run.labels)
    assert set(reader.fingerprints) == {"train", "train inputs", "test", "test inputs"}
    assert reader.weights_path().name == "model.safetensors" and reader.weights_path("best").is_file()
    assert set(reader.read_weights()) == set(run.model.state_dict())
    assert reader.data().name == "whole" and reader.data().classes == run.classes
    with pytest.raises(RunError, match="epoch is 'first'; expected last or best"):
        reader.weights_path("first")


def test_files_of_a_run_have_the_same_permissions(run):
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {(run.path / "recipe.toml").stat().st_mode & 0o777}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"pencil": "0.0.1"}, r"has no format version in environment.json; expected format 2; "),
        (
            {"format": 3, "pencil": "9.0"},
            r"has format 3 in environment.json; expected format 2; open the run with pencil 9.0",
        ),
        ({"format": "1"}, r"has format '1'.*open the run with the version of pencil that wrote it, or train again"),
    ],
)
def test_another_format_is_refused_in_one_line(copy, seen, words):
    (copy / "environment.json").write_text(json.dumps(seen))
    for read in (pencil.open_run, RunReader, write_report, verify):
        with pytest.raises(RunError, match=words) as caught:
            read(copy)
        assert "\n" not in str(caught.value) and not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("environment.json", "environment"),
        ("rows.parquet", "rows"),
        ("metrics.jsonl", "metrics"),
        ("labels.parquet", "labels"),
        ("summary.json", "summary"),
        ("recipe.toml", "recipe_tree"),
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"{ not what it was", b"[1]", b"\xff\xfe\n", b"[" * 100_000])
def test_damage_is_one_line_that_names_the_file(copy, name, attribute, content):
    reader = RunReader(copy)
    vars(reader).pop(attribute, None)
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    if (name, content) in {("metrics.jsonl", b""), ("recipe.toml", b""), ("recipe.toml", b"[1]")}:
        return  # which is valid
    with pytest.raises(RunError, match=rf"is damaged: {name}.*(restore|train again)") as caught:
        getattr(reader, attribute)
    assert "\n" not in str(caught.value)


def test_directories_that_are_no_finished_run(copy, tmp_path):
    with pytest.raises(RunError, match=r"is not a run directory \(it has no recipe.toml\); name a"):
        RunReader(tmp_path)
    (copy / "summary.json").unlink()
    with pytest.raises(RunError, match=r"has not finished \(it has no summary.json\); resume it with `pencil resume"):
        RunReader(copy)
    assert RunReader(copy, finished=False).metrics and is_run(copy) and is_unfinished(copy)
    assert unfinished_path(tmp_path, "copy") == copy


def test_a_report_of_a_run_in_memory_reads_no_file(run, tmp_path, monkeypatch):
    """The files were written a moment ago."""
    monkeypatch.setattr(RunReader, "__init__", lambda *_, **__: pytest.fail("the run directory was read"))
    text = write_report(run, tmp_path / "r.html", with_data=False).read_text()
    assert run.environment["data_fingerprint"]["train"] in text


def test_verify_names_what_is_damaged(copy):
    assert all(status.ok for status in verify(copy)) and len(verify(copy)) == 7
    (copy / "labels.parquet").write_bytes(b"x")
    (copy / "rows.parquet").unlink()
    found = {status.path.name: status.reason for status in verify(copy) if not status.ok}
    assert found["rows.parquet"] == "it is missing" and "its SHA-256 differs" in found["labels.parquet"]
    (copy / "environment.json").write_text("{")
    assert "environment.json" in {status.path.name for status in verify(copy) if not status.ok}
    (copy / "summary.json").unlink()
    assert [status.path.name for status in verify(copy) if not status.ok] == ["environment.json", "manifest.json"]


def test_the_manifest_covers_exactly_what_the_page_says(run):
    covered = {
        "recipe.toml", "environment.json", "rows.parquet", "metrics.jsonl", "labels.parquet", "model.safetensors",
        "checkpoints/best.safetensors",
    }  # fmt: skip
    assert set(json.loads((run.path / "manifest.json").read_text())) == covered


def test_the_digests_hold_where_text_files_have_other_line_breaks(tmp_path, run, monkeypatch):
    path, write_text, open_file = tmp_path / "new", Path.write_text, Path.open

    def write_on_windows(self, text, encoding=None, errors=None, newline=None):
        return write_text(self, text, encoding, errors, "\r\n" if newline is None else newline)

    def open_on_windows(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        translated = newline is None and "b" not in mode and "r" not in mode
        return open_file(self, mode, buffering, encoding, errors, "\r\n" if translated else newline)

    monkeypatch.setattr(Path, "write_text", write_on_windows)
    monkeypatch.setattr(Path, "open", open_on_windows)
    with RunWriter(path) as writer:
        writer.begin(run.recipe, {"pencil": "x"}, pq.read_table(run.path / "rows.parquet"))
        check_first_files(path)
        writer.append_metrics({"epoch": 1})
        assert (path / "metrics.jsonl").read_bytes() == b'{"epoch": 1}\n'
        writer.finish(run.labels, [{"epoch": 1}], run.model.state_dict(), run.model.state_dict(), run.summary)
    assert all(status.ok for status in verify(path))
    assert not [
        file.name for file in path.iterdir() if file.suffix in (".toml", ".json") and b"\r" in file.read_bytes()
    ]


def test_the_writer_continues_where_a_checkpoint_was(tmp_path, run):
    path = tmp_path / "new"
    with RunWriter(path) as writer:
        writer.begin(run.recipe, {"pencil": "x"}, pq.read_table(run.path / "rows.parquet"))
        for epoch in (1, 2, 3):
            writer.append_metrics({"epoch": epoch})
        assert writer.environment == {"format": FORMAT, "pencil": "x"}
    with pytest.raises(RunError, match=r"is not empty; expected a new or empty directory; resume with resume=True, or"):
        RunWriter(path)
    with (
        on_command_line(),
        pytest.raises(RunError, match=r"resume with `pencil resume .*, or choose another with --out"),
    ):
        RunWriter(path)
    with RunWriter(path, resume=True) as writer:
        assert writer.environment == {"format": FORMAT, "pencil": "x"}
        writer.truncate_metrics([{"epoch": 1}])
        writer.append_metrics({"epoch": 2})
        writer.finish(
            run.labels, [{"epoch": 1}, {"epoch": 2}], run.model.state_dict(), run.model.state_dict(), run.summary
        )
    reader = RunReader(path)
    assert [record["epoch"] for record in reader.metrics] == [1, 2] and reader.labels.equals(run.labels)
    assert all(status.ok for status in verify(path))


def test_a_summary_survives_json(run):
    summary = run.summary
    assert Summary.from_json(summary.to_json()) == summary == Summary.from_dict(summary.to_dict())
    tree = summary.to_dict()
    assert list(tree)[:8] == [
        "method", "seed", "seconds", "epochs", "best_epoch", "verdict", "validation_accuracy", "test_accuracy",
    ]  # fmt: skip
    assert "entries" not in tree["labels"] and tree["data"]["classes"] == ["0", "1"]
    assert tree["test_accuracy"] == {"best": summary.test.best, "last": summary.test.last}
    assert json.loads(summary.to_json()) == {"format": 2, **tree}
    with pytest.raises(ValueError, match="frozen"):
        summary.seed = 3
    assert Summary.from_dict({**tree, "of a later version": 1}) == summary
    nan = Summary.from_dict({**tree, "findings": {"x": float("nan"), "of": [1, {"a": None}]}})
    assert "NaN" in nan.to_json() and Summary.from_json(nan.to_json()).findings["of"] == [1, {"a": None}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 3}, "has format 3; expected format 2"),
        ({"format": None}, "has format None"),
        ({"labels": {"rows": "many"}}, "labels.rows: .*integer"),
        ({"data": 3}, "expected 'data' with 'multilabel'"),
        ({"seed": None}, "seed: "),
    ],
)
def test_a_summary_that_is_none_is_refused(run, change, words):
    text = json.dumps({**json.loads(run.summary.to_json()), **change})
    with pytest.raises(RunError, match=f"here.json .*{words}") as caught:
        Summary.from_json(text, "here.json")
    assert "\n" not in str(caught.value)


def test_labels_are_counted_by_entry_where_there_are_entries(run):
    labels = run.summary.labels
    assert labels.count == labels.rows and labels.model_copy(update={"entries": 9}).count == 9


OURS = {"format": 2, "pencil": "1", "data_fingerprint": {}}


@pytest.mark.parametrize(
    ("content", "empty"),
    [
        ({}, True),
        ({"checkpoints/": None}, True),
        ({"checkpoints/": None, "environment.json": OURS}, True),
        ({"checkpoints/": None, "environment.json": OURS, "rows.parquet": {}, "manifest.json": {}}, True),
        ({"checkpoints": {}}, False),
        ({"checkpoints/": None, "checkpoints/mine": {}}, False),
        ({"environment.json": {"format": 2}}, False),
        ({"environment.json": [1]}, False),
        ({"rows.parquet": {}}, False),
        ({"checkpoints/": None, "environment.json": OURS, "notes.txt": {}}, False),
    ],
)
def test_a_directory_whose_run_could_not_begin_is_told_from_a_users(tmp_path, content, empty):
    for name, tree in content.items():
        if tree is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(json.dumps(tree))
    assert is_empty(tmp_path) == empty


def test_a_default_directory_whose_run_could_not_begin_is_taken_again(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert unfinished_path(tmp_path, "run") == tmp_path / "run"
    (tmp_path / "run" / "mine").write_text("")
    assert unfinished_path(tmp_path, "run") == tmp_path / "run-2"
