"""Text as vectors: token vectors that are installed with pencil, terms of the training rows, or a language model."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pencil.data.inputs.packages import checked_folder
from pencil.data.inputs.sentences import Sentences
from pencil.errors import DataError, setting

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AUTO, IN_BOX, SENTENCES = BUILT_IN = "auto", "wordllama", "minilm"
"""Values of ``data.text_model`` that are not Hugging Face models. ``auto`` is replaced by one of the others when a run
chooses its features; elsewhere, as in encoders of older runs, it means the vectors that are installed with pencil."""
PACKAGE = "wordllama"
TOKENIZER, TABLE = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
SHA256 = {
    TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    TABLE: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
}
VOCABULARY = 32_000
"""Size of the vocabulary."""
MOST_TERMS, MOST_DIMENSIONS = 20_000, 256
"""Number of terms that are counted, and of dimensions they are reduced to."""
ROWS_PER_DIMENSION = 4
MOST_FITTED, MOST_TOKENS = 100_000, 10_000_000
"""Maximum number of texts on which terms are fitted, and of their tokens, which bounds time and memory: 10 million
tokens are 40 MB of English, and about 1 GB while their pairs are counted."""
LONGEST = 100_000
"""Maximum number of characters of a text that are read."""
CHUNK, MODEL_CHUNK = 2048, 32
"""Number of texts processed at a time."""


class Tokens(NamedTuple):
    """The concatenated tokens of some texts, and the number of tokens of each."""

    flat: np.ndarray
    lengths: np.ndarray


class TokenVectors(NamedTuple):
    """A tokenizer, and a vector for each of its tokens."""

    tokenizer: "Tokenizer"
    table: torch.Tensor

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of these texts; very long texts are truncated."""
        cut = [text[:LONGEST] for text in texts]
        encoded = self.tokenizer.encode_batch_fast(cut, add_special_tokens=False)
        found = [np.array(one.ids, dtype=np.int32) for one in encoded]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return Tokens(np.concatenate([np.empty(0, dtype=np.int32), *found]), lengths)

    def embed(self, tokens: Tokens) -> np.ndarray:
        """Return the mean token vector of each text; zeros for an empty text."""
        starts = torch.from_numpy(tokens.lengths.cumsum() - tokens.lengths)
        flat = torch.from_numpy(tokens.flat).long()
        found: np.ndarray = nn.functional.embedding_bag(flat, self.table, starts, mode="mean").numpy()
        return found


@cache
def token_vectors() -> TokenVectors:
    """Return the token vectors of WordLlama, 256 numbers for each of 32,000 tokens, without downloads.

    Raises
    ------
    DataError
        If the package is missing, or its files are not the expected ones.
    """
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    missing = DataError(f"the package {PACKAGE}, which contains the word vectors, is missing; reinstall it.")
    folder = checked_folder(PACKAGE, SHA256, missing)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (table,) = load_file(folder / TABLE).values()
    return TokenVectors(tokenizer, table.float())


@dataclass(frozen=True, eq=False)
class TermVectors:
    """Latent semantic analysis of the training rows: TF-IDF of tokens and token pairs, and a truncated SVD.

    Parameters
    ----------
    terms
        The counted terms, as encoded by :func:`term_codes`, in ascending order.
    idf
        The inverse document frequency of each term.
    components
        (dimensions, terms): the directions onto which texts are projected.
    """

    terms: np.ndarray
    idf: np.ndarray
    components: np.ndarray

    def embed(self, tokens: Tokens) -> np.ndarray:
        """Return one vector per text; zeros for a text without known terms."""
        from sklearn.preprocessing import normalize

        counts = count_terms(tokens, self.terms)
        counts.data = (1 + np.log(counts.data)) * self.idf[counts.indices]
        found: np.ndarray = normalize(counts) @ self.components.T
        return found


