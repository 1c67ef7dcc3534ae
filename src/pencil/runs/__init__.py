"""Run directories: their layout, the label table, the summary, checkpoints; and finished runs as objects."""
