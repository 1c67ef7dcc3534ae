"""Other labelling tools: what is written for each, and that a person's answers come back as decisions."""

import base64
import contextlib
import io
import json
import os
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.csv
import pytest
import torch
from commands import pencil
from conftest import paint
from PIL import Image
from review_runs import HOSTILE, many_classes_run, one_class_run, write_run

from pencil.data import read as sources
from pencil.data.settings import DataSettings
from pencil.decisions import Decision, Journal, read_reviews
from pencil.errors import RunError
from pencil.export.contents import Contents
from pencil.export.tools import SAVERS, import_file, read_tool_answers
from pencil.runs.directory import RunReader
from pencil.runs.results import build_label_table

TOOLS = tuple(SAVERS)


def files_run(path, source, believe=1, columns=None):
    """A run on a source of two classes that believes row ``believe`` to be of the other class."""
    settings = DataSettings(source=str(source), columns=columns or {})
    splits = sources.load(settings)
    given = splits.train.given_labels
    probs = torch.full((len(given), 2), 0.1)
    probs[torch.arange(len(given)), given] = 0.9
    probs[believe] = probs[believe].flip(0)
    stored = settings.columns if splits.train.table is None else splits.train.table.with_key(settings.columns)
    return write_run(path, build_label_table(splits, probs, None), source, stored.model_dump(exclude_none=True))


@pytest.fixture
def pets(tmp_path):
    """A run on images in files."""
    for number in range(3):
        paint(tmp_path / f"pets/cat/{number} a.png", number)
        paint(tmp_path / f"pets/dog/{number}.png", 100 + number)
    return files_run(tmp_path / "run", tmp_path / "pets")


@pytest.fixture
def tickets(tmp_path):
    """A run on a table with a text and a number; its ids are the keys."""
    return tickets_run(tmp_path)


def tickets_run(folder, ids="id", columns=None):
    rows = [f"{i},bill {i},{i},billing" if i % 2 else f'{i},"page {i}, broken",,technical' for i in range(6)]
    (folder / "tickets.csv").write_text("\n".join([f"{ids},message,hours,label", *rows]))
    return files_run(folder / "run", folder / "tickets.csv", columns=columns)


def export(run, tool, *words):
    out = run.parent / tool
    done = pencil("labels", run.name, "--format", tool, "--out", tool, *words, cwd=run.parent)
    return out, done.stderr


def take_over(run, file, *words, code=0):
    return pencil("review", run.name, "--import", file, *words, cwd=run.parent, code=code)


def decided(run):
    return {(made.key, made.decision, made.label) for made in read_reviews(run / "reviews.jsonl")}


def decide(run, key, kind, label, time):
    """Decide about a training row as a person does on the review page."""
    with Journal(run / "reviews.jsonl") as journal:
        journal.append(Decision(key, "train", kind, label, "billing", "technical", time))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


# Label Studio


def answer(task, *choices, **more):
    """Annotate a task as a person does in Label Studio, in the form of its JSON export."""
    (field,) = {"image", "text"} & task["data"].keys()
    chosen = {"from_name": "label", "to_name": field, "type": "choices", "value": {"choices": list(choices)}}
    made = {
        "id": 7,
        "result": [chosen] if choices else [],
        "was_cancelled": False,
        "updated_at": "2026-01-02T00:00:00Z",
    }
    return {"id": 1, **task, "annotations": [*task.get("annotations", []), {**made, **more}]}


def minimal(task):
    """What JSON-MIN has of an annotated task: its data, and one choice as text or several in an object."""
    annotation = task["annotations"][-1]
    chosen = [result["value"]["choices"] for result in annotation["result"]]
    label = {"label": chosen[0][0] if len(chosen[0]) == 1 else {"choices": chosen[0]}} if chosen else {}
    about = {"annotator": 1, "annotation_id": 7, "updated_at": annotation["updated_at"]}
    return {**task["data"], "id": 1, **label, **about}


