"""Sweeps: one question over a grid of LLMs, TP, dtypes and workloads, kept as a Zarr store."""
