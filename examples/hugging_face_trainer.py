"""PENCIL in the Trainer of Hugging Face: PencilTrainer instead of Trainer. A tiny vision transformer, no download.

Run it: python examples/hugging_face_trainer.py    (pip install 'pencil-labels[transformers]')
"""

import torch
from own_loop import noisy_digits
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from pencil.integrations import PencilLabels
from pencil.integrations.hugging_face import PencilTrainer


class Digits(torch.utils.data.Dataset):
    """Digits as the model takes them."""

    def __init__(self, x, y):
        self.images, self.y = x.reshape(-1, 1, 8, 8), y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"pixel_values": self.images[i], "labels": self.y[i]}


def tiny_vit():
    size = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
    layers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return ViTForImageClassification(ViTConfig(**size, **layers))


def main(epochs=20, folder="runs/hugging_face"):
    set_seed(0)
    x, given, clean, x_test, y_test = noisy_digits()
    labels = PencilLabels(given, backbone_epochs=epochs // 4, correction_epochs=epochs // 2, step=1.0, class_mean=False)
    trainer = PencilTrainer(
        tiny_vit(),
        TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            learning_rate=2e-3,
            lr_scheduler_type="warmup_stable_decay",  # constant while labels move, then down to zero
            lr_scheduler_kwargs={"num_decay_steps": len(x) // 64 * (epochs // 4)},
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Digits(x, given),
        eval_dataset=Digits(x_test, y_test),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
        pencil_labels=labels,
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    right = [float((found == clean).float().mean()) for found in (given, labels.corrected())]
    print(f"test accuracy {accuracy:.1%}; training labels right: given {right[0]:.1%}, corrected {right[1]:.1%}")
    return accuracy, right


if __name__ == "__main__":
    main()
