"""``pencil recipes``: list the recipes that ship with pencil, or print one in full."""

from itertools import groupby

import typer

from pencil.cli.commands import Command, Group
from pencil.cli.output import echo

app = typer.Typer(cls=Group, help="List the recipes that ship with pencil, or show one.", invoke_without_command=True)


@app.callback()
def recipes(context: typer.Context) -> None:
    """List the recipes that ship with pencil."""
    if context.invoked_subcommand is not None:
        return
    from pencil import recipe
    from pencil.cli.show import say

    families = groupby(recipe.shipped().items(), key=lambda item: item[1].get("description", ""))
    for description, members in families:
        say(description)
        for name, tree in members:
            say(f"  {name:<34}{tree.get('paper', '')}".rstrip())
    say("\nsee one      pencil recipes show NAME\nrun one      pencil train NAME")


@app.command(cls=Command)
def show(name: str = typer.Argument(help="A recipe name, or a .toml file.")) -> None:
    """Print a recipe with every default spelled out."""
    from pencil import recipe

    shown = recipe.parse(recipe.find(name), name, skip_refused=True)
    echo(shown.to_toml(), nl=False)
    if "method.name" in shown.refused_files():
        echo(f"the defaults of {shown.method['name']} are missing because its file was not run", err=True)
