"""Readers of measurements, one module a family of files."""
