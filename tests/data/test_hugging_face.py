import io

import numpy as np
import pytest
import torch
from PIL import Image
from readers import from_hugging_face

from pencil import DataError
from pencil.data.columns import Columns
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataWarning

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the library itself


def picture(number):
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


@pytest.fixture
def pictures():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    columns = {"image": [picture(10 * number) for number in range(6)], "label": [0, 1, 1, 0, 1, 0]}
    return datasets.Dataset.from_dict(columns, features=features)


def pixels(examples):
    return torch.cat([batch.inputs[:, 0, 0, 0] for batch in examples.batches(2)]).tolist()


def test_images_stay_encoded_and_class_names_are_the_features(pictures):
    examples = from_hugging_face(pictures)
    assert examples.classes == ("cat", "dog") and examples.given_labels.tolist() == [0, 1, 1, 0, 1, 0]
    assert pixels(examples) == [0, 10, 20, 30, 40, 50]


def test_a_choice_of_rows_keeps_images_and_labels_together(pictures):
    examples = from_hugging_face(pictures.select([4, 0, 3]))
    assert examples.given_labels.tolist() == [1, 0, 0] and pixels(examples) == [40, 0, 30]


def test_images_in_files(tmp_path, pictures):
    paths = []
    for number in range(3):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
        paths.append(str(tmp_path / f"{number}.png"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    examples = from_hugging_face(
        datasets.Dataset.from_dict({"image": paths, "label": ["a", "b", "a"]}, features=features)
    )
    assert pixels(examples) == [0, 1, 2] and examples.classes == ("a", "b")


def test_vectors(pictures):
    examples = from_hugging_face(datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}))
    assert examples.inputs.values.tolist() == [[1, 2], [3, 4]]


def test_lists_of_classes_are_several_labels(pictures):
    several = datasets.Sequence(datasets.ClassLabel(names=["sea", "sky"]))
    features = datasets.Features({"image": datasets.Image(), "label": several})
    columns = {"image": [picture(1), picture(2)], "label": [[0, 1], [1]]}
    examples = from_hugging_face(datasets.Dataset.from_dict(columns, features=features))
    assert examples.multilabel and examples.classes == ("sea", "sky")
    assert examples.given_labels.tolist() == [[1, 1], [0, 1]]


def test_saved_splits_from_a_recipe(tmp_path, pictures):
    saved = datasets.DatasetDict({"train": pictures, "test": pictures.select([1, 2]), "extra": pictures})
    saved.save_to_disk(str(tmp_path / "saved"))
    splits = load(DataSettings(source=f"hf/{tmp_path / 'saved'}"))
    assert splits.sizes() == {"train": 6, "test": 2} and pixels(splits.test) == [10, 20]


def test_what_cannot_be_read_is_named(tmp_path, pictures):
    with pytest.raises(DataError, match=r"the dataset has no column 'y'; it has 'image', 'label'"):
        from_hugging_face(pictures, Columns(label="y"))
    with pytest.raises(DataError, match=r"no label column with a common name .*; name it with label="):
        from_hugging_face(pictures.rename_column("label", "what"))
    with pytest.raises(DataError, match=r"column 'image' is of type string; expected images, or lists of numbers"):
        from_hugging_face(datasets.Dataset.from_dict({"image": ["a"], "label": [0]}))
    datasets.DatasetDict({"extra": pictures}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"has the splits extra; expected a split named train"):
        load(DataSettings(source=f"hf/{tmp_path / 'saved'}"))
    images = [picture(1), picture(2)]
    unlabelled = datasets.Dataset.from_dict({"image": images, "label": [0, -1]}, features=pictures.features)
    assert from_hugging_face(unlabelled).given_labels.tolist() == [0, -1]  # as the library writes a missing label


def test_votes_of_annotators_and_keys(pictures):
    votes = pictures.rename_column("label", "ann").add_column("ben", [0, 0, 1, 1, 1, 0]).cast_column(
        "ben", pictures.features["label"]
    )  # fmt: skip
    examples = from_hugging_face(votes, Columns(label=("ann", "ben")))
    assert examples.classes == ("cat", "dog") and examples.given_labels[:3].tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    with pytest.raises(DataError, match=r"the dataset has the key '0' more than once in column 'ben'"):
        from_hugging_face(votes, Columns(label=("ann", "ben"), key="ben"))


def test_text_datasets_are_encoded_as_tables_are(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    columns = {"text": [f"a fine day number {i}" for i in range(30)], "label": [0, 1] * 15}
    whole = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(4))}).save_to_disk(str(tmp_path / "saved"))
    splits = load(DataSettings(source=f"hf/{tmp_path / 'saved'}"))
    assert splits.train.classes == ("no", "yes") and splits.train.inputs.records.roles.used == {"text": "text"}
    prepared = prepare(DataSettings(), splits, seed=0)
    assert prepared.splits.test.inputs.values.shape == (4, prepared.encoder.width)


def test_bad_rows_are_skipped_on_request(tmp_path):
    rows = {"x": [[1.0, 2.0]] * 4, "label": ["a", "b", "c", "a"]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(str(tmp_path / "saved"))
    settings = DataSettings(source=f"hf/{tmp_path / 'saved'}", classes=("a", "b"))
    with pytest.raises(
        DataError, match=r"the dataset has 1 bad row of 4: row 2: label 'c' is not one of the 2 classes"
    ):
        load(settings)
    with pytest.warns(DataWarning, match=r"1 bad row of 4: row 2: label 'c' .*; it is skipped"):
        found = load(settings.model_copy(update={"bad_rows": "skip"})).train
    assert found.keys.tolist() == ["0", "1", "3"] and found.given_labels.tolist() == [0, 1, 0]
