"""The remedy of an error is what the caller can paste: an option of the command line, an argument in Python."""

import numpy as np
import pyarrow as pa
import pytest
from commands import pencil as command

import pencil
from pencil.errors import DataError, on_command_line, setting

TEXTS = ["a good film", "a bad film", "", *[f"some film or other {n}" for n in range(17)]]


@pytest.mark.parametrize(
    ("key", "value", "option", "argument"),
    [
        ("data.bad_rows", "skip", "--set data.bad_rows=skip", 'settings={"data.bad_rows": "skip"}'),
        ("data.columns.label", "NAME", "--set data.columns.label=NAME", 'label="NAME"'),
        ("data.multilabel", True, "--set data.multilabel=true", "multilabel=True"),
        ("data.classes", ["a", "b"], '--set \'data.classes=["a", "b"]\'', 'classes=["a", "b"]'),
        ("data.resize", 224, "--set data.resize=224", 'settings={"data.resize": 224}'),
        (
            "data.columns.path",
            "my file",
            "--set 'data.columns.path=my file'",
            'settings={"data.columns.path": "my file"}',
        ),
    ],
)
def test_a_key_is_set_as_the_caller_sets_it(key, value, option, argument):
    assert setting(key, value) == argument
    with on_command_line():
        assert setting(key, value) == option
    assert setting(key, value) == argument


@pytest.mark.filterwarnings("default")  # the command line prints them
def test_errors_name_what_works_where_they_are_read(tmp_path):
    lines = [f"{text},{'ab'[row % 2]}" for row, text in enumerate(TEXTS)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    seen = command("check", "t.csv", cwd=tmp_path, code=2).stderr
    assert "row 4: there is no text" in seen and "--set data.bad_rows=skip" in seen and "settings=" not in seen
    assert len(seen.strip().splitlines()) == 1
    assert "19 rows" in command("check", "t.csv", "--set", "data.bad_rows=skip", cwd=tmp_path).stdout

    frame = pa.table({"text": TEXTS, "label": list("ab") * 10})
    with pytest.raises(DataError, match=r'settings={"data.bad_rows": "skip"}') as refused:
        pencil.fit("mlp", frame, epochs=1)
    assert "--set" not in str(refused.value)
    with pytest.warns(UserWarning, match="skipped"):
        run = pencil.fit("mlp", frame, epochs=1, method="cross_entropy", settings={"data.bad_rows": "skip"})
    assert len(run.labels) == 19


def test_a_label_column_is_named_as_the_caller_names_it(tmp_path):
    (tmp_path / "t.csv").write_text("text,kind\n" + "".join(f"some text {n},{'ab'[n % 2]}\n" for n in range(20)))
    seen = command("check", "t.csv", cwd=tmp_path, code=2).stderr
    assert "name it with --set data.columns.label=NAME" in seen
    command("check", "t.csv", "--set", "data.columns.label=kind", cwd=tmp_path)
    with pytest.raises(DataError, match='name it with label="NAME"'):
        pencil.fit("mlp", tmp_path / "t.csv", epochs=1)


def test_several_classes_in_a_cell(tmp_path):
    cells = ["sea", "sky", "sea;sky", "sky"] * 5
    (tmp_path / "t.csv").write_text("x,label\n" + "".join(f"{n / 7},{cell}\n" for n, cell in enumerate(cells)))
    seen = command("check", "t.csv", cwd=tmp_path, code=2).stderr
    assert "at row 4" in seen and "--set data.multilabel=true" in seen and "--set 'data.classes=" in seen
    with pytest.raises(DataError, match="write multilabel=True"):
        pencil.fit("mlp", tmp_path / "t.csv", epochs=1)
    with pytest.raises(DataError, match=r'classes=\["-1", "NAME"\]'):
        pencil.fit("mlp", (np.zeros((6, 2)), np.array([-1, 0, 1, 2, 1, 0])), epochs=1)
