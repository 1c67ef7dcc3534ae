"""Files of a run directory that others may have made: each oddity is one line that names the file."""

import json
import os
import shutil
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from commands import pencil as command

import pencil
from pencil.decisions import read_reviews
from pencil.errors import RunError
from pencil.loggers.trackers import Note
from pencil.review.session import Review
from pencil.runs import label_files, table_memory
from pencil.runs.directory import RunReader, RunWriter
from pencil.runs.label_files import LabelFile
from pencil.runs.label_table import LabelTable
from pencil.runs.leftovers import checkpoints_of
from pencil.runs.manifest import verify
from pencil.runs.summary import Summary


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    top = tmp_path_factory.mktemp("damaged")
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(top / "data.npz", x=x, y=np.arange(40) % 3, classes=["a", "b", "c"])
    words = ["train", "data.npz", "--out", "run", "--epochs", "2", "--method", "cross_entropy"]
    command(*words, cwd=top)
    return top / "run"


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def refused(read, words):
    with pytest.raises(RunError, match=words) as caught:
        read()
    assert "\n" not in str(caught.value)


def change_table(path, change):
    with pq.ParquetFile(path) as file:
        table = file.read()
    pq.write_table(change(table), path)


def retyped(name, values):
    return lambda table: table.set_column(table.column_names.index(name), name, pa.array(values(table.num_rows)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop_columns(["corrected"]), "the column 'corrected' is missing; expected the columns of single"),
        (lambda t: t.append_column("key", t["key"]), "the column 'key' occurs 2 times; expected it once"),
        (lambda t: t.slice(0, 0), "it has no rows"),
        (lambda t: t.replace_schema_metadata(None), "there are no class names in its metadata"),
        (lambda t: t.replace_schema_metadata({"classes": "3"}), "the class names in its metadata are not a list"),
        (lambda t: t.replace_schema_metadata({"classes": "[" * 100_000}), "are not a list of names"),
        (lambda t: t.replace_schema_metadata({"classes": '["a", "a", "b", "c"]'}), "are not unique"),
        (lambda t: t.replace_schema_metadata({"classes": '["a", "b", "\\ud800"]'}), "lone surrogate"),
        (lambda t: t.replace_schema_metadata({"classes": '["x", "y", "z"]'}), r"'distribution'|names the class 'a'"),
        (lambda t: t.replace_schema_metadata({"classes": '["a", "b"]'}), "expected lists of 2 floats"),
        (retyped("key", range), "the column 'key' has type int64; expected text"),
        (retyped("key", lambda n: [None, *map(str, range(1, n))]), "the column 'key' has empty cells"),
        (retyped("key", lambda n: [b"\xff"] * n), "the column 'key' has type binary"),
        (retyped("split", lambda n: [1.0] * n), "the column 'split' has type double; expected text"),
        (retyped("given", lambda n: ["q"] * n), "the column 'given' names the class 'q'; expected one of the 3"),
        (retyped("confidence", lambda n: ["x"] * n), "the column 'confidence' has type string; expected float"),
        (retyped("changed", lambda n: [2] * n), "the column 'changed' has type int64; expected bool"),
        (retyped("distribution", lambda n: [[0.5, 0.5]] * n), "expected lists of 3 floats, one per class"),
    ],
)
def test_a_label_table_has_its_columns_and_types(copy, change, words):
    change_table(copy / "labels.parquet", change)
    refused(lambda: RunReader(copy).labels, f"is damaged: labels.parquet: .*{words}.*restore the file")
    if "corrected" not in words:
        refused(lambda: LabelTable.read(copy / "labels.parquet"), "is not a label table: .*read the file of a run")
    assert "is damaged: labels.parquet" in command("labels", copy, cwd=copy.parent, code=2).stderr


@pytest.mark.parametrize(
    "change", [retyped("key", range), retyped("split", lambda n: [None] * n), lambda t: t.drop_columns(["key"])]
)
def test_rows_are_keys_and_splits(copy, change):
    change_table(copy / "rows.parquet", change)
    refused(lambda: RunReader(copy).rows, "is damaged: rows.parquet: .*(key|split)")


