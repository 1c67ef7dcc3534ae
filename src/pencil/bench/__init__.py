"""Benchmarks: grids of runs with the same data, noise, backbone, budget and seeds for every method; and tables."""
