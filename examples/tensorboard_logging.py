"""Numbers of every epoch in TensorBoard; "wandb" and "mlflow" work the same way.

Run it: python examples/tensorboard_logging.py     (pip install 'pencil-labels[tensorboard]')
Look at it: tensorboard --logdir runs
"""

from pathlib import Path

from own_loop import network, noisy_digits
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pencil


def main(epochs=20, folder="runs/tensorboard_example"):
    x, given, clean, x_test, y_test = noisy_digits()
    run = pencil.fit(
        network(),
        (x, given),
        test=(x_test, y_test),
        clean_labels=clean,
        out=folder,
        epochs=epochs,
        settings={"training.log": ["tensorboard"], "training.batch_size": 64},
    )
    events = EventAccumulator(str(Path(folder) / "tensorboard")).Reload()
    accuracy = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    print(
        f"{len(events.Tags()['scalars'])} curves of {len(accuracy)} epochs; test accuracy ends at {accuracy[-1][1]:.1%}"
    )
    return run, accuracy


if __name__ == "__main__":
    main()
