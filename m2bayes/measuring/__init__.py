"""Kernels timed on the GPU at hand."""
