"""What stands beside a row: probabilities as in the label table, and rows that are really the nearest."""

import shutil

import numpy as np
import pytest
import torch
from conftest import paint
from review_runs import many_classes_run, one_class_run

import pencil
from pencil import recipe
from pencil.data.examples import Splits
from pencil.data.inputs.feature_store import DIGESTS, FEATURES, default_folder
from pencil.data.read import load
from pencil.errors import RunError
from pencil.job import run_recipe
from pencil.review import embedding as embedding_module
from pencil.review import neighbours as neighbours_module
from pencil.review.embedding import choose_embedding
from pencil.review.inputs import Pictures
from pencil.review.neighbours import in_turns, nearest
from pencil.review.probabilities import most_probable, read_top_classes
from pencil.review.session import Review
from pencil.runs.directory import RunReader


def compared(run, *rows, pictures=None):
    """The details of rows when all vectors are computed."""
    with Review(run, pictures) as review:
        review.details.neighbours.wait()
        found = [review.details.of(row) for row in rows]
    for one in found:
        assert one["neighbours"]["kind"] == "ready", one["neighbours"]
    return found


def groups(found):
    near = found["neighbours"]["groups"]
    return {(one["why"], one["label"]): [row["row"] for row in one["rows"]] for one in near}


def test_classes_take_turns():
    codes = np.array([0] * 50 + [1] * 3 + [7] * 20)
    order = in_turns(codes, seed=1)
    assert sorted(order.tolist()) == list(range(73))
    for length in range(1, 74):
        counts = [int((codes[order[:length]] == code).sum()) for code in (0, 1, 7)]
        left = [count for count, size in zip(counts, (50, 3, 20), strict=True) if count < size]
        assert not left or max(counts) - min(left) <= 1


def test_the_nearest_are_found_across_blocks(monkeypatch):
    monkeypatch.setattr(neighbours_module, "BLOCK", 7)
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float16)
    target = vectors[3].astype(np.float32) + 0.1
    expected = np.argsort([np.linalg.norm(one.astype(np.float32) - target) for one in vectors])[:3]
    assert nearest(vectors, target).tolist() == expected.tolist()
    assert nearest(vectors[:0], target).tolist() == [] and len(nearest(vectors[:2], target)) == 2


def test_the_most_probable_classes_come_first():
    probs = np.random.default_rng(0).dirichlet(np.ones(9), size=20)
    found = most_probable(probs, count=4)
    for row in range(20):
        best = sorted(range(9), key=lambda code: -probs[row, code])[:4]
        assert [one.code for one in found.of(row)] == best
        np.testing.assert_allclose([one.value for one in found.of(row)], probs[row, best], rtol=1e-6)


def test_given_classes_are_shown_however_improbable():
    probs = np.array([[0.9, 0.8, 0.7, 0.01]])
    assert most_probable(probs, np.array([[np.nan, 0, 0, 1.0]]), count=2).codes.tolist() == [[0, 3]]