def repeat_first_row(table):
    return table.take(np.zeros(100_000, dtype=int))


TABLES = {"labels.parquet": lambda run: RunReader(run).labels, "rows.parquet": lambda run: RunReader(run).rows}


@pytest.mark.parametrize("name", TABLES)
def test_a_small_file_of_many_equal_rows_is_refused_before_it_is_read(copy, name, monkeypatch):
    """A file of 12 MB with 200 million equal rows would take many gigabytes."""
    monkeypatch.setattr(table_memory, "SMALL", 0)
    assert len(TABLES[name](copy)) == 40
    change_table(copy / name, repeat_first_row)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    words = f"is damaged: {name}: it has 100,000 rows in .* expected at most 4 rows per byte.*; restore the file"
    refused(lambda: TABLES[name](copy), words)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_larger_than_memory_is_refused(copy, name, monkeypatch):
    monkeypatch.setattr(table_memory, "SMALL", 0)
    monkeypatch.setattr(table_memory, "memory_limit", lambda: 400)
    refused(lambda: TABLES[name](copy), f"is damaged: {name}: its 40 rows take .*; expected at most 400 bytes")


def test_equal_rows_are_not_taken_for_a_small_table(copy):
    """Its columns are read lazily, whatever their size in the file."""
    distinct = np.arange(400_000).astype(str).tolist()
    change_table(
        copy / "labels.parquet",
        lambda table: table.take(np.zeros(len(distinct), dtype=int)).set_column(0, "key", pa.array(distinct)),
    )
    file = LabelFile(copy / "labels.parquet")
    assert file.is_small() and len(RunReader(copy).labels) == 400_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_files, "SMALL", 2**24)
        assert (copy / "labels.parquet").stat().st_size < 2**23 and not file.is_small()


@pytest.mark.parametrize(
    ("kind", "width"),
    [(pa.float32(), 4), (pa.bool_(), 1), (pa.string(), 8), (pa.dictionary(pa.int32(), pa.string()), 4),
     (pa.list_(pa.float32(), 1000), 4000), (pa.list_(pa.string()), 8), (pa.binary(5), 5),
     (pa.struct({"a": pa.int64(), "b": pa.bool_()}), 9)],
)  # fmt: skip
def test_the_memory_of_a_row_is_estimated_from_its_types(kind, width):
    assert table_memory.row_bytes(kind) == width


@pytest.mark.parametrize(
    "line",
    ["[]", "3", "null", '{"loss": "low"}', '{"loss": [1]}', '{"loss": true}', '{"phase": 3}', '{"loss": 1e200}',
     '{"loss": 1' + "0" * 400 + "}", '{"a":' * 900 + "1" + "}" * 900, "[" * 100_000, '{"phase": "\\ud800"}', "\u00ff{"],
)  # fmt: skip
def test_metrics_are_numbers(copy, line):
    (copy / "metrics.jsonl").write_text(f'{{"epoch": 1, "loss": NaN, "test_accuracy": null}}\n{line}\n', "latin-1")
    refused(
        lambda: RunReader(copy).metrics, "is damaged: metrics.jsonl: line 2 does not contain the metrics of an epoch"
    )
    (copy / "metrics.jsonl").write_text('{"epoch": 1, "loss": NaN, "phase": "x", "test_accuracy": null}\n')
    assert RunReader(copy).metrics[0]["phase"] == "x"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("epochs", -1), ("epochs", 10**30), ("best_epoch", "x"), ("labels", []), ("labels.rows", None),
        ("data.rows", {}), ("data.rows", {"train": "x"}), ("data.classes", []), ("data.input_shape", [-3]),
        ("data.input_shape", []), ("data.input_type", "text"), ("findings", {"noise_rate": 3}), ("findings", []),
        ("findings", {"choices": 3}), ("validation_accuracy", {"best": 1}),
        ("labels.calibration", {"error": 0, "bins": []}),
    ],
)  # fmt: skip
def test_a_summary_has_its_fields(copy, place, value):
    tree = json.loads((copy / "summary.json").read_text())
    *above, last = place.split(".")
    inner = tree
    for name in above:
        inner = inner[name]
    inner[last] = value
    (copy / "summary.json").write_text(json.dumps(tree))
    refused(
        lambda: RunReader(copy).summary,
        f"is damaged: summary.json is not a summary of a run: {place.removesuffix('_accuracy')}",
    )
    refused(lambda: pencil.open_run(copy), "summary.json")
    assert "summary.json" in command("check", copy, cwd=copy.parent, code=2).stdout


