"""Text as vectors: token vectors that are installed with pencil, words of the training rows, or a language model."""

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pencil.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

IN_BOX = "auto"
"""The ``data.text_model`` that is installed with pencil."""
PACKAGE = "wordllama"
TOKENIZER, TABLE = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
SHA256 = {
    TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    TABLE: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
}
MOST_TERMS, MOST_DIMENSIONS = 20_000, 256
"""Words that are counted, and the dimensions that they are reduced to."""
ROWS_PER_DIMENSION = 4
LONGEST = 100_000
"""Characters of a text that are read."""
CHUNK, MODEL_CHUNK = 2048, 32
"""Texts at a time."""


class TokenVectors(NamedTuple):
    """A tokenizer, and a vector for each of its tokens."""

    tokenizer: "Tokenizer"
    table: torch.Tensor

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the mean vector of the tokens of each text; zeros for an empty one."""
        tokens = [one.ids for one in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        flat = np.fromiter((token for one in tokens for token in one), np.int64, int(lengths.sum()))
        starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()[:-1]]))
        found: np.ndarray = nn.functional.embedding_bag(torch.from_numpy(flat), self.table, starts, mode="mean").numpy()
        return found


@cache
def token_vectors() -> TokenVectors:
    """Return the token vectors of WordLlama, 256 numbers for each of 32,000 tokens; nothing is downloaded.

    Raises
    ------
    DataError
        If the package is missing, or its files are not the expected ones.
    """
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    found = importlib.util.find_spec(PACKAGE)  # its own code is not run
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    if folder is None:
        raise DataError(f"the package {PACKAGE}, which holds the vectors of words, is missing; install it again.")
    for name, expected in SHA256.items():
        path = folder / name
        seen = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if seen != expected:
            raise DataError(f"{path} has the SHA-256 {seen}; expected {expected}; install {PACKAGE} again.")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (table,) = load_file(folder / TABLE).values()
    return TokenVectors(tokenizer, table.float())


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Latent semantic analysis of the training rows: TF-IDF of words, reduced by a truncated SVD.

    Parameters
    ----------
    terms
        The words that are counted.
    idf
        The inverse document frequency of each.
    components
        (dimensions, terms): the directions that texts are projected on.
    """

    terms: tuple[str, ...]
    idf: np.ndarray
    components: np.ndarray

    @cached_property
    def _counter(self) -> Any:
        counter = _vectorizer(vocabulary=dict(zip(self.terms, range(len(self.terms)), strict=True)))
        counter.idf_ = self.idf
        return counter

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return one vector per text; zeros for one without a known word."""
        found: np.ndarray = self._counter.transform(texts) @ self.components.T
        return found


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **options)


def fit_words(texts: Sequence[str]) -> WordVectors | None:
    """Count the words of these texts; None where no word occurs in two of them."""
    from sklearn.decomposition import TruncatedSVD

    counter = _vectorizer(min_df=2, max_features=MOST_TERMS)
    try:
        counts = counter.fit_transform(_cut(texts))
    except ValueError:  # no word is left
        return None
    dimensions = min(MOST_DIMENSIONS, counts.shape[1] - 1, len(texts) // ROWS_PER_DIMENSION)
    if dimensions < 1:
        return None
    reduced = TruncatedSVD(dimensions, random_state=0).fit(counts)
    terms = tuple(str(term) for term in counter.get_feature_names_out())
    return WordVectors(terms, counter.idf_.astype(np.float32), reduced.components_.astype(np.float32))


def embed_texts(texts: Sequence[str], model: str, words: WordVectors | None) -> np.ndarray:
    """Return one vector per text, not standardised yet.

    Parameters
    ----------
    texts
        Any texts; only the beginning of a very long one is read.
    model
        ``auto``: the mean of token vectors, and the words of the training rows beside it. Otherwise the name or folder
        of a model of Hugging Face.
    words
        The words of the training rows, where there are any.
    """
    if model != IN_BOX:
        return language_model(model).embed(_cut(texts))
    parts = []
    for chunk in _chunks(_cut(texts), CHUNK):
        found = [token_vectors().embed(chunk)] + ([] if words is None else [words.embed(chunk)])
        parts.append(np.hstack(found).astype(np.float32))
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _cut(texts: Sequence[str]) -> list[str]:
    return [text[:LONGEST] for text in texts]


def _chunks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (texts[start : start + size] for start in range(0, len(texts), size))


class LanguageModel(NamedTuple):
    """A tokenizer and a network of the transformers library."""

    tokenizer: Any
    network: Any
    longest: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the mean of the last hidden states of each text; only its first tokens are read, as many as fit."""
        order = np.argsort([len(text) for text in texts], kind="stable")  # so that a batch needs little padding
        found: np.ndarray | None = None
        for places in np.array_split(order, max(1, -(-len(texts) // MODEL_CHUNK))):
            batch = [texts[place] for place in places]
            tokens = self.tokenizer(
                batch, padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
            )
            with torch.inference_mode():
                states = self.network(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None].to(states.dtype)
            means = ((states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).float().numpy()
            found = np.empty((len(texts), means.shape[1]), np.float32) if found is None else found
            found[places] = means
        assert found is not None
        return found


@cache
def language_model(name: str) -> LanguageModel:
    """Load a model of Hugging Face by its name or from a folder: safetensors only, and no code of its own is run."""
    if importlib.util.find_spec("transformers") is None:
        raise DataError(
            f"data.text_model is {name!r}, which needs transformers; install it with pip install "
            f"'pencil-labels[transformers]', or set data.text_model to {IN_BOX}."
        )
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        network = AutoModel.from_pretrained(name, use_safetensors=True).eval()
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"data.text_model {name!r} cannot be loaded: {reason}; expected a text model of Hugging Face that is on "
            f"this machine or can be downloaded; name its folder, or set data.text_model to {IN_BOX}."
        ) from error
    positions = getattr(network.config, "max_position_embeddings", 512)
    return LanguageModel(tokenizer, network, int(min(tokenizer.model_max_length, positions, 512)))
