"""Compare vectors of text on labels that are partly wrong: whole runs of pencil, for a table with true labels.

    python benchmarks/text.py reviews.csv --given first_annotator
    python benchmarks/text.py comments.csv --rules rule
    python benchmarks/text.py packages.csv --gold section --noise 0.2 --rows 3000

The given labels are a column, the majority of the columns that start with a word (rows without a majority are left
out), or the true labels with noise: this fraction of rows gets another class at random.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.csv
from features import compare

from pencil.data.inputs.text import IN_BOX, SENTENCES


def majority(votes):
    """Return the most frequent vote, or None without votes or with a tie."""
    counts = Counter(vote for vote in votes if vote).most_common()
    return None if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]) else counts[0][0]


def with_noise(labels, rate, seed=1):
    """Return the labels with this fraction of rows replaced by another class."""
    random, classes, found = np.random.default_rng(seed), sorted(set(labels)), list(labels)
    for row in random.permutation(len(labels))[: round(rate * len(labels))]:
        found[row] = str(random.choice([name for name in classes if name != labels[row]]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--gold", default="gold")
    parser.add_argument("--given")
    parser.add_argument("--rules")
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=[IN_BOX, SENTENCES])
    options = parser.parse_args()
    parsed = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(options.table, parse_options=parsed).slice(0, options.rows)
    texts, gold = (table[name].cast("string").to_pylist() for name in (options.text, options.gold))
    if options.given:
        given = table[options.given].cast("string").to_pylist()
    elif options.rules:
        voters = [table[name].to_pylist() for name in table.column_names if name.startswith(options.rules)]
        given = [majority(votes) for votes in zip(*voters, strict=True)]
    else:
        given = with_noise(gold, options.noise)
    kept = [row for row, label in enumerate(given) if label is not None]
    texts, given, gold = (np.array([column[row] for row in kept], dtype=object) for column in (texts, given, gold))
    data = pyarrow.table({"text": list(texts)}), given
    compare("mlp", data, given, gold, options.seeds, {name: {"data.text_model": name} for name in options.models})


if __name__ == "__main__":
    main()