def test_a_summary_of_other_classes_is_refused(copy):
    tree = json.loads((copy / "summary.json").read_text())
    tree["data"]["classes"] = ["a", "b", "z"]
    (copy / "summary.json").write_text(json.dumps(tree))
    refused(lambda: pencil.open_run(copy), "is damaged: summary.json: its classes differ from labels.parquet")


def test_a_deep_or_broken_text_is_refused():
    for text in ('{"a":' * 900 + "1" + "}" * 900, '{"a": "\\ud800"}', "[" * 100_000):
        refused(lambda text=text: Summary.from_json(text, "here.json"), "here.json is not JSON: ")


@pytest.mark.parametrize("content", [b"", b"[data]\n", b"[data]\nsource = ''\n", b"data = 3\n", b"seed = 1\n"])
def test_an_empty_recipe_does_not_read_the_current_folder(copy, content):
    """An empty path is the current folder, which may well be a folder of images per class."""
    (copy / "recipe.toml").write_bytes(content)
    for name in ("cat", "dog"):
        (copy.parent / name).mkdir()
        (copy.parent / name / "1.png").write_bytes(b"mine")
    words = r"is damaged: recipe.toml: it does not name its data \(data.source\); restore the file"
    refused(lambda: RunReader(copy).recipe(), words)
    for verb in (["report"], ["evaluate"], ["predict", "."], ["resume"]):
        seen = command(verb[0], copy, *verb[1:], cwd=copy.parent, code=2).stderr
        assert "it does not name its data" in seen and seen.count("\n") == 1
    with Review(copy) as review:
        review.pictures.wait()
        assert review.pictures.state.kind == "none" and "does not name its data" in review.pictures.state.reason


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("mean = []\nstd = [1.0, 1.0, 1.0]", "recipe.toml: data.normalize.*, and 1 more; restore"),
        ("mean = []\nstd = []", "recipe.toml: data.normalize.*, and 1 more; restore"),
        (
            "mean = [1.0]\nstd = [1.0]",
            r"recipe.toml normalises 1 channels, but summary.json has .*\(3,\)",
        ),
    ],
)
def test_a_normalisation_that_does_not_fit_is_refused(copy, values, words):
    tree = tomllib.loads((copy / "recipe.toml").read_text())
    tree["data"]["normalize"] = tomllib.loads(values)
    (copy / "recipe.toml").write_text(tomli_w.dumps(tree))
    refused(lambda: pencil.open_run(copy), words)


def test_a_seed_that_torch_cannot_take_is_refused(copy):
    text = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(text.replace("seed = 0", f"seed = {10**30}", 1))
    refused(lambda: pencil.open_run(copy), "recipe.toml: seed: input should be less than 9223372036854775808")


def test_mistakes_in_a_stored_recipe_are_one_line(copy):
    text = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(f"sed = 1\nnames = 2\n{text}")
    refused(lambda: RunReader(copy).recipe(), "is damaged: recipe.toml: .*there is no such key.*, and 1 more; restore")


@pytest.mark.parametrize(
    "content",
    ["null", "[]", "3", "{}", '{"format": true}', '{"format": 2.0}', '{"format": [2]}', '{"format": 3, "pencil": []}'],
)
def test_an_environment_is_an_object_of_our_format(copy, content):
    (copy / "environment.json").write_text(content)
    refused(lambda: RunReader(copy), "environment.json")


@pytest.mark.parametrize("content", ['{"format": 2}', '{"format": 2, "data_fingerprint": {"train": 3}}'])
def test_fingerprints_are_text(copy, content):
    (copy / "environment.json").write_text(content)
    refused(lambda: RunReader(copy).fingerprints, "environment.json: it has no data_fingerprint")


