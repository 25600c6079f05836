"""Attention for tables of categories: a scikit-learn classifier, and the experiments of the paper.

Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.
"""

from attngeo.tabular.classifier import AttentionClassifier, fit_together

__all__ = ["AttentionClassifier", "fit_together"]
