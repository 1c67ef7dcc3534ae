"""Given labels: every form in which labels come, turned into class indices or probabilities here and nowhere else."""