@pytest.mark.parametrize("content", ["null", "[]", "{", "{}", "[" * 100_000])
def test_a_manifest_of_another_kind_is_damage(copy, content):
    (copy / "manifest.json").write_text(content)
    assert not all(status.ok for status in verify(copy))


@pytest.mark.parametrize(
    "line",
    ['{"decision": "skip"}', '{"key": 3, "decision": "skip"}', '{"key": "1", "split": [], "decision": "skip"}', "[]",
     '{"key": "1", "decision": ["skip"]}', '{"key": "\\ud800", "decision": "skip"}',
     '{"key": "1", "decision": "accept"}',
     '{"key": "1", "decision": "accept", "label": {"a": 1}}', "[" * 100_000, "\u00ff"],
)  # fmt: skip
def test_reviews_are_decisions(tmp_path, line):
    (tmp_path / "reviews.jsonl").write_text(line + "\n", "latin-1")
    refused(
        lambda: read_reviews(tmp_path / "reviews.jsonl"), "line 1 of .*reviews.jsonl is not a decision .*fix or remove"
    )


FILES = ["recipe.toml", "environment.json", "rows.parquet", "metrics.jsonl", "labels.parquet", "model.safetensors",
         "manifest.json", "summary.json", "reviews.jsonl", "report.html"]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "dangling"])
def test_what_is_no_file_is_refused_and_nothing_waits_for_it(copy, name, kind):
    (copy / name).unlink(missing_ok=True)
    if kind == "folder":
        (copy / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).symlink_to({"device": "/dev/zero", "loop": name, "dangling": "nowhere"}[kind])
    reader = {
        "rows.parquet": lambda: RunReader(copy).rows,
        "model.safetensors": lambda: pencil.open_run(copy),
        "metrics.jsonl": lambda: RunReader(copy).metrics,
        "labels.parquet": lambda: RunReader(copy).labels,
        "reviews.jsonl": lambda: Review(copy).__enter__(),
        "report.html": lambda: command("report", copy, cwd=copy.parent, code=2),
    }.get(name, lambda: RunReader(copy))
    if name == "manifest.json":
        assert not all(status.ok for status in verify(copy))
    elif name == "report.html":
        if kind not in ("loop", "dangling"):  # those are replaced
            assert "report.html" in reader().stderr
    elif (name, kind) == ("reviews.jsonl", "dangling"):
        refused(reader, "reviews.jsonl")
    else:
        refused(reader, name)


NOBODY = 65534


