"""Measure the updates of the demo models, and of small models along their training; see README.md beside it.

python reports/gradients/measure.py WIKITEXT    # the file valid.txt.gz of WikiText-2; an hour on two cores
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

import attngeo
from attngeo import attention_sites, symmetry
from attngeo.attention.weights import SiteWeights
from attngeo.choices import Objective
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.text import prepare_text
from attngeo.updates import GradientCallback, read_batches
from attngeo.updates.options import GradientOptions

HERE = Path(__file__).parent
DEMO_SEEDS, TRAINING_SEEDS = range(5), range(2)
# Updates between two measurements of a training, and sequences of its length that are measured.
EVERY, SEQUENCES = 100, 192
# Tokens of the sequences of the training of the demo models, and twice as many.
LENGTHS = (32, 64)
# The recipe of the demo models, of which the first 2,000 updates are measured.
DEMO_RECIPE = {"seq_len": 32, "steps": 12_000, "batch_size": 64, "lr": 2e-3, "warmup": 500, "weight_decay": 0.1}
DEMO_RECIPES = {"mlm": DEMO_RECIPE | {"mlm_probability": 0.3}, "clm": DEMO_RECIPE}
FIRST = 2_000


class WeightCallback(TrainerCallback):
    """Copies of Wq and Wk at each measurement of a training, and one update later: step → those of each site.

    last: the update after which the training stops.
    """

    def __init__(self, last: int) -> None:
        self._copies: dict[int, list[SiteWeights]] = {}
        self._last = last

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Copy the first weights."""
        self._copy(state.global_step, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Copy the weights of a measurement, and those after the next update."""
        if state.global_step % EVERY in (0, 1):
            self._copy(state.global_step, given["model"])
        control.should_training_stop |= state.global_step >= self._last

    def _copy(self, step: int, model: Any) -> None:
        sites = attention_sites(model, dtype=torch.float64)
        self._copies[step] = [site._replace(wq=site.wq.clone(), wk=site.wk.clone()) for site in sites]

    def tabulate(self) -> pd.DataFrame:
        """Symmetry of W_qk of layers and heads, and of its change by the next update and by the next 100."""
        rows = []
        for step in range(0, max(self._copies) + 1, EVERY):
            for number, (site, wq, wk) in enumerate(self._copies[step]):
                columns = {"weight_symmetry": score_heads(wq, wk)}
                for name, updates in (("next_symmetry", 1), ("next_100_symmetry", EVERY)):
                    if step + updates in self._copies:
                        _, later_wq, later_wk = self._copies[step + updates][number]
                        change = torch.cat([later_wq, wq], -1), torch.cat([later_wk, -wk], -1)
                        columns[name] = score_heads(*change)
                heads = pd.Series([None, *range(len(wq))], dtype="Int64")
                rows.append(pd.DataFrame(columns).assign(step=step, layer=site.layer, head=heads))
        return pd.concat(rows, ignore_index=True)


def score_heads(wq: Tensor, wk: Tensor) -> list[float]:
    """The symmetry of W_qk of the layer, then of each head; wq, wk: [heads, d_model, rank]."""
    layer = symmetry(wq.transpose(0, 1).flatten(1), wk.transpose(0, 1).flatten(1))
    return [float(layer), *symmetry(wq, wk).tolist()]


def measure_demos(wikitext: str) -> pd.DataFrame:
    """Both demo models on two texts, by both objectives: five draws of 96 sequences of 32 tokens, as in training."""
    frames = [
        attngeo.gradients(model, text=text, objective=objective, sequences=96, seq_len=32, seed=seed).rows.assign(
            text=name, seed=seed
        )
        for model in ("demo:encoder", "demo:decoder")
        for name, text in (("austen", "austen"), ("wikitext-2", wikitext))
        for objective in ("mlm", "clm")
        for seed in DEMO_SEEDS
    ]
    return pd.concat(frames, ignore_index=True)


def measure_lengths() -> pd.DataFrame:
    """`demo:decoder` on the novels, with sequences as long as in training and twice as long: five draws of 96."""
    frames = [
        attngeo.gradients("demo:decoder", sequences=96, seq_len=length, seed=seed).rows.assign(
            seq_len=length, seed=seed
        )
        for length in LENGTHS
        for seed in DEMO_SEEDS
    ]
    return pd.concat(frames, ignore_index=True)


def measure_training(options: TextPretrainOptions, folder: Path, last: int) -> pd.DataFrame:
    """The first updates of a training, measured on fixed sequences of its text."""
    objective = options.objective
    seed = options.seed
    task = prepare_text(options, processes=1)
    about = GradientOptions(objective=objective, sequences=SEQUENCES, seq_len=options.seq_len, seed=1)
    callback = GradientCallback(read_batches(task.processor, about), objective)
    weights = WeightCallback(last)
    arguments = TrainingArguments(
        str(folder), max_steps=task.steps, warmup_steps=task.warmup, logging_steps=EVERY, learning_rate=options.lr,
        weight_decay=options.weight_decay, per_device_train_batch_size=options.batch_size, lr_scheduler_type="linear",
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, seed=seed,
        remove_unused_columns=False, train_sampling_strategy="sequential", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = task.make_trainer(
        task.model, arguments, train_dataset=task.data, data_collator=task.collator, processing_class=task.processor,
        callbacks=[callback, weights],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    frame = callback.frame.merge(weights.tabulate(), how="left", on=["step", "layer", "head"])
    return frame.assign(objective=objective, seed=seed)


def measure_trainings(recipes: Mapping[str, dict[str, Any]], seeds: Iterable[int]) -> Iterator[pd.DataFrame]:
    """Trainings of the preset `tiny` by both objectives; recipes: objective → other values of options."""
    for seed in seeds:
        for objective in get_args(Objective):
            options = TextPretrainOptions.of("tiny", objective=objective, seed=seed, **recipes[objective])
            with tempfile.TemporaryDirectory() as folder:
                yield measure_training(options, Path(folder), FIRST)


def write(frame: pd.DataFrame, name: str) -> None:
    """Write a table beside this file."""
    frame.to_csv(HERE / name, index=False, float_format="%.5g")


if __name__ == "__main__":
    write(measure_demos(sys.argv[1]), "demos.csv")
    write(measure_lengths(), "lengths.csv")
    write(pd.concat(measure_trainings({"mlm": {}, "clm": {}}, TRAINING_SEEDS)), "training.csv")
    write(pd.concat(measure_trainings(DEMO_RECIPES, [0])), "demo-training.csv")
