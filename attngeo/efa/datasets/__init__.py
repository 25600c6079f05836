"""Data of the paper's experiments as tidy tables: one row for each observation.

Columns: sequence (a user, a basket or a day), position (from 0 in each sequence), item (a movie, a product or a city),
and value (a rating or a temperature), if there is one. Importing this package loads no other library.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6 and appendix H, and the code that made its tables for what
the text leaves open.
"""

from attngeo.efa.datasets.catalogue import DATASETS, EXPERIMENTS, DataSet, Experiment, terms_of
from attngeo.efa.datasets.instacart import read_instacart, read_item_names, split_instacart
from attngeo.efa.datasets.loading import load_dataset, load_item_names
from attngeo.efa.datasets.movielens import (
    movielens_ratings,
    movielens_sequences,
    read_movie_titles,
    read_movielens,
    split_movielens_ratings,
    split_movielens_sequences,
)
from attngeo.efa.datasets.splits import Split, mark_validated_copies
from attngeo.efa.datasets.synthetic import split_synthetic, synthetic_ratings
from attngeo.efa.datasets.temperature import read_temperatures, split_temperatures

__all__ = [
    "DATASETS",
    "EXPERIMENTS",
    "DataSet",
    "Experiment",
    "Split",
    "load_dataset",
    "load_item_names",
    "mark_validated_copies",
    "movielens_ratings",
    "movielens_sequences",
    "read_instacart",
    "read_item_names",
    "read_movie_titles",
    "read_movielens",
    "read_temperatures",
    "split_instacart",
    "split_movielens_ratings",
    "split_movielens_sequences",
    "split_synthetic",
    "split_temperatures",
    "synthetic_ratings",
    "terms_of",
]
