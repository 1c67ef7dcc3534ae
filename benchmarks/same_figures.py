"""Does src/pencil compute the same as at an earlier commit? If so, figures of that commit are figures of this one.

    python benchmarks/same_figures.py COMMIT "what changed, in a few words" [--cifar10 FOLDER]

Trains short recipes with both trees, one after the other, and compares metrics, labels and label probabilities. If they
agree, the pair of trees is written to ``same_figures.toml``, which ``results.py`` reads. With ``--cifar10`` only the
recipes of that experiment are compared, on a few images of the folder, and the pair holds for its figures only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pages import ROOT, SAME_FIGURES, measured_as
from PIL import Image
from results import git
from sklearn.datasets import load_digits

EPOCHS, SEED = 12, 3
RECIPES = (  # of datasets by name, and of the files that write_data makes
    "wine",
    "canvases-clean --set data.rows=300",  # multi-label
    "digits-symmetric-50",  # pencil
    "digits-symmetric-50-auto",
    "digits-symmetric-50-auto --set model.name=mlp --set method.lr=0.05 --set method.max_backbone=0.5",
    "digits-symmetric-50-cross-entropy --set method.name=elr",
    "breast_cancer --method confident_learning",
    'table.csv --set data.columns.label=first --set data.columns.ignore=["second","third"]',
    'table.csv --set data.columns.label=["first","second","third"]',  # several annotators
    "photos",  # features of a pretrained network
)
SMALL = "--set data.rows=1500 --set data.test_rows=500 --set model.options.width=0.25 --set training.precision=bf16"
CIFAR10 = (
    f"cifar10-fast-symmetric-50 {SMALL}",
    f"cifar10-fast-elr-symmetric-50 {SMALL}",
    f"cifar10-fast-pencil-symmetric-50 --set method.rounds=2 {SMALL}",
    f"cifar10-fast-cross-entropy-clean {SMALL}",
)
TOLERANCE = 1e-6
"""Of probabilities: another order of the same operations rounds differently."""


def write_data(folder: Path) -> None:
    """Write ``table.csv`` (texts, categories, numbers, three annotators) and ``photos``, a folder per class."""
    random, (images, classes) = np.random.default_rng(SEED), load_digits(n_class=3, return_X_y=True)
    words = ("slow red heavy", "fast blue light", "plain green round")
    votes = np.where(random.random((3, len(classes))) < 0.2, random.integers(0, 3, (3, len(classes))), classes)
    lines = ["text,colour,size,first,second,third"]
    for row, one in enumerate(classes):
        text = " ".join(random.choice(words[one].split(), 3))
        cells = text, "red" if random.random() < 0.5 else "blue", f"{one + random.normal():.3f}", *votes[:, row]
        lines.append(",".join(map(str, cells)))
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    for row, (pixels, one) in enumerate(zip(images[:90], votes[0], strict=False)):
        path = folder / "photos" / f"class-{one}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((16 * pixels.reshape(8, 8)).clip(0, 255).astype(np.uint8)).resize((96, 96)).save(path)


def train(source: Path, recipe: str, out: Path, data: Path) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """Return metrics without times, and the label table, of a recipe trained with a source tree."""
    command = [sys.executable, "-m", "pencil", "train", *recipe.split()]
    command += ["--epochs", str(EPOCHS), "--seed", str(SEED), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=data, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    table = pq.read_table(out / "labels.parquet")
    columns = {name: table[name].to_pylist() for name in ("key", "corrected", "issue_score", "distribution")}
    return [{key: value for key, value in one.items() if key != "seconds"} for one in metrics], columns


def agree(one: Any, other: Any) -> bool:
    """Return whether both runs agree: exactly, and within a tolerance in probabilities and scores."""
    (metrics, columns), (other_metrics, other_columns) = one, other
    exact = all(columns[name] == other_columns[name] for name in ("key", "corrected"))
    close = (
        np.allclose(columns[name], other_columns[name], rtol=0, atol=TOLERANCE)
        for name in ("issue_score", "distribution")
    )
    return exact and all(close) and len(metrics) == len(other_metrics) and all(map(_same_epoch, metrics, other_metrics))


def _same_epoch(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def same(key: str) -> bool:
        value, its = one[key], other.get(key)
        return (
            abs(value - its) <= TOLERANCE * max(1, abs(value))
            if isinstance(value, float) and its is not None
            else value == its
        )

    return one.keys() == other.keys() and all(map(same, one))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="an earlier commit, whose figures should hold")
    parser.add_argument("why", help="what changed since then")
    parser.add_argument("--cifar10", type=Path, metavar="FOLDER", help="compare the recipes of CIFAR-10 only")
    options = parser.parse_args()
    if git("status", "--porcelain", "src/pencil"):
        parser.error("src/pencil has changes; commit them, since figures belong to a commit")
    then, now = (git("rev-parse", "--short=12", f"{commit}:src/pencil") for commit in (options.commit, "HEAD"))
    table, recipes = "all", RECIPES
    if options.cifar10:
        table, recipes = "cifar10", tuple(f"{one} --set data.root={options.cifar10.resolve()}" for one in CIFAR10)
    if measured_as(now, table) == measured_as(then, table):
        print(f"{now} counts as {measured_as(then, table)} already")
        return
    with tempfile.TemporaryDirectory() as folder:
        (data := Path(folder) / "data").mkdir()
        write_data(data)
        for name, commit in (("then", options.commit), ("now", "HEAD")):
            (Path(folder) / name).mkdir()
            archive = subprocess.run(
                ["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", Path(folder) / name], input=archive, check=True)
        for number, recipe in enumerate(recipes):
            runs = [
                train(Path(folder, name, "src"), recipe, Path(folder, f"{name}-{number}"), data)
                for name in ("then", "now")
            ]
            print(f"{recipe}: {'the same' if agree(*runs) else 'different'}", flush=True)
            if not agree(*runs):
                sys.exit("the figures are not the same; measure them again")
    add_pair(table, measured_as(now, table), then, options.why)


def add_pair(table: str, later: str, earlier: str, why: str) -> None:
    """Write into a table of ``same_figures.toml`` that the later tree computes the same as the earlier one."""
    text, head = SAME_FIGURES.read_text(encoding="utf-8"), f"\n[{table}]\n"
    text += "" if head in text else head
    SAME_FIGURES.write_text(text.replace(head, f'{head}# {why}\n"{later}" = "{earlier}"\n', 1), encoding="utf-8")


if __name__ == "__main__":
    main()
