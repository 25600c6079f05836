"""Wibisono and Wang 2025 (arXiv 2501.16790): exponential family attention, its data, experiments and statements."""
