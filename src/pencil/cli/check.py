"""``pencil check``: everything that would be refused is refused now, without training."""

import json

import typer

from pencil.cli.options import AsJson, Epochs, MethodName, ModelName, Seed, Set, What, build_recipe


def check(
    what: What,
    method: MethodName = None,
    model: ModelName = None,
    seed: Seed = None,
    epochs: Epochs = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Load the data, build the model, lay out the phases; say what would be trained on what."""
    recipe = build_recipe(what, method, model, seed, epochs, assignments)
    from pencil.cli.show import show, table
    from pencil.job import rehearse

    plan = rehearse(recipe)
    if as_json:
        typer.echo(json.dumps(plan))
        return
    rows = ", ".join(f"{count:,} {name}" for name, count in plan["rows"].items())
    shown = table("class", "given labels")
    for name, count in plan["class_counts"].items():
        shown.add_row(name, f"{count:,}")
    phases = ", ".join(f"{phase['name']} {phase['epochs']}" for phase in plan["phases"])
    noise = plan["injected_noise_rate"]
    show(
        f"data      {recipe.data.source}: {rows}",
        f"inputs    {' x '.join(map(str, plan['input_shape']))}, {len(plan['class_counts'])} classes",
        *([] if noise is None else [f"noise     {noise:.1%} of the labels really changed"]),
        f"model     {plan['model']}, {plan['parameters']:,} parameters",
        f"method    {recipe.method['name']}; epochs: {phases}",
        "",
        shown,
        "\nready to train",
    )
