"""Benchmarks: grids of runs, every method on the same data, noise, backbone, budget and seeds, and their tables."""
