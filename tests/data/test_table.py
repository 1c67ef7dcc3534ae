import io
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import paint
from PIL import Image

from pencil import DataError
from pencil.data.columns import Columns, refuse_repeated_columns
from pencil.data.prepare import prepare
from pencil.data.read import load, read_inputs, read_like
from pencil.data.settings import DataSettings
from pencil.data.sources.table import row_keys


@pytest.fixture
def here(tmp_path):
    for number in range(4):
        paint(tmp_path / f"images/{number}.png", number)
    return tmp_path


def csv(folder, text, name="table.csv"):
    """A CSV whose first column is the path of one of the four images."""
    (folder / name).write_text(text)
    return folder / name


def read(path, columns=None, **settings):
    return load(DataSettings(source=str(path), columns=Columns(**(columns or {})), **settings))


def rows(head, *cells):
    lines = [f"images/{number}.png,{cell}" for number, cell in enumerate(cells)]
    return "\n".join([f"path,{head}", *lines]) + "\n"


def picture(number):
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def pixels(examples):
    """The first pixel of every row, in order."""
    return torch.cat([batch.inputs[:, 0, 0, 0] for batch in examples.batches(2)]).tolist()


def test_paths_and_names(here):
    train = read(csv(here, rows("label", "dog", "cat", "dog", "cat"))).train
    assert train.classes == ("cat", "dog") and train.given_labels.tolist() == [1, 0, 1, 0]
    assert train.keys.tolist() == [f"images/{number}.png" for number in range(4)]
    first = [
        int(np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)[0, 0, 0]) for number in range(4)
    ]
    assert pixels(train) == first


def test_tabs_and_a_root(here, tmp_path_factory):
    table = csv(tmp_path_factory.mktemp("other"), "file\tclass\n0.png\ta\n1.png\tb\n", "table.tsv")
    train = read(table, root=here / "images").train
    assert train.keys.tolist() == ["0.png", "1.png"] and len(pixels(train)) == 2


def test_bytes_in_parquet_with_class_names_in_its_metadata(here):
    table = pa.table({"image": [picture(5), picture(9)], "label": [2, 0], "id": ["x", "y"]})
    pq.write_table(table.replace_schema_metadata({"class_names": "ant,bee,cow"}), here / "t.parquet")
    train = read(here / "t.parquet").train
    assert train.classes == ("ant", "bee", "cow") and train.given_labels.tolist() == [2, 0]
    assert train.keys.tolist() == ["x", "y"] and pixels(train) == [5, 9]  # ids are the keys by themselves
    assert read(here / "t.parquet", {"numbering": "places"}).train.keys.tolist() == ["0", "1"]


def test_images_as_the_datasets_library_stores_them(here):
    images = [{"bytes": picture(5), "path": None}, {"bytes": picture(9), "path": None}]
    pq.write_table(pa.table({"img": images, "label": ["a", "b"]}), here / "t.parquet")
    assert pixels(read(here / "t.parquet").train) == [5, 9]


def test_integers_that_are_not_contiguous_are_names(here):
    train = read(csv(here, rows("label", 30, 4, 30, 100))).train
    assert train.classes == ("4", "30", "100") and train.given_labels.tolist() == [1, 0, 1, 2]


def test_integers_are_indices_where_the_classes_have_names(here):
    train = read(csv(here, rows("label", 1, 0, 1, 0)), classes=("cat", "dog", "fish")).train
    assert train.classes == ("cat", "dog", "fish") and train.given_labels.tolist() == [1, 0, 1, 0]


def test_truth_values_are_classes(here):
    train = read(csv(here, rows("label", "true", "false", "true", "true"))).train
    assert train.classes == ("false", "true") and train.given_labels.tolist() == [1, 0, 1, 1]


def test_truth_values_are_one_class_in_every_kind_of_table(here):
    for cells in (("True", "False", "True", "True"), ("TRUE", "false", "true", "")):
        assert read(csv(here, rows("label", *cells))).train.classes == ("false", "true")
    paths = [f"images/{number}.png" for number in range(4)]
    pq.write_table(pa.table({"path": paths, "label": [True, False, True, True]}), here / "t.parquet")
    assert read(here / "t.parquet").train.classes == ("false", "true")
    classes = read(csv(here, rows("label", "True", "False", "Unknown", "True"))).train.classes
    assert classes == ("False", "True", "Unknown")
    for path in (csv(here, rows("label", "True", "False", "True", "True")), here / "t.parquet"):
        assert read(path, classes=classes).train.given_labels.tolist() == [1, 0, 1, 1]
    ours = read(csv(here, rows("label", "True", "False")), classes=("false", "true")).train
    assert ours.given_labels.tolist() == [1, 0]


