"""Tiny trees in the official layouts of the paper's datasets, made of noise: enough to run, nothing to learn."""

import json
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RNG = np.random.default_rng(0)


def write(path: Path, *lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def image(path: Path, side: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)


def pixels(rows: int) -> np.ndarray:
    return RNG.integers(0, 256, (rows, 3072), dtype=np.uint8)


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": CIFAR10_NAMES}))
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": pixels(10), "labels": list(range(10))}))


def cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"thing {i}" for i in range(100)]}))
    for name, copies in (("train", 20), ("test", 1)):
        content = {"data": pixels(100 * copies), "fine_labels": list(range(100)) * copies}
        (folder / name).write_bytes(pickle.dumps(content))


def cub200(root: Path, classes: int = 4) -> None:
    folder = root / "CUB_200_2011"
    names = [f"{k:03d}.Bird" for k in range(1, classes + 1)]
    rows = [(i, k) for i, k in enumerate([k for k in range(classes) for _ in range(4)], 1)]
    write(folder / "classes.txt", *(f"{k} {name}" for k, name in enumerate(names, 1)))
    write(folder / "images.txt", *(f"{i} {names[k]}/{i}.jpg" for i, k in rows))
    write(folder / "image_class_labels.txt", *(f"{i} {k + 1}" for i, k in rows))
    write(folder / "train_test_split.txt", *(f"{i} {int(i % 4 != 0)}" for i, _ in rows))
    for i, k in rows:
        image(folder / "images" / names[k] / f"{i}.jpg")


def clothing1m(root: Path) -> None:
    noisy = [f"images/0/{i:02d}/{i}.jpg" for i in range(28)]
    clean = [f"images/1/{i:02d}/{i}.jpg" for i in range(8)]
    write(root / "noisy_train_key_list.txt", *noisy)
    write(root / "noisy_label_kv.txt", *(f"{key} {i % 14}" for i, key in enumerate(noisy)))
    write(root / "clean_train_key_list.txt", noisy[0])
    write(root / "clean_val_key_list.txt", *clean[:4])
    write(root / "clean_test_key_list.txt", *clean[4:])
    write(root / "clean_label_kv.txt", *(f"{key} {i % 14}" for i, key in enumerate([*clean, noisy[0]])))
    for key in (*noisy, *clean):
        image(root / key)


def coco(root: Path) -> None:
    categories = [{"id": k + 1, "name": f"thing {k}"} for k in range(80)]
    for split, count in (("train2014", 8), ("val2014", 4)):
        images = [{"id": i, "file_name": f"COCO_{split}_{i:012d}.jpg"} for i in range(count)]
        notes = [{"id": k, "image_id": k % count, "category_id": k + 1} for k in range(80)]
        content = {"images": images, "annotations": notes, "categories": categories}
        write(root / "annotations" / f"instances_{split}.json", json.dumps(content))
        for entry in images:
            image(root / split / entry["file_name"])


def open_images(root: Path, classes: int = 4) -> None:
    header = "ImageID,Source,LabelName,Confidence"
    write(root / "class-descriptions.csv", *(f"/m/{k},Thing {k}" for k in range(classes)))
    for split, count in (("train", 4), ("validation", 2), ("test", 2)):
        names = [f"{split}{i}" for i in range(classes * count)]
        human = [f"{name},verification,/m/{i % classes},1" for i, name in enumerate(names)]
        human += [f"{name},verification,/m/{(i + 1) % classes},0" for i, name in enumerate(names)]
        if split == "train":
            machine = [f"{name},machine,/m/{(i + 2) % classes},0.{3 + i % 6}" for i, name in enumerate(names)]
            write(root / "train-annotations-machine-imagelabels.csv", header, *machine)
        write(root / f"{split}-annotations-human-imagelabels.csv", header, *human)
        for name in names:
            image(root / split / f"{name}.jpg")


MAKERS = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cub200": cub200,
    "clothing1m": clothing1m,
    "coco": coco,
    "open_images": open_images,
}
