"""Exponential family attention: attention for sequences, baskets, ratings and space–time (Wibisono and Wang 2025)."""