def test_truth_values_of_annotators_and_indicators(here):
    votes = read(csv(here, rows("ann,ben", "True,True", "False,maybe")), {"label": ["ann", "ben"]}).train
    assert votes.classes == ("False", "True", "maybe")
    both = read(csv(here, rows("sea,sky", "True,0", "False,1", ",1")), {"indicators": ["sea", "sky"]}).train
    assert both.given_labels[:2].tolist() == [[1, 0], [0, 1]] and both.given_labels[2].isnan().tolist() == [True, False]


def test_votes_become_a_distribution_and_a_missing_one_does_not_count(here):
    text = rows("ann,ben,eve", "cat,cat,dog", "dog,,dog", ",,cat", "cat,dog,")
    train = read(csv(here, text), {"label": ["ann", "ben", "eve"]}).train
    assert train.classes == ("cat", "dog") and train.given_labels.argmax(dim=1)[:3].tolist() == [0, 1, 0]
    assert torch.allclose(train.given_labels.sum(dim=1), torch.ones(4)) and 0.5 < train.given_labels[0, 0] < 1
    assert train.votes.names == ("ann", "ben", "eve") and train.votes.counts(2).tolist() == [
        [2, 1],
        [0, 2],
        [1, 0],
        [1, 1],
    ]
    two = read(csv(here, rows("ann,ben", "cat,cat", "dog,", "cat,dog")), {"label": ["ann", "ben"]}).train
    assert two.given_labels.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]  # fractions: nothing tells who of two is right
    splits = read(csv(here, rows("ann,ben", "cat,dog", ",")), {"label": ["ann", "ben"]})
    assert splits.sizes() == {"train": 1, "unlabelled": 1} and splits.unlabelled.given_labels.tolist() == [-1]
    with pytest.raises(
        DataError, match=r"bad row of 3: row 4 \('images/2.png'\): label 'cow' is not one of the 2 classes"
    ):
        read(
            csv(here, rows("ann,ben", "cat,dog", "cat,", "cat,cow")), {"label": ["ann", "ben"]}, classes=("cat", "dog")
        )


def parquet(folder, **columns):
    paths = [f"images/{number}.png" for number in range(len(next(iter(columns.values()))))]
    pq.write_table(pa.table({"path": paths, **columns}), folder / "t.parquet")
    return folder / "t.parquet"


def test_distributions_in_a_list_column(here):
    train = read(parquet(here, label=[[0.25, 0.75], [1.0, 0.0]])).train
    assert train.given_labels.tolist() == [[0.25, 0.75], [1, 0]] and not train.multilabel
    with pytest.raises(DataError, match=r"have different lengths; expected one value per class"):
        read(parquet(here, label=[[0.25, 0.75], [1.0]]))
    with pytest.raises(DataError, match=r"row 1 \('images/1.png'\): the label distribution is \[0.9 0.9\]"):
        read(parquet(here, label=[[0.25, 0.75], [0.9, 0.9]]))


def test_a_list_of_names_is_several_labels(here):
    train = read(parquet(here, label=[["sky", "sea"], [], ["sea"]])).train
    assert train.multilabel and train.classes == ("sea", "sky")
    assert train.given_labels.tolist() == [[1, 1], [0, 0], [1, 0]]
    with pytest.raises(DataError, match=r"row 2 .*: label 'sun' is not one of the 2 classes \('sea', 'sky'\)"):
        read(parquet(here, label=[["sky", "sea"], [], ["sun"]]), classes=("sea", "sky"))


def test_lists_of_integers_are_one_hot_or_the_classes_present(here):
    train = read(parquet(here, label=[[2, 0], [1]]), classes=("a", "b", "c")).train
    assert train.multilabel and train.given_labels.tolist() == [[1, 0, 1], [0, 1, 0]]
    train = read(parquet(here, label=[[0, 1, 0], [1, 0, 0]])).train
    assert not train.multilabel and train.given_labels.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(DataError, match=r"row 0 .* is \[0, 1, 0\] \(expected each class once; write distributions"):
        read(parquet(here, label=[[0, 1, 0], [2, 0, 1]]))


def test_a_column_per_class_holds_probabilities(here):
    train = read(csv(here, rows("sea,sky", "0.25,0.75", "1,0")), {"probabilities": ["sea", "sky"]}).train
    assert not train.multilabel and train.classes == ("sea", "sky")
    assert train.given_labels.tolist() == [[0.25, 0.75], [1, 0]]
    with pytest.raises(DataError, match=r"row 3 .*: the label distribution is \[1. 1.\]"):
        read(csv(here, rows("sea,sky", "0.25,0.75", "1,1")), {"probabilities": ["sea", "sky"]})


