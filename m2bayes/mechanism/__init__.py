"""Closed-form laws of one GPU operator, one a file; each runs on floats, draws and PyTensor."""
