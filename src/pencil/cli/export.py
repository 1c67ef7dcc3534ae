"""``pencil export``: a run's network for other programs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pencil.cli.options import AsJson, RunPath, TrustFiles
from pencil.cli.output import echo


def export(
    run: RunPath,
    format: Annotated[str, typer.Option("--format", help="torch-export, onnx or safetensors.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new file: .pt2, .onnx or .safetensors.")],
    epoch: Annotated[str, typer.Option("--epoch", help="Weights of the `last` or the `best` epoch.")] = "last",
    preparation: Annotated[
        bool | None,
        typer.Option(
            "--with-preparation/--without-preparation",
            help="Include cropping and normalisation in the exported network (default for torch-export and onnx).",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="Largest allowed difference between logits, relative to the largest logit."),
    ] = 1e-4,
    trust: TrustFiles = False,
    as_json: AsJson = False,
) -> None:
    """Write the network to a file, and keep the file only if it reproduces the network's logits on some inputs.

    The exported network takes batches of any size and returns logits. With preparation it takes raw inputs: uint8
    images of the training size, or unscaled numbers. The file's metadata contains the classes, shapes and normalisation
    (for torch-export also in a .json file next to it).
    """
    from pencil.export.network import export_model
    from pencil.runs.run import open_run

    opened = open_run(run, epoch=epoch, trust=trust)
    done = export_model(opened, format, out, preparation=preparation, tolerance=tolerance)
    if as_json:
        found = {"path": str(done.path), "inputs": done.inputs, "from_data": done.from_data}
        echo(json.dumps({**found, "largest_difference": done.largest_difference, "metadata": done.metadata}))
        return
    taken = done.metadata["input"]
    echo(
        f"{done.path}: {format}, takes {taken['type']} of shape ({', '.join(map(str, taken['shape']))}), "
        f"returns logits for {len(done.metadata['classes'])} classes"
    )
    source = "inputs of the run's data" if done.from_data else "random inputs"
    echo(f"largest difference {done.largest_difference:.2g} on {done.inputs} {source}")