def test_a_number_that_is_no_class_is_not_taken_for_an_index(here):
    with pytest.raises(DataError, match=r"row 2 .*: label 0 is not one of the 3 classes \('1', '2', '5'\)"):
        read(csv(here, rows("label", "0", "2")), classes=("1", "2", "5"))


def test_tables_that_cannot_be_taken_apart_are_refused(here):
    with pytest.raises(DataError, match="has the column 'label' more than once"):
        read(csv(here, "path,label,label\na.png,cat,dog\n"))


def test_indicators_with_empty_cells_are_unknown(here):
    train = read(csv(here, rows("sea,sky", "1,0", ",1", "0.5,", "0,0")), {"indicators": ["sea", "sky"]}).train
    expected = torch.tensor([[1, 0], [torch.nan, 1], [0.5, torch.nan], [0, 0]])
    assert train.multilabel and train.classes == ("sea", "sky")
    assert torch.equal(train.given_labels.nan_to_num(-1), expected.nan_to_num(-1))
    with pytest.raises(
        DataError, match=r"row 3 .*: the multi-label entries are \[2. 0.\] \(expected values from 0 to 1"
    ):
        read(csv(here, rows("sea,sky", "1,0", "2,0")), {"indicators": ["sea", "sky"]})
    with pytest.raises(DataError, match=r"a label column of .* is of type string; expected numbers"):
        read(csv(here, rows("sea,sky", "1,0", "yes,0")), {"indicators": ["sea", "sky"]})


def test_clean_labels_and_keys_ride_along(here):
    text = rows("label,truth,id", "a,b,007", "b,b,8", "a,a,009", "b,a,x")
    train = read(csv(here, text), {"clean": "truth", "key": "id"}).train
    assert train.clean_labels.tolist() == [1, 1, 0, 0]
    assert train.keys.tolist() == ["007", "8", "009", "x"]
    numbers = read(csv(here, rows("label,id", "a,007", "b,008")), {"key": "id"}).train
    assert numbers.keys.tolist() == ["007", "008"]  # as they stand in the file


def test_a_split_column(here):
    text = rows("label,split", "a,train", "b,Train", "a,val", "b,test")
    splits = read(csv(here, text), {"split": "split"})
    assert splits.sizes() == {"train": 2, "validation": 1, "test": 1}
    assert (
        splits.test.keys.tolist() == ["images/3.png"]
        and pixels(splits.test)[0] == pixels(read(csv(here, text)).train)[3]
    )
    with pytest.raises(DataError, match=r"row 3 .*: the split is 'later' \(expected train, training"):
        read(csv(here, rows("label,split", "a,train", "b,later")), {"split": "split"})
    with pytest.raises(DataError, match=r"has no training rows"):
        read(csv(here, rows("label,split", "a,test", "b,test")), {"split": "split"})


@pytest.mark.parametrize("path", ["../secret.png", "/etc/secret.png", "images/../../secret.png", "..\\..\\x.png"])
def test_a_path_that_leads_out_is_refused(here, path):
    table = csv(here, f"path,label\nimages/0.png,a\n{path},b\n")
    with pytest.raises(
        DataError, match=r"row 3 \('.*'\): its path leads out of .* \(set the folder .* with .*data.root"
    ):
        read(table)