def test_label_studio_tasks_name_local_files_and_hold_predictions(pets):
    out, said = export(pets, "labelstudio")
    tasks = read(out / "tasks.json")
    assert len(tasks) == 6
    first = tasks[0]  # the most probable issue
    assert first["data"]["key"] == "cat/1 a.png" and first["data"]["given"] == "cat"
    assert first["data"]["image"] == "/data/local-files/?d=pets/cat/1%20a.png"
    (prediction,) = first["predictions"]
    assert prediction["model_version"] == "run" and prediction["score"] == pytest.approx(0.9)
    (result,) = prediction["result"]
    assert result == {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["dog"]}}
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={pets.parent}" in said
    view = ElementTree.parse(out / "config.xml").getroot()
    assert view.find("Image").attrib == {"name": "image", "value": "$image"}
    choices = view.find("Choices")
    assert (choices.get("name"), choices.get("toName"), choices.get("choice")) == ("label", "image", "single")
    assert [choice.get("value") for choice in choices] == ["cat", "dog"]


def test_label_studio_shows_the_cells_of_a_table_as_text(tickets):
    tasks = read(export(tickets, "labelstudio", "--order", "data")[0] / "tasks.json")
    assert [task["data"]["text"] for task in tasks[:2]] == [
        "message: page 0, broken\nhours: ",
        "message: bill 1\nhours: 1",
    ]
    assert "<Text " in (tickets.parent / "labelstudio" / "config.xml").read_text()


@pytest.mark.parametrize(("numbering", "first"), [("lines", 2), ("places", 0)])
def test_rows_without_ids_are_shown_by_their_number(tmp_path, numbering, first):
    run = tickets_run(tmp_path, ids="weight", columns={"numbering": numbering, "ignore": "weight", "text": "message"})
    tasks = read(export(run, "labelstudio")[0] / "tasks.json")
    texts = {task["data"]["key"]: task["data"]["text"] for task in tasks}
    assert texts.keys() == {str(first + i) for i in range(6)}
    assert texts[str(first + 5)] == "message: bill 5\nhours: 5"


def test_label_studio_shows_pixels_that_have_no_file(tmp_path):
    run = one_class_run(tmp_path / "run")
    task = read(export(run, "labelstudio", "--order", "data")[0] / "tasks.json")[4]
    head, _, content = task["data"]["image"].partition(",")
    assert head == "data:image/png;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert np.array_equal(pixels, np.load(tmp_path / "run.npz")["x"][4])


def test_a_second_import_leaves_what_was_decided_since(tickets):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    answers = [answer(tasks["1"], "technical"), answer(tasks["3"], "technical"), answer(tasks["5"], "technical")]
    file = tickets.parent / "export.json"
    file.write_text(json.dumps(answers))
    take_over(tickets, "export.json")
    decide(tickets, "1", "reject", "billing", "2026-02-01T00:00:00.000+00:00")
    decide(tickets, "3", "undo", None, "2026-02-01T00:00:00.000+00:00")
    after = {("1", "reject", "billing"), ("5", "other", "technical")}
    assert decided(tickets) == after
    newer = answer(tasks["2"], "billing", updated_at="2026-03-01T00:00:00Z")
    file.write_text(json.dumps([*answers, newer]))  # a newer export of the same project
    said = take_over(tickets, "export.json")
    assert said.stdout.strip() == "decisions added: 1 (1 other)"
    assert "already known: 1\n" in said.stderr and "since changed or withdrawn, ignored: 2" in said.stderr
    assert decided(tickets) == {*after, ("2", "other", "billing")}


def test_an_answer_that_is_given_again_later_counts_again(tickets):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    file = tickets.parent / "export.json"
    for month, choice in enumerate(("technical", "billing", "technical"), 1):  # a person thinks twice
        file.write_text(json.dumps([answer(tasks["1"], choice, updated_at=f"2026-0{month}-02T00:00:00Z")]))
        take_over(tickets, "export.json")
        assert {label for _, _, label in decided(tickets)} == {choice}
    odd = answer(tasks["1"], "billing", updated_at="yesterday")  # nobody knows whether that is later
    file.write_text(json.dumps([odd]))
    assert ", ignored: 1" in take_over(tickets, "export.json").stderr