def test_probabilities_are_those_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.review.probabilities.BLOCK", 5)
    run = one_class_run(tmp_path / "run", [f"class {number:02d}" for number in range(20)], rows=60)
    probs, found = RunReader(run).labels.probs, read_top_classes(run / "labels.parquet")
    np.testing.assert_allclose(found.probs, -np.sort(-probs, axis=1)[:, :6], rtol=1e-6)
    many = many_classes_run(tmp_path / "many")
    assert [one.code for one in read_top_classes(many / "labels.parquet").of(0)] == [1, 2, 0]
    (run / "labels.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match="no probabilities in"):
        read_top_classes(run / "labels.parquet")


def test_an_improbable_given_class_is_beside_the_probable_ones(tmp_path):
    run = one_class_run(tmp_path / "run", [f"class {number:02d}" for number in range(20)], rows=60, shape=(4,))
    (found,) = compared(run, 18)  # of class 18, thought to be of class 19
    named = [one["class"] for one in found["probabilities"]]
    assert named[0] == "class 19" and "class 18" in named and len(named) == 7
    values = [one["probability"] for one in found["probabilities"]]
    assert values == sorted(values, reverse=True)


def test_vectors_are_compared_standardised(tmp_path):
    run = one_class_run(tmp_path / "run", ("cat", "dog"), rows=90, shape=(4,))
    vectors = np.load(tmp_path / "run.npz")["x"].astype(np.float64) * [1, 100, 1, 1]
    labels = RunReader(run).labels
    kept = np.flatnonzero(~labels.changed)
    cats, dogs = (kept[labels.given_codes[kept] == code].tolist() for code in (0, 1))
    with Review(run) as review:
        review.pictures.wait()
        values = review.pictures.splits.train.inputs.values
        values[:] = torch.from_numpy(vectors).to(values.dtype)
        review.details.neighbours.wait()
        for row in (84, 0, 1):
            found = groups(review.details.of(row))
            changed = bool(labels.changed[row])
            given = ("given", labels.given_labels[row])
            other = ("corrected" if changed else "next", {"cat": "dog", "dog": "cat"}[given[1]])
            assert list(found) == [given, other]
            for (_, label), rows in found.items():
                expected = [one for one in by_distance(vectors, row, kept) if one in {"cat": cats, "dog": dogs}[label]]
                assert rows == expected[:3]


def by_distance(vectors, row, kept):
    scaled = (vectors - vectors[kept].mean(axis=0)) / vectors[kept].std(axis=0)
    order = kept[np.argsort([((scaled[other] - scaled[row]) ** 2).sum() for other in kept])]
    return [int(other) for other in order if other != row]


def test_images_are_compared_by_small_copies(tmp_path):
    run = one_class_run(tmp_path / "run", rows=60, shape=(16, 16))
    with Review(run) as review:
        review.pictures.wait()
        values = review.pictures.splits.train.inputs.values
        kept = [row for row in range(60) if not review.queue.changed[row] and row % 3 == 1]
        values[kept[5]], values[kept[9]] = values[57], values[57] // 2 + 60  # a copy, and a paler one
        review.details.neighbours.wait()
        found = review.details.of(57)
        assert found["neighbours"]["by"] == "downscaled images"
        assert groups(found)["corrected", "dog"][0] == kept[5]
    (tiny,) = compared(one_class_run(tmp_path / "tiny", rows=60, shape=(5, 5)), 57)
    assert tiny["neighbours"]["by"] == "their pixels" and len(groups(tiny)["corrected", "dog"]) == 3


def test_sets_of_classes_are_compared_with_the_same_set(tmp_path):
    (found,) = compared(many_classes_run(tmp_path / "run"), 0)
    assert groups(found) == {("given", ("sea",)): [2], ("corrected", ("sky",)): []}


def test_vectors_take_limited_memory_and_rows_that_are_gone_are_left_out(tmp_path, monkeypatch):
    run = one_class_run(tmp_path / "run", rows=90, shape=(4,))
    monkeypatch.setattr(neighbours_module, "MOST_BYTES", 2 * 4 * 20)
    monkeypatch.setattr(neighbours_module, "CHUNK", 8)
    with Review(run) as review:
        load = review.pictures._load
        review.pictures._load = lambda: Splits(load().train.subset(torch.arange(45, 90)))
        review.details.neighbours.wait()
        state = review.details.of(87)["neighbours"]
        assert 0 < state["done"] == state["total"] <= 20
        assert all(row["row"] >= 45 for one in state["groups"] for row in one["rows"])
        assert review.details.of(3)["neighbours"]["groups"] == []  # it is gone itself


def test_duplicates_with_another_label_are_named(tmp_path):
    """Exact copies, of changed rows too, and pictures that are saved anew; not those with the same label."""
    run = one_class_run(tmp_path / "run", rows=30, shape=(24, 24))
    data = dict(np.load(tmp_path / "run.npz"))
    smooth = np.add.outer(np.arange(24) * 6, np.arange(24) * 3).astype(np.uint8)
    data["x"][10] = smooth
    data["x"][15] = data["x"][13] = smooth  # 15 is a cat and was changed, 13 is a dog like 10
    data["x"][20] = smooth + np.random.default_rng(0).integers(0, 3, (24, 24)).astype(np.uint8)  # a bird
    np.savez(tmp_path / "run.npz", **data)
    found, other = compared(run, 10, 11)
    assert [(one["row"], one["label"], one["exact"]) for one in found["twins"]] == [
        (15, "cat", True), (20, "bird", False),
    ]  # fmt: skip
    assert found["twins"][0]["key"] == "15" and other["twins"] == []


def test_without_data_there_are_probabilities_only(tmp_path):
    run = one_class_run(tmp_path / "run")
    (tmp_path / "run.npz").unlink()
    with Review(run) as review:
        review.details.neighbours.wait()
        found = review.details.of(9)
    assert len(found["probabilities"]) == 3
    assert found["neighbours"]["kind"] == "none" and "does not exist" in found["neighbours"]["reason"]
    assert found["twins"] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unknown_failure_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding_module, "choose_embedding", lambda *_: {}["no such thing"])
    with Review(one_class_run(tmp_path / "run")) as review:
        review.details.neighbours.wait()
        assert "see the terminal" in review.details.of(9)["neighbours"]["reason"]


