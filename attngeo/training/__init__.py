"""Training of small models: one loop, with seeded batches, early stopping, whole checkpoints and signals.

    train(model, batches, TrainingOptions(epochs=200, seed=1), validation=held_out)

The models of `attngeo.tabular` and `attngeo.efa` are trained by it; language models by `attngeo.pretrain`.
"""

from attngeo.training.batches import Batches, TensorBatches, draw_generator
from attngeo.training.loop import History, make_optimizer, train
from attngeo.training.options import TrainingOptions

__all__ = ["Batches", "History", "TensorBatches", "TrainingOptions", "draw_generator", "make_optimizer", "train"]
