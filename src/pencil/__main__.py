"""``python -m pencil`` is the command line."""

from pencil.cli import main

main()
