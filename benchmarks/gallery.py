"""The official labels that look most wrong: the pictures of docs/gallery.md. No noise is added.

    python benchmarks/gallery.py digits fashion_mnist
    python benchmarks/gallery.py cifar10 --root FOLDER_OF_CIFAR_10 --model efficientnet_lite0 --rows 20000
    python benchmarks/gallery.py cifar10 --root FOLDER_OF_CIFAR_10 --model efficientnet_lite0 --rows 20000 \\
        --labels human.npy --name cifar10-human

A dataset is one that `pencil train` knows by name. Its training and test images are joined, so that every official
label can be judged, and a run with pencil's default method is trained on them (``--model`` trains the head of a
pretrained network; its features are kept in pencil's cache). ``--labels`` has other labels for the first images, class
indices, in place of the official ones. The labels with the highest issue scores become a contact sheet, NAME.jpg, and
NAME.json lists their rows and what the run reported, both in ``--out``. Runs are kept in ``--runs``; a run that is
already there is drawn again without training.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import pencil
from pencil.data import Examples
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.data.sources.arrays import from_arrays

COLUMNS, SIDE, GAP, LINE = 5, 112, 34, 17
"""Images in a row; pixels of an image, between images, and of a line of text."""
QUALITY = 85
"""Of the JPEG file: enlarged pictures stay sharp, and twenty of them take less than 100 KB."""


def joined(name: str, options: argparse.Namespace) -> Examples:
    """Return the training and test images of a dataset as one set, with their own keys."""
    splits, rows = load(DataSettings(source=name, root=options.root)), options.rows
    parts = [part for part in (splits.train, splits.test) if part is not None]
    images = np.concatenate([part.inputs.raw(part.rows).values.numpy() for part in parts])
    labels, keys = (np.concatenate([getattr(part, field) for part in parts]) for field in ("given_labels", "keys"))
    if options.labels is not None:
        given = np.load(options.labels, allow_pickle=False)
        labels[: len(given)] = given
    return from_arrays(images[:rows], labels[:rows], classes=splits.train.classes, keys=keys[:rows])


def trained(examples: Examples, folder: Path, options: argparse.Namespace) -> pencil.Run:
    """Return the run in the folder, or train one with pencil's default method."""
    settings = {"model.pretrained": True, "model.train": "head"} if options.model else {}
    return pencil.fit(
        options.model or "auto", examples, out=folder, epochs=options.epochs, seed=options.seed, settings=settings,
        resume=True,
    )  # fmt: skip


def most_suspicious(run: pencil.Run, count: int) -> list[dict[str, object]]:
    """Return the rows with the highest issue scores: the given label, and the most probable other class."""
    first = run.labels.by_issue().slice(0, count)
    others = first.probs.copy()
    others[np.arange(len(first)), first.given_codes] = -1.0
    answers = others.argmax(axis=1)
    columns = zip(first.keys.to_pylist(), first.splits.to_pylist(), first.given_codes, answers, strict=True)
    return [
        {
            "key": key,
            "split": split,
            "given": run.data.classes[given],
            "pencil": run.data.classes[answer],
            "probability": round(float(others[place, answer]), 3),
            "issue_score": round(float(first.issue_score[place]), 3),
        }
        for place, (key, split, given, answer) in enumerate(columns)
    ]


def contact_sheet(examples: Examples, found: list[dict[str, object]]) -> Image.Image:
    """Return the pictures, numbered, with the given label and pencil's under each."""
    place = {key: row for row, key in enumerate(examples.keys.tolist())}
    height = SIDE + 2 * LINE + GAP // 2
    lines = -(-len(found) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP) + GAP, lines * height + GAP // 2), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, row in enumerate(found):
        left = GAP + number % COLUMNS * (SIDE + GAP)
        top = GAP // 2 + number // COLUMNS * height
        picture = Image.fromarray(examples.inputs.picture(place[str(row["key"])])).convert("RGB")
        sheet.paste(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (left, top))
        pen.text((left - 6, top), str(number + 1), fill="#666666", font=font, anchor="ra")
        pen.text((left, top + SIDE + 1), f"given {row['given']}", fill="black", font=font)
        pen.text((left, top + SIDE + 1 + LINE), f"pencil {row['pencil']}", fill="#1a4fb4", font=font)
    return sheet


def main() -> None:
    """Train, draw and print one line for each dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--root", type=Path, help="the folder of a dataset that is not installed")
    parser.add_argument("--model", help="a pretrained network whose head is trained")
    parser.add_argument("--rows", type=int, help="only the first rows")
    parser.add_argument("--epochs", type=int, help="fewer epochs than the default")
    parser.add_argument("--labels", type=Path, help="an npy file of other labels")
    parser.add_argument("--name", help="of the run and the files, by default the dataset's")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/gallery"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for dataset in options.datasets:
        name, examples = options.name or dataset, joined(dataset, options)
        run = trained(examples, options.runs / name, options)
        found = most_suspicious(run, options.count)
        contact_sheet(examples, found).save(options.out / f"{name}.jpg", quality=QUALITY, optimize=True)
        labels, rate = run.summary.labels, run.summary.noise_rate
        facts = {
            "rows": len(examples),
            "model": run.recipe.model.name,
            "epochs": len(run.metrics),
            "seed": options.seed,
            "verdict": run.summary.verdict.level,
            "noise_rate": None if rate is None else [round(one, 4) for one in (rate.estimate, rate.low, rate.high)],
            "corrections": labels.total_changed,
            "suspects": labels.suspects,
            "seconds": round(sum(record["seconds"] for record in run.metrics)),
        }
        (options.out / f"{name}.json").write_text(json.dumps(facts | {"first": found}, indent=1) + "\n")
        print(name, facts, flush=True)


if __name__ == "__main__":
    main()
