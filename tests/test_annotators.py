"""Several annotators, from their columns or answers to `pencil annotators`, the report and Python."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from commands import pencil

import pencil as package
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataError, RunError
from pencil.runs.annotators import Annotators
from pencil.runs.directory import RunReader

pytestmark = pytest.mark.filterwarnings("ignore:auto (cannot|needs):UserWarning")  # tested in test_auto.py

PEOPLE = {"ann": 0.95, "bob": 0.9, "eve": 0.8, "dice": 1 / 3}
NAMES = np.array(["cat", "dog", "fox"])


@pytest.fixture(scope="module")
def data():
    """Three clusters, the votes of four annotators with gaps, and the truth."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 240)
    x = rng.normal(size=(240, 6)).astype(np.float32) + 2 * np.eye(3, 6)[truth].astype(np.float32)
    votes = {}
    for name, right in PEOPLE.items():
        wrong = (truth + rng.integers(1, 3, 240)) % 3
        label = NAMES[np.where(rng.random(240) < right, truth, wrong)].astype(object)
        label[rng.random(240) < 0.3] = None
        votes[name] = label
    return x, votes, truth


@pytest.fixture(scope="module")
def home(data, tmp_path_factory):
    """One run on a table with a column per annotator, and one on a table with a line per vote."""
    folder = tmp_path_factory.mktemp("annotators")
    x, votes, truth = data
    table = pd.DataFrame(x, columns=[f"x{place}" for place in range(6)])
    table.insert(0, "id", [f"s{row}" for row in range(240)])
    table["truth"] = NAMES[truth]
    wide = table.assign(**votes)
    wide.to_csv(folder / "wide.csv", index=False)
    long = wide.melt(id_vars=list(table), value_vars=list(votes), var_name="who", value_name="label").dropna()
    long.sample(frac=1, random_state=0).to_csv(folder / "long.csv", index=False)
    shared = ("--epochs", 15, "--model", "mlp", "--set", "data.columns.key=id", "--set", "data.columns.clean=truth")
    label = f"data.columns.label={json.dumps(list(votes))}"
    pencil("train", "wide.csv", "--out", "wide", *shared, "--set", label, cwd=folder)
    pencil("train", "long.csv", "--out", "long", *shared, "--set", "data.columns.annotator=who", cwd=folder)
    return folder


@pytest.mark.parametrize("form", ["wide", "long"])
def test_a_run_knows_its_annotators(home, data, form):
    found = RunReader(home / form).annotators
    assert {one.name for one in found.people} == set(PEOPLE) and found.with_network
    assert found.people[0].name == "dice" and [one.name for one in found.people if one.at_random] == ["dice"]
    answered = {name: int((label != None).sum()) for name, label in data[1].items()}  # noqa: E711
    assert {one.name: one.answers for one in found.people} == answered
    truth = dict(zip((f"s{row}" for row in range(240)), NAMES[data[2]], strict=True))
    rows = found.rows.to_pylist()
    assert np.mean([row["consensus"] == truth[row["key"]] for row in rows]) > 0.93
    certain = [row["probability"] for row in rows]
    assert certain == sorted(certain) and len(rows) == len({row["key"] for row in rows})
    assert sum(row["answers"] for row in rows) == sum(answered.values())


def test_both_forms_are_the_same_data(home):
    wide, long = (package.open_run(home / form).labels for form in ("wide", "long"))
    labels = [dict(zip(one["key"].to_pylist(), one["given"].to_pylist(), strict=True)) for one in (wide, long)]
    shared = labels[0].keys() & labels[1].keys()
    assert len(shared) > 200 and np.mean([labels[0][key] == labels[1][key] for key in shared]) > 0.99


def test_labels_are_the_consensus_of_votes_and_network(home):
    run = package.open_run(home / "wide")
    rows = {row["key"]: row for row in run.annotators.rows.to_pylist()}
    for row in run.labels.to_pylist():
        if row["key"] in rows:
            assert row["corrected"] == rows[row["key"]]["consensus"]


def test_the_command_prints_people_and_rows(home):
    shown = pencil("annotators", "wide", "--rows", 3, cwd=home).stdout
    assert "4 annotators" in shown and "answers at random" in shown and "another opinion" in shown
    tree = json.loads(pencil("annotators", "wide", "--rows", 3, "--json", cwd=home).stdout)
    assert tree["annotators"][0]["name"] == "dice" and len(tree["another_opinion"]) == 3
    assert tree["with_network"] and tree["annotators"][0]["confusions"][0]["rate"] > 0.2


def test_the_report_has_a_section(home):
    page = (home / "wide/report.html").read_text()
    assert '<h2 id="annotators">' in page and "dice" in page and "answers at random" in page


def test_a_run_without_annotators_says_what_to_set(home, data, tmp_path):
    x, _, truth = data
    run = package.fit("mlp", (x, truth), epochs=2, out=tmp_path / "run")
    assert run.annotators is None
    message = pencil("annotators", "run", cwd=tmp_path, code=2).stderr
    assert "do not come from several annotators" in message and "data.columns.annotator" in message


def test_a_damaged_file_is_refused(home, tmp_path):
    found = RunReader(home / "wide").annotators
    found.write(tmp_path / "a.parquet")
    again = Annotators.read(tmp_path / "a.parquet")
    assert again.people == found.people and again.rows.equals(found.rows)
    pq.write_table(found.rows.drop_columns("answers"), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="columns"):
        Annotators.read(tmp_path / "b.parquet")
    manifest = json.loads((home / "wide/manifest.json").read_text())
    assert "annotators.parquet" in manifest


