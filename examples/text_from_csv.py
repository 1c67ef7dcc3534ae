"""From a CSV of texts with wrong labels to a fine-tuned transformer: a tiny one, untrained, without a download.

Run it: python examples/text_from_csv.py    (pip install 'pencil-labels[transformers]')
With a connection, take AutoTokenizer and AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased").
"""

import csv
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

import pencil
from pencil.integrations import PencilLabels
from pencil.integrations.hugging_face import PencilTrainer

TOPICS = {
    "delivery": "parcel courier late address tracking driver doorstep shipped depot van",
    "payment": "invoice card refund charged bank twice receipt amount declined fee",
    "account": "password login email locked reset profile username code verify settings",
}
COMMON = "hello please the my is was not and again yesterday help thanks still me you"


def write_tickets(path, rows=900, wrong=0.25):
    """Write made-up tickets; a quarter of the topics is drawn at random."""
    rng, names = np.random.default_rng(0), list(TOPICS)
    clean = rng.integers(0, 3, rows)
    given = np.where(rng.random(rows) < wrong, rng.integers(0, 3, rows), clean)
    with Path(path).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label", "truth"])
        for true, label in zip(clean, given, strict=True):
            words = [*rng.choice(COMMON.split(), 8), *rng.choice(TOPICS[names[true]].split(), 3)]
            writer.writerow([" ".join(rng.permutation(words)), names[label], names[true]])


def tokens_of(texts):
    """Train a tokenizer of whole words; return it and the padded tokens of the texts."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["-", "?"]))
    tokenizer.enable_padding(pad_token="-")
    return tokenizer, torch.tensor([one.ids for one in tokenizer.encode_batch(texts)])


def main(epochs=12, folder="runs/text"):
    set_seed(0)
    write_tickets("tickets.csv")
    # 1. The list of labels to fix first, in seconds, without a transformer.
    run = pencil.fit("mlp", "tickets.csv", clean_labels="truth", out=f"{folder}/tickets", epochs=20)
    print(run.summary.labels.correct_before, "->", run.summary.labels.correct_after, run.summary.verdict.level)
    # 2. A transformer on the same table; PencilTrainer corrects its labels while it trains.
    with Path("tickets.csv").open(newline="") as stream:
        table, names = list(csv.DictReader(stream)), list(TOPICS)
    given, clean = (torch.tensor([names.index(row[column]) for row in table]) for column in ("label", "truth"))
    tokenizer, ids = tokens_of([row["text"] for row in table])
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), pad_token_id=0, num_labels=3, **size)
    labels = PencilLabels(given, backbone_epochs=epochs // 3, correction_epochs=epochs // 3, class_mean=False)
    options = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    options |= {"num_train_epochs": epochs, "per_device_train_batch_size": 32, "learning_rate": 3e-3, "use_cpu": True}
    rows = [{"input_ids": one, "labels": label} for one, label in zip(ids, given, strict=True)]
    PencilTrainer(
        BertForSequenceClassification(config),
        TrainingArguments(f"{folder}/trainer", **options),
        train_dataset=rows,
        pencil_labels=labels,
    ).train()
    right = [float((found == clean).float().mean()) for found in (given, labels.corrected())]
    print(f"training labels right: given {right[0]:.1%}, corrected by the transformer {right[1]:.1%}")
    return run, right


if __name__ == "__main__":
    main()