def test_rows_of_a_table_are_compared_as_the_network_sees_them(tmp_path):
    lines = [
        "name,size,label",
        *(f"{'dark' if row % 2 else 'light'},{row},{'no' if row % 2 else 'yes'}" for row in range(40)),
        *("dark,99,no", "dark,99,yes"),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    run = pencil.fit("mlp", str(tmp_path / "t.csv"), out=tmp_path / "run", epochs=1, label="label")
    rows = run.labels.keys.to_pylist()
    with Review(run.path) as review:
        review.details.neighbours.wait()
        review.queue.changed[:] = False
        embedding = choose_embedding(run.path, review.pictures.splits)
        inputs = review.pictures.splits.train.inputs
        vectors, _ = embedding.read(inputs, torch.arange(len(inputs)))
        np.testing.assert_allclose(vectors, run.prepare(inputs).values.numpy(), rtol=1e-6)
        assert review.details.of(0)["neighbours"]["by"] == "their encoded cells" and len(rows) == 42
        (twin,) = review.details.of(rows.index("42"))["twins"]  # keys are line numbers; the header is line 1
        assert (twin["key"], twin["label"], twin["exact"]) == ("43", "yes", True)


def test_the_cache_that_a_recipe_names_is_only_read(tmp_path):
    """A run may come from a stranger: its recipe names any folder, and a link in it leads to any file."""
    lines = [
        "note,label",
        *(f"{'dark' if row % 2 else 'light'} {row},{'no' if row % 2 else 'yes'}" for row in range(40)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    settings = {"data.text_model": "minilm", "data.columns.text": "note", "data.cache": str(tmp_path / "cache")}
    options = {"method": "cross_entropy", "epochs": 1, "label": "label", "settings": settings}
    run = pencil.fit("mlp", str(tmp_path / "t.csv"), out=tmp_path / "run", **options)
    (folder,) = (tmp_path / "cache").iterdir()
    for path in folder.iterdir():
        path.unlink()
    (near,) = compared(run.path, 0)
    assert near["neighbours"]["done"] > 0 and list(folder.iterdir()) == []
    (tmp_path / "precious").write_text("mine")
    (folder / DIGESTS).touch()
    (folder / FEATURES).symlink_to(tmp_path / "precious")
    with Review(run.path) as review:
        review.details.neighbours.wait()
        assert "features.f16: it is a symbolic link" in review.details.of(0)["neighbours"]["reason"]
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("cache", ["auto", "folder"])
def test_a_head_is_compared_by_its_features_as_long_as_they_are_kept(tmp_path, cache):
    photos, folder = tmp_path / "photos", tmp_path / "cache"
    for number in range(12):
        paint(photos / f"{'a' if number % 2 else 'b'}/{number}.png", number, (40, 40))
    kept = "auto" if cache == "auto" else str(folder)
    tree = {"data": {"source": str(photos), "workers": 0, "cache": kept}, "method": {"name": "cross_entropy"}}
    tree |= {"model": {"train": "head", "name": "efficientnet_lite0", "pretrained": True}, "training": {"epochs": 1}}
    run = run_recipe(recipe.parse(tree), tmp_path / "run")
    loaded = load(run.recipe.data)
    (near,) = compared(run.path, 0, pictures=Pictures(lambda: loaded))
    assert near["neighbours"]["by"] == "features of efficientnet_lite0"
    assert near["neighbours"]["done"] == int((~run.labels.changed).sum())
    found, train = choose_embedding(run.path, loaded), loaded.train
    expected = run.model.backbone(run.prepare(train.inputs).raw(train.rows[:2]).values.float()).shape
    assert found.read(train.inputs, train.rows[:2])[0].shape == expected == (2, 1280)
    used = default_folder() if cache == "auto" else folder
    for file in list(used.rglob("*.f16")):
        shutil.rmtree(file.parent)
    before = sorted(used.rglob("*"))
    assert choose_embedding(run.path, loaded).name == "downscaled images"
    assert sorted(used.rglob("*")) == before  # looking makes no folder
