"""Inputs: tensors, images, records and texts, and their path from raw values to network inputs."""
