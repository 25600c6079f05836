"""Saponati et al. 2025, The underlying structures of self-attention (arXiv 2502.10927)."""