def term_codes(tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Return the text and the code of every token and of every pair of adjacent tokens."""
    texts, flat = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths), tokens.flat.astype(np.int64)
    neighbours = texts[:-1] == texts[1:]
    pairs = ((flat[:-1] + 1) * VOCABULARY + flat[1:])[neighbours]
    return np.concatenate([texts, texts[:-1][neighbours]]), np.concatenate([flat, pairs])


def count_terms(tokens: Tokens, terms: np.ndarray) -> Any:
    """Return the count of each of these terms in each text, as a sparse (texts, terms) matrix."""
    from scipy.sparse import csr_array

    texts, codes = term_codes(tokens)
    places = np.searchsorted(terms, codes).clip(max=max(0, len(terms) - 1))
    known = terms[places] == codes if len(terms) else np.zeros(len(codes), dtype=bool)
    ones = np.ones(int(known.sum()), dtype=np.float32)
    return csr_array((ones, (texts[known], places[known])), shape=(len(tokens.lengths), len(terms)))


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Return up to ``most`` of ``count`` places, from the first to the last, in order."""
    found: np.ndarray = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
    return found


def fit_terms_in_parts(count: int, read: Callable[[np.ndarray], Sequence[str]]) -> TermVectors | None:
    """Fit on texts (on a sample if there are very many); None if no term occurs in two of them.

    Parameters
    ----------
    count
        Number of texts.
    read
        ``read(places)`` returns the texts at these places.
    """
    from scipy.sparse import vstack
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer

    parts = _sampled_tokens(count, read)
    terms = _frequent_terms(Tokens(*(np.concatenate(values) for values in zip(*parts, strict=True))))
    counts = vstack([count_terms(part, terms) for part in parts], format="csr")
    dimensions = min(MOST_DIMENSIONS, counts.shape[1] - 1, counts.shape[0] // ROWS_PER_DIMENSION)
    if dimensions < 1:
        return None
    weighted = TfidfTransformer(sublinear_tf=True).fit(counts)
    reduced = TruncatedSVD(dimensions, random_state=0).fit(weighted.transform(counts, copy=False))
    return TermVectors(terms, weighted.idf_.astype(np.float32), reduced.components_.astype(np.float32))


def _sampled_tokens(count: int, read: Callable[[np.ndarray], Sequence[str]]) -> list[Tokens]:
    """Return the tokens of texts, in parts; each part is spread over all texts, so any number of parts is a sample."""
    some = evenly_spaced(count, MOST_FITTED)
    steps, parts, tokens = -(-len(some) // CHUNK), [], 0
    for start in range(steps):
        parts.append(token_vectors().tokens(read(some[start::steps])))
        tokens += len(parts[-1].flat)
        if tokens >= MOST_TOKENS:
            break
    return parts


def _frequent_terms(tokens: Tokens) -> np.ndarray:
    """Return the most frequent terms that occur in at least two texts, in ascending order."""
    texts, codes = term_codes(tokens)
    texts += codes * len(tokens.lengths)  # one number for a term in a text; sorting it is faster than np.unique
    texts.sort()
    codes = texts // len(tokens.lengths)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(starts, append=len(codes))
    in_texts = np.add.reduceat(np.diff(texts, prepend=-1) > 0, starts, dtype=np.int64) if len(starts) else counts
    several = in_texts >= 2
    kept = np.flatnonzero(several)[np.argsort(-counts[several], kind="stable")[:MOST_TERMS]]
    found: np.ndarray = codes[starts[np.sort(kept)]]
    return found


def embed_texts(
    texts: Sequence[str], model: str, terms: TermVectors | None, sentences: Sentences | None = None
) -> np.ndarray:
    """Return one vector per text, before standardisation.

    Parameters
    ----------
    texts
        Any texts; very long texts are truncated.
    model
        ``wordllama``: the mean of the token vectors, followed by the terms of the training rows. ``minilm``: both,
        and sentence vectors. Otherwise the name or folder of a Hugging Face model.
    terms
        The terms of the training rows, if there are any.
    sentences
        Where sentence vectors are kept.
    """
    if model not in BUILT_IN:
        return language_model(model).embed([text[:LONGEST] for text in texts])
    vectors, parts = token_vectors(), []
    for start in range(0, len(texts), CHUNK):
        tokens = vectors.tokens(texts[start : start + CHUNK])
        found = [vectors.embed(tokens)] + ([] if terms is None else [terms.embed(tokens)])
        parts.append(np.hstack(found))
    joined = np.concatenate(parts)
    return np.hstack([joined, (sentences or Sentences()).embed(texts)]) if model == SENTENCES else joined


class LanguageModel(NamedTuple):
    """A tokenizer and a network from the transformers library."""

    tokenizer: Any
    network: Any
    longest: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the mean of the last hidden states of each text; texts are truncated to the model's maximum length."""
        order = np.argsort([len(text) for text in texts], kind="stable")  # similar lengths need little padding
        found: np.ndarray | None = None
        for places in np.array_split(order, max(1, -(-len(texts) // MODEL_CHUNK))):
            batch = [texts[place] for place in places]
            tokens = self.tokenizer(batch, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
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
    """Load a Hugging Face model by name or from a folder: only safetensors, and without running its own code."""
    if importlib.util.find_spec("transformers") is None:
        raise DataError(
            f"data.text_model is {name!r}, which needs transformers; install it with pip install "
            f"'pencil-labels[transformers]', or use the built-in vectors with {setting('data.text_model', IN_BOX)}."
        )
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        network = AutoModel.from_pretrained(name, use_safetensors=True).eval()
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"data.text_model {name!r} cannot be loaded: {reason}; expected a Hugging Face text model that is on "
            f"this machine or can be downloaded; pass its folder, or use the built-in vectors with "
            f"{setting('data.text_model', IN_BOX)}."
        ) from error
    positions = getattr(network.config, "max_position_embeddings", 512)
    return LanguageModel(tokenizer, network, int(min(tokenizer.model_max_length, positions, 512)))
