"""Run directories: layout, label table, summary and checkpoints; and finished runs as objects."""
