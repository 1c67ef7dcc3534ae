"""What `pencil check` finds in the data: bad files, duplicates, rows in several splits, cells for people."""
