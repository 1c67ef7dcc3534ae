"""Sentence vectors: the network against the transformers library, the installed weights, and the cache."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pencil.data.inputs import sentences
from pencil.data.inputs.encoding import fit_encoder
from pencil.data.inputs.sentences import WIDTH, SentenceModel, SentenceNetwork, Sentences, renamed, sentence_model
from pencil.data.inputs.text import IN_BOX, SENTENCES, embed_texts
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataError

TEXTS = ["A man is eating food.", "A man is eating a piece of bread.", "The stock market fell sharply today.", ""]


@pytest.fixture
def model():
    sentence_model.cache_clear()
    yield sentence_model()
    sentence_model.cache_clear()


def test_the_network_is_bert():
    """The same numbers as BertModel of transformers with the same random weights, with and without padding."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    size = {"hidden_size": WIDTH, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    theirs = BertModel(BertConfig(**size)).eval()
    ours = SentenceNetwork().eval()
    ours.load_state_dict(renamed(theirs.state_dict()))
    tokens = torch.randint(1000, 30_000, (3, 12))
    mask = torch.arange(12) < torch.tensor([[12], [7], [1]])
    with torch.inference_mode():
        states = theirs(tokens, attention_mask=mask.long()).last_hidden_state
        expected = torch.stack([states[row, mask[row]].mean(dim=0) for row in range(3)])
        torch.testing.assert_close(ours(tokens, mask), expected, rtol=1e-4, atol=1e-5)


def test_the_installed_weights_know_what_sentences_mean(model):
    vectors = model.embed(TEXTS).astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near, far = unit[0] @ unit[1], unit[0] @ unit[2]
    assert near == pytest.approx(0.755, abs=0.01) and far < 0.2
    np.testing.assert_allclose(model.embed(TEXTS[1:2])[0], vectors[1], atol=2e-3)  # other texts do not matter


def test_other_files_are_refused(monkeypatch):
    sentence_model.cache_clear()
    monkeypatch.setitem(sentences.SHA256, sentences.WEIGHTS, "0" * 64)
    with pytest.raises(DataError, match=r"model.safetensors has the SHA-256 53aa.*; expected 0000.*; reinstall"):
        sentence_model()
    monkeypatch.setattr(sentences, "PACKAGE", "no_such_package")
    assert not sentences.is_installed()
    with pytest.raises(DataError, match=r"not installed; expected .*no-such-package; .*pencil-labels\[text\]"):
        sentence_model()


def test_vectors_are_computed_once(model, tmp_path, monkeypatch):
    expected, embed, seen, reports = model.embed(TEXTS), SentenceModel.embed, [], []
    monkeypatch.setattr(SentenceModel, "embed", lambda self, texts: seen.extend(texts) or embed(self, texts))
    kept = Sentences(tmp_path / "store", lambda *numbers: reports.append(numbers))
    found = kept.embed([*TEXTS, *TEXTS])
    assert sorted(seen) == sorted(TEXTS) and reports == [(4, 4)]
    np.testing.assert_array_equal(found, np.vstack([expected, expected]))
    np.testing.assert_array_equal(Sentences(tmp_path / "store").embed(TEXTS[::-1]), expected[::-1])
    assert len(seen) == 4


def test_a_store_that_is_only_read_is_not_changed(model, tmp_path):
    folder = tmp_path / "store"
    only_read = Sentences(folder, read_only=True)
    expected = model.embed(TEXTS)
    np.testing.assert_allclose(only_read.embed(TEXTS), expected, atol=2e-3)
    assert not folder.exists()
    Sentences(folder).embed(TEXTS[:2])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    found = only_read.embed([TEXTS[2], *TEXTS])
    np.testing.assert_allclose(found, expected[[2, *range(len(TEXTS))]], atol=2e-3)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert only_read.embed([]).shape == (0, WIDTH)


def test_sentence_vectors_follow_the_tokens_and_terms(model, tmp_path):
    texts = [f"{text} number {row % 7}" for row in range(30) for text in TEXTS]
    pq.write_table(pa.table({"text": texts, "label": ["a", "b"] * 60}), tmp_path / "t.parquet")
    records = load(DataSettings(source=str(tmp_path / "t.parquet"))).train.inputs.records
    rows = torch.arange(120)
    fast, best = (fit_encoder(records, rows, name, Sentences(tmp_path / "store")) for name in (IN_BOX, SENTENCES))
    assert best.width == fast.width + WIDTH
    one, other = (encoder.encode(records, rows[:9]).values for encoder in (fast, best))
    torch.testing.assert_close(other[:, : fast.width], one)
    text = records.texts(["text"])[:1]
    np.testing.assert_array_equal(embed_texts(text, SENTENCES, None)[:, -WIDTH:], model.embed(text))
