"""Grids of runs: every method on the same data, noise, backbone, budget and seeds, and tables of what came out."""