@pytest.fixture
def not_root(copy):
    """The copy of a run in a folder of a user who may not read everything; tests may run as root, who may."""
    if os.geteuid():
        yield copy
        return
    folder = Path(tempfile.mkdtemp(prefix="pencil-test-"))
    try:
        path = shutil.copytree(copy, folder / "run")
        for entry in (folder, path, *path.rglob("*")):
            os.chown(entry, NOBODY, NOBODY)
        _ = RunReader(path).data()  # imports what it needs while it may
        os.seteuid(NOBODY)
        yield path
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_what_may_not_be_read_is_named(not_root):
    path = not_root
    for name in ("recipe.toml", "environment.json", "metrics.jsonl", "labels.parquet", "summary.json"):
        (path / name).chmod(0)
        refused(lambda: RunReader(path).data(), f"{name}: .*Permission denied; restore")
        (path / name).chmod(0o644)
    (path / "model.safetensors").chmod(0)
    refused(lambda: RunReader(path).read_weights(), "model.safetensors: ")
    assert [one.path.name for one in verify(path) if not one.ok] == ["model.safetensors"]
    path.chmod(0)
    try:
        refused(lambda: RunReader(path), "cannot read .*recipe.toml: Permission denied; check its permissions")
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"run": 3, "epoch": 1}', '{"run": "x", "epoch": "1"}'])
def test_the_note_of_a_tracker_is_checked(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    refused(lambda: Note(tmp_path), "run.json: .*remove the file to log to a new run")


def test_labels_without_any_class_are_coded_too(tmp_path):
    """Multi-label data in which no class is given, or none is left."""
    lists = pa.array([[], []], pa.list_(pa.string())), pa.array([["a"], []], pa.list_(pa.string()))
    for given, corrected in (lists, lists[::-1], (lists[0], lists[0])):
        columns = {"key": ["0", "1"], "split": ["train"] * 2, "given": given, "corrected": corrected}
        labels = LabelTable(pa.table(columns).replace_schema_metadata({"classes": '["a"]'}))
        assert [labels.given_labels[row] for row in (0, 1)] == [tuple(row) for row in given.to_pylist()]
        assert [labels.corrected_labels[row] for row in (0, 1)] == [tuple(row) for row in corrected.to_pylist()]


# What killed writers leave


def test_a_writer_clears_what_killed_ones_left(whole, tmp_path):
    from test_files import left_by

    path, dead = tmp_path / "run", _dead()
    (path / "checkpoints/.step-0000000007.partial").mkdir(parents=True)
    (path / ".lock").write_text("{}")
    (path / left_by(dead, "rows.parquet")).write_text("half")
    (path / "checkpoints" / left_by(dead, "best.safetensors")).write_text("half")
    living = path / left_by(os.getppid(), "report.html")
    living.write_text("a living process writes it")
    path.joinpath(living.name).rename(tmp_path / "aside")
    with RunWriter(path):
        assert sorted(entry.name for entry in path.rglob("*")) == [".lock", "checkpoints"]
    shutil.copytree(whole, path, dirs_exist_ok=True)
    (tmp_path / "aside").rename(living)
    with RunWriter(path, resume=True):
        assert living.read_text() == "a living process writes it"


def _dead():
    process = os.fork()
    if not process:
        os._exit(0)
    os.waitpid(process, 0)
    return process


@pytest.mark.parametrize("how", ["resume", "train", "fit"])
def test_a_run_that_was_killed_after_its_summary_gets_its_report(whole, how, monkeypatch):
    """It is finished; what came after is done by whoever resumes it."""
    top = whole.parent
    path = top / f"killed-{how}"
    words = ["train", "data.npz", "--out", path.name, "--epochs", "2", "--method", "cross_entropy"]
    words += ["--set", "training.checkpoint_epochs=1"]
    with monkeypatch.context() as patch:
        patch.setattr("pencil.runs.directory.remove_checkpoints", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        command(*words, cwd=top, code=130)
    (path / "checkpoints/.step-0000000009.partial").mkdir()
    (path / "checkpoints/my-step-notes").write_text("mine")
    assert (path / "summary.json").is_file() and not (path / "report.html").exists()
    assert list((path / "checkpoints").glob("step-*"))
    before = {name: (path / name).read_bytes() for name in ("summary.json", "labels.parquet", "metrics.jsonl")}
    if how == "fit":
        same = {"epochs": 2, "method": "cross_entropy", "progress": False}
        pencil.fit("mlp", top / "data.npz", out=path, resume=True, **same)
    else:
        command(*(["resume", path] if how == "resume" else [*words, "--resume"]), cwd=top)
    assert 'content="pencil report"' in (path / "report.html").read_text()
    left = sorted(entry.name for entry in (path / "checkpoints").iterdir())
    assert left == ["best.safetensors", "my-step-notes"]
    assert {name: (path / name).read_bytes() for name in before} == before and all(one.ok for one in verify(path))
    stamp = (path / "report.html").stat().st_mtime_ns
    command("resume", path, cwd=top)
    assert (path / "report.html").stat().st_mtime_ns == stamp  # one that is there is left as it is


def test_a_checkpoint_of_another_run_is_refused(whole, tmp_path, monkeypatch):
    def stopped(name, *words):
        """A run with checkpoints that lost its results."""
        words = ("--epochs", "2", "--method", "cross_entropy", "--set", "training.checkpoint_epochs=1", *words)
        with monkeypatch.context() as patch:
            patch.setattr("pencil.runs.directory.remove_checkpoints", lambda _: None)
            command("train", whole.parent / "data.npz", "--out", name, *words, cwd=tmp_path)
        (tmp_path / name / "summary.json").unlink()
        return tmp_path / name

    mine, other = stopped("mine"), stopped("other", "--set", "model.options.width=7")
    shutil.rmtree(mine / "checkpoints")
    shutil.copytree(other / "checkpoints", mine / "checkpoints")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    seen = command("resume", mine, cwd=tmp_path, code=2).stderr
    assert "does not fit this run" in seen and "restore it from a copy, or train again" in seen
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def _momentum(tree, change):
    states = tree["networks"]["optimizer"]["state"]
    states[0]["momentum_buffer"] = change(states[0]["momentum_buffer"])


HOSTILE = {  # tensors of another shape made torch's kernels write out of bounds
    "momentum of one number": lambda tree: _momentum(tree, lambda _: torch.zeros(1)),
    "momentum that is text": lambda tree: _momentum(tree, lambda _: "0.5"),
    "momentum that is not finite": lambda tree: _momentum(tree, lambda old: torch.full_like(old, torch.nan)),
    "state of no parameter": lambda tree: tree["networks"]["optimizer"]["state"].update(
        {99: {"step": torch.zeros(())}}
    ),
    "seconds": lambda tree: tree["records"][0].update(seconds={}),
    "a record": lambda tree: tree["records"].__setitem__(0, ["x", "y", "z"]),
    "an accuracy": lambda tree: tree["records"][0].update(validation_accuracy="auto"),
    "best weights": lambda tree: tree["networks"]["best"]["weights"].update({"0.bias": "1"}),
}


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """A run that was stopped after its second epoch."""
    top = tmp_path_factory.mktemp("half")
    random = np.random.default_rng(0)
    np.savez(top / "data.npz", x=random.normal(size=(60, 3)).astype(np.float32), y=np.arange(60) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pencil.runs.directory.remove_checkpoints", lambda _: None)
        command(
            "train", "data.npz", "--model", "mlp", "--method", "cross_entropy", "--epochs", "2", "--out", "run",
            "--set", "training.checkpoint_epochs=1", cwd=top,
        )  # fmt: skip
    (top / "run/summary.json").unlink()
    return top


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_with_right_digests_is_refused(half_done, change, tmp_path):
    shutil.copytree(half_done, tmp_path, dirs_exist_ok=True)
    store = checkpoints_of(tmp_path / "run")
    newest = store.newest()
    tree = newest.part("training")
    change(tree)
    partial = store.begin(int(newest.path.name.removeprefix("step-")))
    store.commit(partial, store.write_part(partial, "training", tree))
    seen = command("resume", "run", cwd=tmp_path, code=2).stderr
    assert "does not fit this run" in seen and "restore it from a copy, or train again" in seen


@pytest.mark.parametrize("name", ["recipe.toml", "environment.json", "metrics.jsonl", "summary.json", "reviews.jsonl"])
def test_a_sparse_file_of_any_size_is_refused(copy, name):
    with (copy / name).open("ab") as file:
        file.truncate(2**40)
    seen = command("review" if name == "reviews.jsonl" else "report", copy, cwd=copy.parent, code=2).stderr
    assert name in seen and "it has 1,099,511,627,776 bytes; expected at most" in seen


def test_a_run_is_not_data(whole, tmp_path):
    seen = command("train", whole, "--out", "other", cwd=tmp_path, code=2).stderr
    assert "is a run directory; expected data; name the data, or resume the run with `pencil resume" in seen


def test_commands_of_a_remedy_can_be_pasted_whatever_the_path_is(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "my run")
    seen = command("audit", "my run", "--results", cwd=tmp_path, code=2).stderr
    assert "start one with `pencil audit 'my run'`" in seen
    (tmp_path / "my run/summary.json").unlink()
    assert "resume it with `pencil resume 'my run'`" in command("labels", "my run", cwd=tmp_path, code=2).stderr
    seen = command("train", "digits", "--out", "my run", cwd=tmp_path, code=2).stderr
    assert "resume with `pencil resume 'my run'`" in seen
