"""Wibisono and Wang 2023, Bidirectional attention as a mixture of continuous word experts (arXiv 2307.04057)."""
