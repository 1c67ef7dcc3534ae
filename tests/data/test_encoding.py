"""Records and their encoder: as scikit-learn would do it, fitted on training rows only, the same after reading."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, StandardScaler

from pencil.data.columns import Columns
from pencil.data.inputs.encoding import MOST_LEVELS, fit_encoder, fit_power, read_encoder
from pencil.data.inputs.text import TokenVectors, count_terms, embed_texts, fit_terms_in_parts, token_vectors
from pencil.data.prepare import prepare
from pencil.data.read import load, read_inputs
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.runs.content import read_safetensors

WORDS = {"spam": "win money now free prize click here today", "ham": "see you at dinner with the family tonight"}


def mixed(rows=80, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(["spam", "ham"], rows)
    income = rng.lognormal(3, 1, rows)
    income[rng.random(rows) < 0.2] = np.nan
    return pa.table(
        {
            "age": rng.normal(40, 9, rows),
            "income": pa.array(income, from_pandas=True),
            "city": rng.choice(["Rome", "Oslo", "Bonn"], rows),
            "note": [" ".join(rng.choice(WORDS[label].split(), 7)) + f" {i}" for i, label in enumerate(labels)],
            "label": labels,
        }
    )


def records(path, columns=None, **settings):
    return load(DataSettings(source=str(path), columns=Columns(**(columns or {})), **settings)).train


def written(table, path):
    pq.write_table(table, path) if path.suffix == ".parquet" else pyarrow.csv.write_csv(table, path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_numbers_and_categories_are_those_of_scikit_learn(tmp_path, suffix):
    table, path = mixed(), tmp_path / f"t.{suffix}"
    if suffix == "tsv":
        options = pyarrow.csv.WriteOptions(delimiter="\t")
        pyarrow.csv.write_csv(table, path, options)
    else:
        written(table, path)
    examples = records(path, {"ignore": "note"})
    rows = torch.arange(0, 80, 2)
    encoder = fit_encoder(examples.inputs.records, rows)
    scaled = make_pipeline(SimpleImputer(strategy="median"), PowerTransformer())
    numbers = ["age", "income"]
    expected = ColumnTransformer(
        [
            ("numbers", scaled, numbers),
            ("flags", make_pipeline(SimpleImputer(add_indicator=True), "passthrough"), ["income"]),
            ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
        ]
    )
    frame = table.to_pandas()
    expected.fit(frame.iloc[rows.numpy()])
    found, reference = encoder.encode(examples.inputs.records), expected.transform(frame)
    np.testing.assert_allclose(found.values.numpy(), np.delete(reference, 2, axis=1), rtol=1e-6, atol=1e-6)
    assert encoder.names == ("age", "income", "income is missing", "city = Bonn", "city = Oslo", "city = Rome")
    assert found.values.dtype == torch.float32


def test_numbers_without_a_sensible_power_are_standardised_only():
    years = 2000.0 + np.arange(40) % 7
    assert fit_power(years) == 1 and fit_power(np.full(40, 3.0)) == 1 and fit_power(np.full(40, 1e300)) == 1
    assert abs(fit_power(np.random.default_rng(0).lognormal(3, 1, 500))) < 0.3  # nearly a logarithm


def test_terms_are_those_of_scikit_learn():
    texts = mixed(200)["note"].to_pylist()
    terms = fit_terms_in_parts(len(texts), lambda places: [texts[place] for place in places])
    tokens = token_vectors().tokens(texts)
    counts = count_terms(tokens, terms.terms)
    pipeline = make_pipeline(TfidfTransformer(sublinear_tf=True), TruncatedSVD(len(terms.components), random_state=0))
    np.testing.assert_allclose(terms.embed(tokens), pipeline.fit_transform(counts), atol=1e-5)
    both = embed_texts(texts, "auto", terms)
    assert both.shape == (200, 256 + len(terms.components))
    mean = token_vectors().table[token_vectors().tokenizer.encode(texts[0], add_special_tokens=False).ids].mean(dim=0)
    np.testing.assert_allclose(both[0, :256], mean.numpy(), atol=1e-6)


def test_an_encoder_is_the_same_after_reading_it(tmp_path):
    examples = records(written(mixed(), tmp_path / "t.csv"))
    encoder = fit_encoder(examples.inputs.records, examples.rows)
    safetensors.numpy.save_file(dict(encoder.arrays), tmp_path / "e.safetensors", encoder.metadata())
    again = read_encoder(*read_safetensors(tmp_path / "e.safetensors"))
    assert again.plan == encoder.plan
    first, second = (one.encode(examples.inputs.records).values for one in (encoder, again))
    assert torch.equal(first, second) and first.shape == (80, encoder.width)
    header, arrays = read_safetensors(tmp_path / "e.safetensors")
    for broken in ({**arrays, "scale": arrays["scale"][1:]}, {**arrays, "center": arrays["center"] * np.nan}):
        with pytest.raises(ValueError, match="its array"):
            read_encoder(header, broken)
    with pytest.raises(ValueError, match="does not contain an encoder"):
        read_encoder({"plan": '{"numbers": 3}'}, arrays)


def test_only_training_rows_count(tmp_path):
    table, settings = mixed(120), DataSettings(validation=0.25)
    loaded = load(settings.model_copy(update={"source": str(written(table, tmp_path / "a.parquet"))}))
    first = prepare(settings, loaded, seed=1)
    place = int(first.splits.validation.keys[0])
    changed = table.to_pylist()
    changed[place] |= {"age": 1e6, "city": "Lima", "note": "never seen before"}
    other = load(
        settings.model_copy(update={"source": str(written(pa.Table.from_pylist(changed), tmp_path / "b.parquet"))})
    )
    second = prepare(settings, other, seed=1)
    assert second.encoder.plan == first.encoder.plan
    for name, array in first.encoder.arrays.items():
        np.testing.assert_array_equal(second.encoder.arrays[name], array)
    before, after = (found.splits.train.inputs.values[found.splits.train.rows] for found in (first, second))
    assert torch.equal(before, after)
    held_out = second.splits.validation
    assert float(held_out.inputs.values[held_out.rows[0]].abs().max()) <= 10  # an outlier is bounded
    assert first.settings.columns.numbers == ("age", "income") and first.settings.columns.text == ("note",)
    assert first.settings.normalize == "none"


def test_rare_levels_are_grouped_and_unknown_ones_have_their_place(tmp_path):
    levels = [f"level{i}" for i in range(150)]
    cells = [level for i, level in enumerate(levels) for _ in range(2 + (i < 99) * 4)]
    table = pa.table({"kind": cells, "few": ["x", None] * (len(cells) // 2), "label": ["a", "b"] * (len(cells) // 2)})
    examples = records(written(table, tmp_path / "t.parquet"), {"categories": "kind"})
    encoder = fit_encoder(examples.inputs.records, examples.rows)
    kind, few = encoder.plan.categories
    assert len(kind.levels) == MOST_LEVELS - 1 and kind.grouped and few.levels == ["", "x"] and not few.grouped
    new = written(
        pa.table({"kind": ["level0", "level149", "new"], "few": ["x", "new", None]}), tmp_path / "new.parquet"
    )
    inputs, _ = read_inputs([new], DataSettings(columns=Columns(categories=("kind", "few"))))
    values = encoder.encode(inputs).values
    assert values[:, MOST_LEVELS - 1].tolist() == [0, 1, 1]
    assert values[:, MOST_LEVELS:].tolist() == [[0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize("fixed", [True, False])
def test_vectors_in_a_parquet_column(tmp_path, fixed):
    values = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)
    flat = pa.array(values.ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, 4) if fixed else pa.array(values.tolist())
    path = written(pa.table({"vector": column, "label": list("ab") * 25}), tmp_path / "t.parquet")
    examples = records(path)
    encoder = fit_encoder(examples.inputs.records, examples.rows)
    expected = StandardScaler().fit_transform(values.astype(np.float64))
    np.testing.assert_allclose(encoder.encode(examples.inputs.records).values.numpy(), expected, atol=1e-5)


def test_rows_that_do_not_fit_are_named(tmp_path):
    label = list("ab") * 15
    vectors = [[1.0, 2.0]] * 30
    for broken, message in (([1.0], "has 1 numbers at row 3; expected 2"), ([1.0, None], "NaN or infinity at row 3")):
        bad = written(pa.table({"v": [*vectors[:3], broken, *vectors[4:]], "label": label}), tmp_path / "v.parquet")
        with pytest.raises(DataError, match=message):
            records(bad)
    many = pa.table({"x": ["1", "2", "many"] * 10, "label": label})
    with pytest.raises(
        DataError, match=r"10 bad rows of 30: row 4: column 'x' holds 'many'; expected a number"
    ) as seen:
        records(written(many, tmp_path / "x.csv"), {"numbers": "x"})
    assert str(seen.value).count("for words write settings={") == 1
    ids = pa.table({"code": [f"A{i}" for i in range(30)], "label": label})
    with pytest.raises(
        DataError,
        match=r"no column to learn from; it has 'code' \(label, key, split or ignored.*; expected images, text",
    ):
        records(written(ids, tmp_path / "ids.csv"))
    with pytest.raises(DataError, match=r"lists 'x' as number and as category|lists 'x' as category and as number"):
        records(tmp_path / "x.csv", {"numbers": "x", "categories": "x"})


def test_a_word_among_decimal_commas_is_the_only_fault(tmp_path):
    path, columns = tmp_path / "new.csv", Columns(numbers="x")
    path.write_text("x;y\n12,5;1\nabc;2\n1.5;3\n")
    inputs, _ = read_inputs([path], DataSettings(columns=columns, bad_rows="skip"))
    assert inputs.records.matrix(["x"])[[0, 2], 0].tolist() == [12.5, 1.5]
    assert inputs.fault_of(0) is None and "column 'x' holds 'abc'" in inputs.fault_of(1)
    assert inputs.take(torch.tensor([2, 1])).faults == {1: inputs.fault_of(1)}
    with pytest.raises(DataError, match=r"1 bad row of 3: row 3: column 'x' holds 'abc'; .* cell; fix this row\.$"):
        read_inputs([path], DataSettings(columns=columns))


def cells(path, head, *values):
    """A CSV file of one column of inputs, with labels of two classes in turn."""
    rows = [f"{value},{'ab'[number % 2]}\n" for number, value in enumerate(values)]
    path.write_text(f"{head},label\n{''.join(rows)}")
    return path


def encoded(encoder, path, **columns):
    settings = DataSettings(columns=Columns(**columns))
    return encoder.encode(read_inputs([path], settings)[0]).values.tolist()


def test_a_category_is_the_same_level_whatever_else_its_column_holds(tmp_path):
    """Types are not guessed anew from each file."""
    train = records(cells(tmp_path / "t.csv", "flag", *["True", "False", "Unknown"] * 4))
    encoder = fit_encoder(train.inputs.records, train.rows)
    assert encoder.names == ("flag = Unknown", "flag = false", "flag = true")
    for some in (["True", "FALSE"], ["true", "false"], ["True", "False", "Unknown"]):
        found = encoded(encoder, cells(tmp_path / "new.csv", "flag", *some), categories="flag")
        assert found[:2] == [[0, 0, 1], [0, 1, 0]]
    frame = written(pa.table({"flag": [True, False, None]}), tmp_path / "new.parquet")
    assert encoded(encoder, frame, categories="flag") == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    only = records(cells(tmp_path / "t.csv", "flag", *["True", "False"] * 6))  # the other way round
    other = fit_encoder(only.inputs.records, only.rows)
    assert encoded(other, cells(tmp_path / "new.csv", "flag", "True", "Unknown"), categories="flag") == [[0, 1], [0, 0]]


def test_codes_of_a_category_keep_their_zeros(tmp_path):
    train = records(cells(tmp_path / "t.csv", "code", *["01", "1", "A3"] * 4))
    encoder = fit_encoder(train.inputs.records, train.rows)
    assert encoder.names == ("code = 01", "code = 1", "code = A3")
    found = encoded(encoder, cells(tmp_path / "new.csv", "code", "01", "1", "001"), categories="code")
    assert found == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]  # which of the two 001 is, nobody knows
    named = records(cells(tmp_path / "t.csv", "code", *["01", "1"] * 6), {"categories": "code"})
    assert set(named.inputs.records.strings("code").to_pylist()) == {"01", "1"}
    commas = tmp_path / "semicolons.csv"
    commas.write_text("code;label\n" + "1,2;a\n3,4;b\n" * 4)
    settings = DataSettings(source=str(commas), columns=Columns(categories="code"))
    assert set(load(settings).train.inputs.records.strings("code").to_pylist()) == {"1,2", "3,4"}


def test_levels_of_numbers_are_found_however_they_are_written(tmp_path):
    """In encoders that were saved when text files gave numbers, and with gaps or without."""
    for levels in (["1", "2"], ["01", "02"], ["1.0", "2.0"]):
        train = records(cells(tmp_path / "t.csv", "code", *levels * 6), {"categories": "code"})
        encoder = fit_encoder(train.inputs.records, train.rows)
        assert encoder.names == tuple(f"code = {level}" for level in levels)
        for some in (["1", "2", ""], ["01", "02", ""], ["1.0", "2.0", ""]):
            found = encoded(encoder, cells(tmp_path / "new.csv", "code", *some), categories="code")
            assert found == [[1, 0], [0, 1], [0, 0]]
        for values in (pa.array([1, 2, 3]), pa.array([1.0, 2.0, None]), pa.array([1.0, 2.0, 0.5])):
            found = encoded(encoder, written(pa.table({"code": values}), tmp_path / "n.parquet"), categories="code")
            assert found == [[1, 0], [0, 1], [0, 0]]


def test_truth_values_of_text_files_may_be_numbers(tmp_path):
    train = records(cells(tmp_path / "t.csv", "flag", "True", "false", "NA", "TRUE"), {"numbers": "flag"})
    assert train.inputs.records.matrix(["flag"])[:, 0].tolist() == pytest.approx([1, 0, np.nan, 1], nan_ok=True)
    answers = records(cells(tmp_path / "t.csv", "answer", *["True", "False"] * 6))
    assert answers.inputs.records.roles.of("category") == ("answer",)  # under a usual name of texts


def test_rows_have_digests_and_fingerprints(tmp_path):
    table = mixed(20)
    examples = records(written(pa.concat_tables([table, table.slice(0, 2)]), tmp_path / "t.csv"))
    inputs, rows = examples.inputs, torch.arange(22)
    digests = inputs.digests(rows)
    assert digests[0] == digests[20] and digests[1] == digests[21] and len(set(digests)) == 20
    assert inputs.fingerprint(rows) == inputs.fingerprint(rows) != inputs.fingerprint(rows.flip(0))
    assert inputs.describe(0)[0] == ("age", pytest.approx(table["age"][0].as_py()))


def test_labels_of_every_form(tmp_path):
    """Several classes at once, and a column per annotator."""
    table = mixed(40)
    several = table.drop_columns("label").append_column("labels", pa.array([["a"], ["a", "b"]] * 20))
    examples = records(written(several, tmp_path / "several.parquet"))
    assert examples.multilabel and examples.inputs.records.roles.of("number") == ("age", "income")
    votes = table.append_column("ann", table["label"]).append_column("ben", pa.array(["ham"] * 40))
    examples = records(written(votes, tmp_path / "votes.csv"), {"label": ("ann", "ben"), "ignore": "label"})
    assert examples.given_labels.shape == (40, 2) and "ann" not in examples.inputs.records.roles.used


def test_other_models_of_text(tmp_path):
    """A model of Hugging Face from a folder, and one clear line where it cannot be loaded."""
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*" ".join(WORDS.values()).split()})]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(tmp_path / "bert")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    examples = records(written(mixed(), tmp_path / "t.csv"))
    encoder = fit_encoder(examples.inputs.records, examples.rows, str(tmp_path / "bert"))
    assert encoder.width == 3 + 3 + 16
    vectors = embed_texts(["win money", "", "dinner with the family"], str(tmp_path / "bert"), None)
    alone = embed_texts(["dinner with the family"], str(tmp_path / "bert"), None)
    np.testing.assert_allclose(vectors[2], alone[0], atol=1e-5)  # padding does not matter
    with pytest.raises(DataError, match=r"data.text_model .* cannot be loaded: .*; pass its folder, or use"):
        fit_encoder(examples.inputs.records, examples.rows, str(tmp_path / "none"))


def test_texts_are_encoded_twice_and_a_sample_of_them_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr("pencil.data.inputs.encoding.MOST_SCALED", 30)
    examples, read = records(written(mixed(200), tmp_path / "t.parquet")), []
    tokens = TokenVectors.tokens
    monkeypatch.setattr(TokenVectors, "tokens", lambda self, texts: read.append(len(texts)) or tokens(self, texts))
    fit_encoder(examples.inputs.records, examples.rows).encode(examples.inputs.records)
    assert sum(read) == 200 + 30 + 200


def test_terms_of_many_long_texts_are_fitted_on_a_sample_of_all(monkeypatch):
    monkeypatch.setattr("pencil.data.inputs.text.CHUNK", 10)
    monkeypatch.setattr("pencil.data.inputs.text.MOST_TOKENS", 300)
    texts, read = [f"word number {place} and more" for place in range(1000)], []

    def chosen(places):
        read.extend(places.tolist())
        return [texts[place] for place in places]

    assert fit_terms_in_parts(len(texts), chosen) is not None
    lengths = token_vectors().tokens([texts[place] for place in read]).lengths
    assert 300 <= lengths.sum() < 300 + 10 * lengths.max()  # up to the part that reaches the bound
    assert min(read) < 100 and max(read) >= 900  # spread over all texts
