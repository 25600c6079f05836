"""Attention for tables of categories: a classifier of scikit-learn's kind (Wibisono & Wang 2023, section 3)."""