@pytest.mark.parametrize("form", ["masked", "frame", "dict"])
def test_votes_in_python(data, form):
    x, votes, truth = data
    codes = {
        name: [None if one is None else int(np.flatnonzero(one == NAMES)[0]) for one in votes[name]] for name in votes
    }
    if form == "masked":
        matrix = np.array([[-1 if one is None else one for one in column] for column in codes.values()]).T
        y, classes = np.ma.masked_less(matrix, 0), 3
    else:
        y, classes = (pd.DataFrame(votes) if form == "frame" else votes), None
    run = package.fit("mlp", (x, y), classes=classes, clean_labels=truth if form == "masked" else None, epochs=8)
    names = {"0", "1", "2", "3"} if form == "masked" else set(PEOPLE)
    assert {one.name for one in run.annotators.people} == names and len(run.labels.classes) == 3
    assert form != "masked" or run.summary.labels.correct_before > 0.85


def test_votes_of_different_lengths_are_refused(data):
    with pytest.raises(DataError, match="different numbers of labels"):
        package.fit("mlp", (data[0], {"ann": ["cat"] * 240, "bob": ["dog"] * 239}), epochs=1)


def test_answers_without_a_key_or_annotator_are_refused(home):
    words = ("check", "long.csv", "--set", "data.columns.annotator=who")
    assert "has one line per vote" in pencil(*words, "--set", "data.columns.ignore=id", cwd=home, code=2).stderr
    table = pd.read_csv(home / "long.csv")
    table.loc[3, "who"] = None
    table.to_csv(home / "gap.csv", index=False)
    message = pencil("check", "gap.csv", *words[2:], "--set", "data.columns.key=id", cwd=home, code=2).stderr
    assert "column 'who'" in message and "is empty in 1 line" in message


def test_a_missing_file_of_the_manifest_is_damage(home, tmp_path):
    (tmp_path / "broken").mkdir()
    for path in (home / "wide").iterdir():
        if path.is_file():
            (tmp_path / "broken" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "broken/annotators.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"annotators\.parquet"):
        RunReader(tmp_path / "broken").annotators  # noqa: B018


VALUES = [{"type": "choices", "value": one} for one in (["cat"], "cat", 7, {"choices": 7})]


@pytest.mark.parametrize("result", [7, "cat", ["cat"], [{"type": "choices"}], *([one] for one in VALUES)])
def test_junk_in_a_label_studio_export_is_one_message(result, tmp_path):
    task = {"id": 3, "data": {"text": "meow"}, "annotations": [{"completed_by": 1, "result": result}]}
    (tmp_path / "export.json").write_text(json.dumps([task]))
    with pytest.raises(DataError, match="task 3 has 0 choices; expected one class"):
        package.fit("mlp", tmp_path / "export.json", epochs=1)


def test_tasks_without_annotations_do_not_count_as_an_annotator(tmp_path):
    """Two people who disagree: vote fractions, not the model that needs three annotators."""
    names = [("cat", "dog"), ("cat", "cat"), ("dog", "dog"), ()]
    tasks = [
        {
            "id": row,
            "data": {"text": f"text {row}"},
            "annotations": [
                {"completed_by": who, "result": [{"type": "choices", "value": {"choices": [label]}}]}
                for who, label in enumerate(labels)
            ],
        }
        for row, labels in enumerate(names * 4)
    ]
    tasks.append({"id": 99, "data": {"text": "junk"}, "annotations": 7})
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    train = load(DataSettings(source=str(tmp_path / "export.json"))).train
    assert train.votes.names == ("0", "1")
    fractions = {key: labels.tolist() for key, labels in zip(train.keys, train.given_labels, strict=True)}
    assert fractions["0"] == [0.5, 0.5] and fractions["1"] == [1.0, 0.0] and fractions["2"] == [0.0, 1.0]


def test_label_studio_export(data, tmp_path):
    _, votes, truth = data
    words = {"cat": "meow purr whiskers", "dog": "bark fetch leash", "fox": "forest red sly"}
    tasks = []
    for row in range(60):
        made = [
            {
                "completed_by": {"email": name} if name == "ann" else place,
                "was_cancelled": False,
                "result": [{"type": "choices", "from_name": "label", "value": {"choices": [label[row]]}}],
            }
            for place, (name, label) in enumerate(votes.items())
            if label[row] is not None
        ]
        made.append({"completed_by": 9, "was_cancelled": True, "result": []})
        tasks.append({"id": row, "data": {"text": words[NAMES[truth[row]]]}, "annotations": made})
    tasks.append({"id": 99, "data": {"text": "meow"}, "annotations": []})
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    run = package.fit("mlp", tmp_path / "export.json", epochs=3)
    assert {one.name for one in run.annotators.people} == {"ann", "1", "2", "3"}
    voted = sum(any(label[row] is not None for label in votes.values()) for row in range(60))
    assert run.annotators.rows.num_rows == voted and run.summary.data.rows["unlabelled"] == 61 - voted
    tasks[0]["annotations"][0]["result"][0]["value"]["choices"] = ["cat", "dog"]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    with pytest.raises(DataError, match="task 0 has 2 choices"):
        package.fit("mlp", tmp_path / "export.json", epochs=1)
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(DataError, match="not a list of tasks"):
        package.fit("mlp", tmp_path / "export.json", epochs=1)
