"""What `pencil check` finds in the data: bad files, duplicates, rows in several splits, and cells for display."""
