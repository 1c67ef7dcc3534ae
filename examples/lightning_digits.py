"""PENCIL in Lightning: one line of training_step, a callback, and a dataset with row numbers.

Run it: python examples/lightning_digits.py        (pip install 'pencil-labels[lightning]')
"""

import lightning
import torch
from own_loop import network, noisy_digits
from torch.utils.data import DataLoader, TensorDataset

from pencil.integrations import PencilLabels, WithRows
from pencil.integrations.lightning import PencilCallback


class Digits(lightning.LightningModule):
    """A plain classifier whose training loss is that of the labels."""

    def __init__(self, labels, epochs):
        super().__init__()
        self.network, self.labels, self.epochs = network(), labels, epochs

    def training_step(self, batch, batch_idx):
        x, _, rows = batch
        return self.labels.loss(self.network(x), rows)  # was: cross_entropy(self.network(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(dim=1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        last = self.epochs // 4  # constant while labels move, then down to zero
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (self.epochs - epoch) / last))
        return [optimizer], [schedule]


def main(epochs=24, folder="runs/lightning"):
    lightning.seed_everything(0, verbose=False)
    x, given, clean, x_test, y_test = noisy_digits()
    first, last = 2, epochs // 4
    labels = PencilLabels(given, backbone_epochs=first, correction_epochs=epochs - first - last, step=0.5)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=[PencilCallback(labels)],
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=epochs,
    )
    trainer.fit(
        Digits(labels, epochs),
        DataLoader(WithRows(TensorDataset(x, given)), batch_size=64, shuffle=True),
        DataLoader(TensorDataset(x_test, y_test), batch_size=512),
    )
    accuracy = float(trainer.callback_metrics["accuracy"])
    right = [float((found == clean).float().mean()) for found in (given, labels.corrected())]
    print(f"test accuracy {accuracy:.1%}; training labels right: given {right[0]:.1%}, corrected {right[1]:.1%}")
    return accuracy, right


if __name__ == "__main__":
    main()
