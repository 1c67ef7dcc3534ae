"""Compare vectors of text: accuracy of a perceptron on test rows, for a table with the columns text and label.

python benchmarks/text.py texts.csv --rows 2000
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow.csv
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from pencil.data.inputs.text import fit_terms_in_parts, token_vectors

EPOCHS, BATCH, TEST = 20, 128, 4000


def counted(train, test, **options):
    counter = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=20_000, dtype=np.float32, **options)
    counts = counter.fit_transform(train)
    reduced = TruncatedSVD(min(256, min(counts.shape) - 1), random_state=0).fit(counts)
    return reduced.transform(counts), reduced.transform(counter.transform(test))


def accuracy(train, test, train_labels, test_labels, seed=0):
    mean, std = train.mean(axis=0), train.std(axis=0) + 1e-6
    x, z = (torch.from_numpy(((part - mean) / std).astype(np.float32)).clamp(-10, 10) for part in (train, test))
    torch.manual_seed(seed)
    layers = [nn.Dropout(0.25)]
    for width in (x.shape[1], 128):
        layers += [nn.Linear(width, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5)]
    network = nn.Sequential(*layers, nn.Linear(128, int(train_labels.max()) + 1))
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            if len(rows) > 1:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), train_labels[rows]).backward()
                optimizer.step()
        schedule.step()
    with torch.inference_mode():
        return float((network.eval()(z).argmax(dim=1) == test_labels).double().mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    chosen = parser.parse_args()
    table = pyarrow.csv.read_csv(chosen.table, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    order = np.random.default_rng(0).permutation(table.num_rows)
    texts = [table["text"][int(row)].as_py() or "" for row in order]
    codes = torch.from_numpy(np.unique(table["label"].to_numpy()[order], return_inverse=True)[1])
    held = min(TEST, len(texts) // 4)
    test, train = texts[:held], texts[held : held + chosen.rows]
    labels = codes[held : held + chosen.rows], codes[:held]
    tokens = [token_vectors().tokens(part) for part in (train, test)]
    vectors = [token_vectors().embed(part) for part in tokens]
    terms = fit_terms_in_parts(len(train), lambda places: [train[place] for place in places])
    found = {
        "words": counted(train, test),
        "characters": counted(train, test, analyzer="char_wb", ngram_range=(2, 5)),
        "pairs": [terms.embed(part) for part in tokens],
    }
    print(f"tokens: {accuracy(*vectors, *labels):.1%}")
    for name, parts in found.items():
        both = [np.hstack(pair) for pair in zip(parts, vectors, strict=True)]
        print(f"{name}: {accuracy(*parts, *labels):.1%}, with tokens: {accuracy(*both, *labels):.1%}")


if __name__ == "__main__":
    main()