def test_an_answer_that_is_older_than_a_decision_does_not_replace_it(tickets):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    decide(tickets, "1", "reject", "billing", "2026-02-01T00:00:00.000+00:00")
    decide(tickets, "3", "reject", "billing", "2026-02-01T00:00:00.000+00:00")
    file = tickets.parent / "export.json"
    old, new = (
        answer(tasks[key], "technical", updated_at=f"2026-0{month}-02T00:00:00Z") for key, month in ("11", "32")
    )
    file.write_text(json.dumps([old, new]))
    said = take_over(tickets, "export.json")
    assert said.stdout.strip() == "decisions added: 1 (1 other)"
    assert said.stderr.strip() == "older than the current decision about the same row, ignored: 1"
    assert decided(tickets) == {("1", "reject", "billing"), ("3", "other", "technical")}


def test_answers_without_a_time_are_older_than_decisions_since_their_file_was_written(pets):
    out, _ = export(pets, "fiftyone")
    tree = read(out / "samples.json")
    for sample in tree["samples"]:
        sample["reviewed"] = {"_cls": "Classification", "label": "dog"}
    (out / "samples.json").write_text(json.dumps(tree))
    os.utime(out / "samples.json", (1.7e9, 1.7e9))  # in 2023
    decide(pets, "cat/0 a.png", "reject", "cat", "2026-02-01T00:00:00.000+00:00")
    decide(pets, "cat/2 a.png", "reject", "cat", "2022-02-01T00:00:00.000+00:00")
    assert ", ignored: 1" in take_over(pets, "fiftyone").stderr
    assert {made for made in decided(pets) if made[0] in ("cat/0 a.png", "cat/2 a.png")} == {
        ("cat/0 a.png", "reject", "cat"),
        ("cat/2 a.png", "other", "dog"),
    }