def test_a_path_that_turns_back_inside_is_mended(here):
    table = csv(here, f"path,label\nimages/../images/0.png,a\n{here}/images/1.png,b\n")
    train = read(table).train
    assert train.keys.tolist() == ["images/0.png", "images/1.png"] and len(pixels(train)) == 2


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (rows("label", "a", "b"), {"label": "labl"}, r"has no column 'labl'; it has 'path', 'label'; name another"),
        (rows("label", "a", "b"), {"indicators": ["x"]}, r"has no column 'x'; it has 'path', 'label'; name another"),
        (rows("what", "a", "b"), {}, r"no label column with a common name .*; it has 'path', 'what'; name it with"),
        ("where,label\na.png,a\n", {}, r"column 'where' .* names images, .*train on the images with .*columns.path"),
        (rows("label", "", "", ""), {}, r"none of the 3 rows of .* has a label; expected labels of some rows"),
        ("path,label\na.png,x\n,y\n", {}, r"1 bad row of 2: row 3: there is no path in column 'path'"),
        ("path,label\na.png,x\na.png,y\n", {}, r"has the path 'a.png' more than once in the table; expected one row"),
        (rows("label,id", "a,1", "b,1"), {"key": "id"}, r"has the key '1' more than once in column 'id'"),
        (rows("label,id", "a,1", "b,"), {"key": "id"}, r"1 bad row of 2: row 3: there is no key in column 'id'"),
        (rows("label", "a", "b"), {"image": "label"}, r"column 'label' .* is of type string; expected encoded images"),
        ("path,label\n", {}, r"has no rows"),
        ("path,label\na.png,x,3\n", {}, r"1 bad row of 1: row 2: it has 3 cells; expected 2, as the header has"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_named(here, text, columns, message):
    with pytest.raises(DataError, match=message):
        read(csv(here, text), columns)


def test_a_label_that_is_not_in_the_class_list(here):
    table = csv(here, rows("label", "cat", "cow"))
    with pytest.raises(DataError, match=r"row 3 .*: label 'cow' is not one of the 2 classes \('cat', 'dog'\)"):
        read(table, classes=("cat", "dog"))
    with pytest.raises(DataError, match=r"row 3 .*: label 5 is not one of the 2 classes"):
        read(csv(here, rows("label", 0, 5)), classes=("cat", "dog"))


def test_a_parquet_file_that_is_none(here):
    (here / "t.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"cannot read .*t.parquet: .*; expected a CSV or Parquet table"):
        read(here / "t.parquet")


def test_a_table_without_labels_to_predict(here):
    settings = DataSettings(columns=Columns(label="label", key="id"))
    inputs, keys = read_inputs([csv(here, "id,path\n007,images/1.png\n")], settings)
    assert keys == ["007"] and len(inputs) == 1
    with pytest.raises(DataError, match=r"has no column 'id'; it has 'path'"):
        read_inputs([csv(here, "path\nimages/1.png\n")], settings)


def test_many_columns_are_checked_in_linear_time(here):
    """A check that compares every name with every other takes over a minute for these."""
    names = [f"feature {number}" for number in range(100_000)]
    start = time.process_time()
    refuse_repeated_columns("a table", names)
    assert time.process_time() - start < 5
    with pytest.raises(DataError, match=r"a table has the column 'feature 7' more than once"):
        refuse_repeated_columns("a table", [*names, "feature 7", "feature 3"][7:])


def test_a_wide_table_is_read(here):
    wide = {f"feature {number}": [0.5, 1.5] for number in range(8000)}
    table = pa.table({"path": ["images/0.png", "images/1.png"], "label": ["a", "b"], **wide})
    pq.write_table(table, here / "wide.parquet")
    start = time.process_time()
    assert load(DataSettings(source=str(here / "wide.parquet"))).train.classes == ("a", "b")
    assert time.process_time() - start < 20


def test_keys_of_a_part_are_those_of_the_whole_table(here):
    paths = pa.table({"path": ["images/0.png", "images/1.png", "images/2.png"], "name": ["a", "b", "c"]})
    content = pa.table({"image": [b"1", b"2", b"3"]})
    for table, columns, expected in (
        (paths, Columns(), ["images/1.png", "images/2.png"]),
        (paths, Columns(key="name"), ["b", "c"]),
        (content, Columns(), ["3", "4"]),
        (content, Columns(numbering="places"), ["1", "2"]),
    ):
        assert row_keys(here / "t.csv", table.slice(1), columns, here, np.arange(1, 3)).tolist() == expected


def test_a_path_with_braces_is_named_as_it_is(here):
    (here / "t{0}.csv").write_text("path,label\na.png,x\na.png,y\n")
    with pytest.raises(DataError, match=r"t\{0\}.csv has the path 'a.png' more than once"):
        load(DataSettings(source=str(here / "t{0}.csv")))


def test_a_label_column_that_was_found_is_stored_with_the_run(tmp_path):
    rows = "".join(f"{n},{n % 2}.5,{'ab'[n % 2]}\n" for n in range(40))
    for name, header in (("t", "u,v,class"), ("renamed", "u,v,colour"), ("other", "u,v,target"), ("two", "u,y,class")):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n{rows}")
    settings = DataSettings(source=str(tmp_path / "t.csv"))
    stored = prepare(settings, load(settings), seed=0).settings
    assert stored.columns.label == "class"
    with pytest.raises(DataError, match=r"renamed\.csv has no column 'class'; it has 'u', 'v', 'colour'"):
        load(stored.model_copy(update={"source": str(tmp_path / "renamed.csv")}))
    other = stored.model_copy(update={"columns": Columns(label="class")})
    for name in ("other", "two"):  # other data may have another common name, and the stored one comes first
        assert read_like(str(tmp_path / f"{name}.csv"), other, ("a", "b"), False).train.classes == ("a", "b")
    with pytest.raises(DataError, match=r"renamed\.csv has no label column with a common name"):
        read_like(str(tmp_path / "renamed.csv"), other, ("a", "b"), False)