def test_a_machine_that_stops_during_an_import_leaves_all_answers_or_none(tickets, monkeypatch):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    file = tickets.parent / "export.json"
    file.write_text(json.dumps([answer(tasks[key], "technical") for key in ("1", "3", "5")]))
    decide(tickets, "2", "accept", "technical", "2026-01-01T00:00:00.000+00:00")
    before, write, write_bytes = decided(tickets), os.write, Path.write_bytes

    def stop_within(write, where, content):
        if b'"decision"' not in content:  # the lock's
            return write(where, content)
        write(where, content[: 2 * len(content) // 3])
        raise SystemExit

    monkeypatch.setattr(os, "write", lambda *words: stop_within(write, *words))
    monkeypatch.setattr(Path, "write_bytes", lambda *words: stop_within(write_bytes, *words))
    with pytest.raises(SystemExit):
        import_file(tickets, file)
    assert decided(tickets) == before


@pytest.mark.parametrize("form", [lambda task: task, minimal], ids=["full", "minimal"])
def test_label_studio_there_and_back(tickets, form):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    answers = [answer(tasks["1"], "technical"), answer(tasks["2"], "billing"), answer(tasks["3"], "billing")]
    file = tickets.parent / "export.json"
    file.write_text(json.dumps([form(task) for task in answers]))
    said = take_over(tickets, "export.json")
    assert said.stdout.strip() == "decisions added: 3 (2 accept, 1 other)"
    assert decided(tickets) == {("1", "accept", "technical"), ("2", "other", "billing"), ("3", "accept", "billing")}
    assert {made.time for made in read_reviews(tickets / "reviews.jsonl")} == {"2026-01-02T00:00:00Z"}
    again = take_over(tickets, "export.json")
    assert again.stdout.strip() == "decisions added: 0" and "already known: 3" in again.stderr
    table = pyarrow.csv.read_csv(io.BytesIO(pencil("labels", "run", "--reviewed", cwd=tickets.parent).stdout.encode()))
    labels = {str(row["key"]): row["corrected"] for row in table.to_pylist() if row["reviewed"]}
    assert labels == {"1": "technical", "2": "billing", "3": "billing"}


def test_label_studio_rejections_skips_and_several_annotators(tickets):
    tasks = {task["data"]["key"]: task for task in read(export(tickets, "labelstudio")[0] / "tasks.json")}
    newer = {"updated_at": "2026-01-03T00:00:00Z"}
    twice = answer(answer(tasks["0"], "technical", **newer), "billing")
    truth = answer(answer(tasks["2"], "billing", ground_truth=True), "technical", **newer)
    rows = [answer(tasks["1"], "billing"), answer(tasks["3"], was_cancelled=True), twice, truth]
    unanswered = {**tasks["4"], "id": 1, "annotations": []}
    (tickets.parent / "export.json").write_text(json.dumps([*rows, unanswered, answer(tasks["5"])]))
    said = take_over(tickets, "export.json")
    assert "about the same row, of which the last counts: 2" in said.stderr
    assert "rows without a new label, ignored: 1" in said.stderr
    expected = {
        ("1", "reject", "billing"),
        ("3", "skip", None),
        ("0", "accept", "technical"),
        ("2", "other", "billing"),
    }
    assert decided(tickets) == expected


@pytest.mark.parametrize("form", [lambda task: task, minimal], ids=["full", "minimal"])
def test_label_studio_takes_and_returns_several_classes(tmp_path, form):
    run = many_classes_run(tmp_path / "run")
    out, _ = export(run, "labelstudio", "--order", "data")
    tasks = read(out / "tasks.json")
    assert [task["predictions"][0]["result"] for task in tasks[3:]] == [[]]  # of no class
    assert tasks[1]["predictions"][0]["result"][0]["value"] == {"choices": ["sky", "sun"]}
    assert 'choice="multiple"' in (out / "config.xml").read_text()
    chosen = [answer(tasks[0], "sun", "sea"), answer(tasks[1], "sky", "sun"), answer(tasks[3])]
    (tmp_path / "export.json").write_text(json.dumps([form(task) for task in chosen]))
    take_over(run, "export.json")
    assert decided(run) == {("0", "other", ("sea", "sun")), ("1", "accept", ("sky", "sun")), ("3", "accept", ())}


# FiftyOne (its own reader was run on these folders by hand: see docs/tools.md)


def test_fiftyone_samples_have_the_fields_that_its_metadata_names(pets):
    out, _ = export(pets, "fiftyone")
    metadata, samples = read(out / "metadata.json"), read(out / "samples.json")["samples"]
    fields = {field["db_field"] for field in metadata["sample_fields"]} - {"metadata"}
    assert all(sample.keys() == fields for sample in samples)
    assert metadata["default_classes"] == ["cat", "dog"]
    first = samples[0]
    assert first["filepath"] == str(pets.parent / "pets/cat/1 a.png") and first["tags"] == ["train"]
    assert first["given"]["label"] == "cat" and first["corrected"]["label"] == "dog"
    assert first["corrected"]["confidence"] == pytest.approx(0.9) and first["issue_score"] == pytest.approx(0.9)
    identities = [label["_id"]["$oid"] for one in samples for label in (one, one["given"], one["corrected"])]
    assert len(set(identities)) == 18 and {len(identity) for identity in identities} == {24}


def test_fiftyone_there_and_back(pets):
    out, _ = export(pets, "fiftyone")
    tree = read(out / "samples.json")
    samples = {sample["key"]: sample for sample in tree["samples"]}
    samples["cat/1 a.png"]["tags"].append("accept")
    samples["cat/0 a.png"]["tags"].append("reject")
    samples["dog/2.png"]["reviewed"] = {"_cls": "Classification", "tags": [], "label": "cat"}
    (out / "samples.json").write_text(json.dumps(tree))
    take_over(pets, "fiftyone")  # the folder
    assert decided(pets) == {
        ("cat/1 a.png", "accept", "dog"),
        ("cat/0 a.png", "reject", "cat"),
        ("dog/2.png", "other", "cat"),
    }


def test_fiftyone_takes_several_classes_and_pixels_that_have_no_file(tmp_path):
    run = many_classes_run(tmp_path / "run", shape=(8, 8))
    out, _ = export(run, "fiftyone", "--order", "data")
    tree = read(out / "samples.json")
    sample = tree["samples"][1]
    assert np.asarray(Image.open(out / sample["filepath"])).shape == (8, 8)
    assert [label["label"] for label in sample["corrected"]["classifications"]] == ["sky", "sun"]
    assert tree["samples"][3]["corrected"] == {"_cls": "Classifications", "classifications": []}
    sample["reviewed"] = {"_cls": "Classifications", "classifications": [{"label": "sun"}, {"label": "sea"}]}
    (tmp_path / "samples.json").write_text(json.dumps(tree))
    take_over(run, "samples.json")
    assert decided(run) == {("1", "other", ("sea", "sun"))}


# CVAT


def changed_in_cvat(path, name, *labels):
    """Give an image other tags, as a person does in CVAT."""
    tree = ElementTree.parse(path)
    (image,) = [image for image in tree.getroot().iter("image") if image.get("name") == name]
    for tag in image.findall("tag"):
        image.remove(tag)
    for label in labels:
        ElementTree.SubElement(image, "tag", label=label, source="manual")
    tree.write(path)


def test_cvat_there_and_back(pets):
    out, said = export(pets, "cvat", "--order", "data")
    assert f"create the task with the images in {pets.parent / 'pets'}" in said
    top = ElementTree.parse(out / "annotations.xml").getroot()
    assert top.findtext("version") == "1.1" and top.findtext("meta/task/size") == "6"
    image = top.findall("image")[1]
    assert image.attrib == {"id": "1", "name": "cat/1 a.png", "width": "8", "height": "8"}
    assert [tag.attrib for tag in image] == [{"label": "dog", "source": "auto"}]
    assert [label["name"] for label in read(out / "labels.json")] == ["cat", "dog"]
    changed_in_cvat(out / "annotations.xml", "cat/1 a.png", "cat")
    changed_in_cvat(out / "annotations.xml", "dog/0.png", "dog")
    said = take_over(pets, "cvat/annotations.xml")
    assert decided(pets) == {("cat/1 a.png", "reject", "cat"), ("dog/0.png", "accept", "dog")}
    assert "rows without a new label, ignored: 4; add --complete" in said.stderr
    take_over(pets, "cvat", "--complete")
    assert len(decided(pets)) == 6


def test_cvat_archives_and_names_without_folders(pets):
    out, _ = export(pets, "cvat")
    changed_in_cvat(out / "annotations.xml", "dog/2.png", "cat")
    text = (out / "annotations.xml").read_text().replace('name="dog/', 'name="').replace('name="cat/', 'name="up/cat/')
    with zipfile.ZipFile(pets.parent / "task.zip", "w") as archive:
        archive.writestr("annotations.xml", text)
        archive.writestr("images/dog/2.png", "")
    take_over(pets, "task.zip")
    assert decided(pets) == {("dog/2.png", "other", "cat")}


def test_cvat_takes_several_classes_and_pixels_that_have_no_file(tmp_path):
    run = many_classes_run(tmp_path / "run", shape=(8, 8))
    out, _ = export(run, "cvat")
    assert sorted(path.name for path in (out / "images" / "train").iterdir()) == [f"{i}.png" for i in range(4)]
    changed_in_cvat(out / "annotations.xml", "train/0.png", "sun", "sea")
    changed_in_cvat(out / "annotations.xml", "train/1.png")  # all tags removed
    take_over(run, "cvat")
    assert decided(run) == {("0", "other", ("sea", "sun")), ("1", "other", ())}


# All of them


@pytest.mark.parametrize("tool", TOOLS)
def test_hostile_names_come_back_as_they_were(tmp_path, tool):
    run = one_class_run(tmp_path / "run", classes=(*HOSTILE[:2], "a,b"))
    out, _ = export(run, tool)
    if tool == "labelstudio":
        tasks = [
            answer(task, task["predictions"][0]["result"][0]["value"]["choices"][0])
            for task in read(out / "tasks.json")
        ]
        (out / "tasks.json").write_text(json.dumps(tasks))
    elif tool == "fiftyone":
        tree = read(out / "samples.json")
        for sample in tree["samples"]:
            sample["reviewed"] = sample["corrected"]
        (out / "samples.json").write_text(json.dumps(tree))
    file = {"labelstudio": "tasks.json", "fiftyone": "samples.json"}.get(tool, "")
    done = import_file(run, out / file, complete=True)
    assert done.added == {"accept": 12}
    labels = RunReader(run).labels
    expected = dict(zip(labels.keys.to_pylist(), labels["corrected"].to_pylist(), strict=True))
    assert {made.key: made.label for made in read_reviews(run / "reviews.jsonl")} == expected


@pytest.mark.parametrize("tool", TOOLS)
def test_files_of_an_unreliable_run_need_consent(tmp_path, tool):
    run = one_class_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps({"verdict": {"level": "doubtful", "reasons": ["too few rows"]}}))
    said = pencil("labels", "run", "--format", tool, "--out", tool, cwd=tmp_path, code=2)
    assert "too few rows" in said.stderr and "--anyway" in said.stderr and not (tmp_path / tool).exists()
    export(run, tool, "--anyway", "--only-changed")
    pencil("labels", "run", "--format", tool, "--anyway", cwd=tmp_path, code=2)  # a folder, so --out is needed


@pytest.mark.parametrize("tool", ["fiftyone", "cvat"])
def test_tools_for_images_refuse_texts(tickets, tool):
    said = pencil("labels", "run", "--format", tool, "--out", "out", cwd=tickets.parent, code=2)
    assert "is not an image" in said.stderr and "--format labelstudio" in said.stderr
    assert not (tickets.parent / "out").exists()


def test_data_that_a_run_does_not_hold_is_refused(pets):
    (pets / "recipe.toml").write_text('[data]\nsource = "python"\n')
    said = pencil("labels", "run", "--format", "cvat", "--out", "out", cwd=pets.parent, code=2)
    assert "was passed as Python objects" in said.stderr


def test_an_image_that_is_gone_is_named(pets):
    (pets.parent / "pets/dog/1.png").unlink()
    said = pencil("labels", "run", "--format", "cvat", "--out", "out", cwd=pets.parent, code=2)
    assert "no longer contains row 'dog/1.png' (train)" in said.stderr
    assert not (pets.parent / "out").exists()


TASK = {"data": {"key": "1", "split": "train", "text": "x"}}


def with_value(value):
    """An annotated task in which a choice has another value than Label Studio writes."""
    return {**TASK, "annotations": [{"result": [{"type": "choices", "from_name": "label", "value": value}]}]}


XML = '<annotations><version>1.1</version><image id="0" name="{}"/></annotations>'


def archive(*damage):
    """A ZIP archive of annotations, in which bytes of its two headers, or the first of the content, are others."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        if damage:
            made.writestr("annotations.xml", XML)
    content = bytearray(target.getvalue())
    for place, value in damage:
        start = 0 if damage[0] == (place, value) else content.index(b"PK\x01\x02")
        content[30 + len("annotations.xml") if place < 0 else start + place] = value
    return bytes(content)


WRONG = {
    "no.json": ("nothing", "is neither JSON nor XML"),
    "other.json": ('{"rows": []}', "JSON of an unknown format; expected a JSON or JSON-MIN export of Label Studio"),
    "number.json": (json.dumps([answer(TASK, "billing"), 3]), "task 2 is a int; expected an object"),
    "class.json": (json.dumps([answer(TASK, "horse")]), r"task 1 ('1') names 'horse'; expected one of the 2 classes"),
    "two.json": (
        json.dumps([answer(TASK, "billing", "technical")]),
        "task 1 ('1') names 2 classes, billing, technical",
    ),
    "row.json": (
        json.dumps([answer({"data": {**TASK["data"], "key": "77"}}, "billing")]),
        "task 1 names '77' (train), which is not a row of this run",
    ),
    "key.json": (json.dumps([answer({"data": {"text": "x"}}, "billing")]), "task 1 has no 'key'"),
    "choice.json": (
        json.dumps([{**TASK, "annotations": [{"result": [{"type": "rectangle", "value": {}}]}]}]),
        "task 1 has results, but none of them is a choice named 'label'",
    ),
    "value.json": (json.dumps([with_value(["billing"])]), "task 1 has the value \"['billing']\"; expected an object"),
    "text.json": (json.dumps([with_value("billing")]), "task 1 has the value 'billing'; expected an object"),
    "seven.json": (json.dumps([with_value(7)]), "task 1 has the value '7'; expected an object"),
    "data.json": (json.dumps([{"data": 3, "annotations": []}]), "task 1 has no object data"),
    "samples.json": (
        '{"samples": [{"key": "1", "split": "train", "reviewed": "cat"}]}',
        "sample 1 has the field reviewed",
    ),
    "tags.json": (
        '{"samples": [{"key": "1", "split": "train", "tags": ["accept", "reject"]}]}',
        "sample 1 has the tags accept and reject",
    ),
    "broken.xml": ("<annotations><image>", "is not XML"),
    "bomb.xml": ('<!DOCTYPE a [<!ENTITY x "y">]><annotations/>', "has a document type"),
    "utf16.xml": ('<!DOCTYPE a [<!ENTITY x "y">]><annotations/>'.encode("utf-16"), "is neither JSON nor XML"),
    **{
        f"{name}.xml": (f'<?xml version="1.0" encoding="{name}"?><annotations/>', "is not XML")
        for name in ("utf-99", "rot13", "shift_jis")
    },
    "element.xml": ("<html/>", "the element 'html'; expected 'annotations'"),
    "video.xml": ("<annotations><track/></annotations>", "has tracks of a video"),
    "name.xml": ("<annotations><image id='0'/></annotations>", "image 1 has no name"),
    "tag.xml": ("<annotations><image name='a'><tag/></image></annotations>", "image 1 ('a') has a tag without a label"),
    "empty.zip": (archive(), "it has 0 files named annotations.xml"),
    "encrypted.zip": (
        archive((6, 1), (8, 1)),
        "is not a readable archive (File 'annotations.xml' is encrypted",
    ),
    "method.zip": (archive((8, 99), (10, 99)), "is not a readable archive (That compression method is not"),
    "deflate.zip": (archive((-1, 255)), "is not a readable archive (Error -3 while decompressing data"),
    "cut.zip": (archive()[:-9], "is not a readable archive (File is not a zip file"),
    "missing.json": (..., "cannot read missing.json: No such file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line_and_changes_nothing(tickets, name):
    content, expected = WRONG[name]
    if content is not ...:
        (tickets.parent / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    said = take_over(tickets, name, code=2).stderr
    assert said.count("\n") == 1 and name in said and expected in said, said
    assert not (tickets / "reviews.jsonl").exists()


def test_an_archive_that_would_fill_the_memory_is_refused(pets, monkeypatch):
    monkeypatch.setattr("pencil.export.tools.LARGEST", 2**20)
    with zipfile.ZipFile(pets.parent / "task.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.xml", " " * 2**21)
    said = take_over(pets, "task.zip", code=2).stderr
    assert "annotations.xml in it has 2 MiB; expected at most 1 MiB; unpack it, and import annotations.xml" in said


JUNK = (None, 7, "x", [3], {"a": 1})


def _replaced(tree, path, value):
    """A copy of a tree with another value at a place."""
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = _replaced(tree[path[0]], path[1:], value)
    return copy


def _paths(tree, before=()):
    """Every place of a tree."""
    yield before
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for name, inner in items:
        yield from _paths(inner, (*before, name))


@pytest.mark.parametrize("tool", ["labelstudio", "fiftyone"])
def test_any_value_anywhere_is_read_or_refused_in_words(pets, tool):
    out, _ = export(pets, tool)
    tree = read(out / {"labelstudio": "tasks.json", "fiftyone": "samples.json"}[tool])
    if tool == "labelstudio":
        tree = [answer(task, "dog") for task in tree]
    else:
        reviewed = {"_cls": "Classification", "label": "dog"}
        tree["samples"] = [{**sample, "reviewed": reviewed} for sample in tree["samples"]]
    for path in _paths(tree):
        for junk in JUNK:
            (out / "junk.json").write_text(json.dumps(_replaced(tree, path, junk)))
            with contextlib.suppress(RunError):
                list(read_tool_answers(out / "junk.json"))


def test_names_of_images_that_are_unknown_or_shared_are_named(pets):
    paint(pets.parent / "pets/cat/0.png", 9)  # beside dog/0.png
    run = files_run(pets.parent / "second", pets.parent / "pets")
    for name, expected in (("owl.png", "is not an image of this run"), ("0.png", "is the name of 2 images")):
        (pets.parent / "a.xml").write_text(XML.format(name))
        said = pencil("review", run.name, "--import", "a.xml", cwd=pets.parent, code=2).stderr
        assert f"image 1 has the name {name!r}, which {expected}" in said


def test_rows_that_share_an_image_are_not_mixed_up(tmp_path):
    paths = ["a.png", "b.png", "a.png", "c.png", "d.png", "e.png"]
    for path in set(paths):
        paint(tmp_path / path, 9)
    lines = [f"k{i},{path},{('cat', 'dog')[i % 2]}" for i, path in enumerate(paths)]
    (tmp_path / "table.csv").write_text("\n".join(["id,path,label", *lines]))
    run = files_run(tmp_path / "run", tmp_path / "table.csv", columns={"key": "id"})
    said = pencil("labels", "run", "--format", "cvat", "--out", "cvat", cwd=tmp_path, code=2).stderr
    assert "the image 'a.png' is shared by 2 rows, such as 'k0' and 'k2'; expected a separate image for each" in said
    assert not (tmp_path / "cvat").exists()
    for name in ("a.png", "up/a.png"):
        (tmp_path / "a.xml").write_text(XML.format(name))
        said = take_over(run, "a.xml", code=2).stderr
        assert f"image 1 has the name {name!r}, which is the image of 2 rows, such as 'k0' and 'k2'" in said
        assert not (run / "reviews.jsonl").exists()
    export(run, "cvat", "--only-changed")  # of k1, whose image no other row has
    changed_in_cvat(tmp_path / "cvat/annotations.xml", "b.png", "dog")
    take_over(run, "cvat")
    assert decided(run) == {("k1", "reject", "dog")}
    samples = read(export(run, "fiftyone")[0] / "samples.json")["samples"]  # have keys
    assert sorted(one["key"] for one in samples if one["filepath"] == str(tmp_path / "a.png")) == ["k0", "k2"]


def test_a_folder_needs_one_file_of_a_tool(pets):
    said = take_over(pets, ".", code=2).stderr
    assert "has 0 of samples.json, annotations.xml; expected one" in said


def test_rejecting_a_row_without_a_given_label_is_refused(tmp_path):
    run = one_class_run(tmp_path / "run")
    tree = {"samples": [{"key": "0", "split": "train", "tags": ["reject"]}]}
    labels = RunReader(run).labels
    table = labels.table.set_column(
        labels.column_names.index("given"), labels.schema.field("given"), labels["given"].take([None, *range(1, 12)])
    )
    type(labels)(table).write(run / "labels.parquet")
    (tmp_path / "samples.json").write_text(json.dumps(tree))
    with pytest.raises(RunError, match=r"sample 1 \('0'\) is 'reject', but the row has no given label"):
        import_file(run, tmp_path / "samples.json")


def test_complete_is_for_imports(pets):
    said = pencil("review", "run", "--complete", cwd=pets.parent, code=2)
    assert "--complete only works with --import FILE" in said.stderr


def test_exports_are_complete_or_absent(pets, monkeypatch):
    """An error in the middle leaves nothing under the name."""
    seen = []

    def full(self, where):
        seen.append(where)
        if len(seen) == 3:
            raise OSError(28, "No space left on device")
        return real(self, where)

    real = Contents.show
    monkeypatch.setattr(Contents, "show", full)
    said = pencil("labels", "run", "--format", "cvat", "--out", "task", cwd=pets.parent, code=2)
    assert "No space left" in said.stderr
    assert not [path for path in Path(pets.parent).iterdir() if "task" in path.name]
