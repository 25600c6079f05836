"""A training run on images: classifiers by the recipe of Saponati et al. 2025 (arXiv 2502.10927), section S3.

If that section gives no number, it is that of torchvision's recipe for ViT-B/16, which it follows otherwise: the
average of the weights, mixup and cutmix are those of references/classification in github.com/pytorch/vision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Subset
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from attngeo.bounds.machine import available_cores
from attngeo.errors import DataError, UsageError
from attngeo.pretrain.image_data import ImageSplit, ShuffledImages, make_processor, open_images, unwrap_worker_errors
from attngeo.pretrain.initialisation import check_init, initialize
from attngeo.pretrain.models import build_model, configure_images, read_config
from attngeo.pretrain.options import ImagePretrainOptions
from attngeo.pretrain.trainer import LabelCount, RunTrainer, TrainingTask

# If a configuration has no image_size.
IMAGE_SIZE = 224
EMA_FILE = "average.safetensors"
# Updates of the model between two of the average (Saponati et al. 2025, S3).
EMA_EVERY = 32
# S3: the learning rate at step 0, as a share of the peak.
FIRST_RATE = 0.033
# Processes that decode images for each GPU.
MOST_WORKERS = 8
# Makes the draws of mixup and cutmix differ from others of the same seed.
STREAM = 1


def prepare_images(options: ImagePretrainOptions, processes: int) -> TrainingTask:
    """Everything that a run on images needs. Raises UsageError, DataUnavailableError and DataError."""
    size = read_image_size(read_config(options.model, options.objective_name), options.model)
    check_init(options.init)
    data = open_images(options.data, seed=options.seed)
    processor = make_processor(size, data.channels)
    train = ImageSplit(data, "train", processor)
    test = ImageSplit(data, "test", processor)
    batch = options.batch_size * processes
    if len(train) < batch:
        raise DataError(
            f"{data.name} has {len(train):,} training images, expected at least one batch of {batch}; give more "
            "images, or lower $batch_size",
            "batch_size",
        )
    images_per_update = batch * options.grad_accum
    updates_per_epoch = math.ceil(len(train) / images_per_update)
    steps, warmup = _count_steps(options, updates_per_epoch)
    images = steps * images_per_update
    transformers.set_seed(options.seed)  # the weights depend on the seed alone, not on earlier draws
    model = build_model(configure_images(options, data.labels, data.channels), options.objective_name)
    changed = initialize(model, options.init, seed=options.seed, init_std=options.init_std, init_bias=options.init_bias)
    decay = adapt_decay(options.ema_decay, images_per_update, steps / updates_per_epoch)
    average = start_average(model, decay)
    return TrainingTask(
        model=model,
        data=ShuffledImages(train, images, options.seed),
        collator=MixupCutmixCollator(len(data.labels), options.mixup, options.cutmix, options.seed),
        processor=processor,
        make_trainer=partial(ImageTrainer, average=average, smoothing=options.label_smoothing),
        steps=steps,
        warmup=warmup,
        changed=changed,
        about={
            "name": data.name,
            "images": len(train),
            "test_images": len(test),
            "labels": len(data.labels),
            "label_column": data.column,
            "epochs": round(images / len(train), 3),
            "channels": data.channels,
            "image_size": size,
            "ema_decay": decay,
        },
        unit="images",
        count_units=int,  # a sequence is an image
        others={"model-ema": average.module},
        evaluate=partial(evaluate, test, average, options.label_smoothing),
    )


def _count_steps(options: ImagePretrainOptions, updates_per_epoch: int) -> tuple[int, int]:
    """Steps of the run, and of its warm-up."""
    steps = options.steps or options.epochs * updates_per_epoch
    warmup = options.warmup or options.warmup_epochs * updates_per_epoch
    if warmup > steps:
        raise UsageError(
            f"$warmup_epochs is {options.warmup_epochs}, which makes {warmup} steps, expected at most the {steps} of "
            "the run; give the warm-up in steps, with $warmup",
            "warmup_epochs",
            "warmup",
        )
    return steps, warmup


def read_image_size(config: PreTrainedConfig, name: str) -> int:
    """Height and width of a model's images. Raises UsageError if they differ or are not multiples of the patch size."""
    config = getattr(config, "vision_config", config)
    sizes = np.atleast_1d(getattr(config, "image_size", None) or IMAGE_SIZE).tolist()
    patches = np.atleast_1d(getattr(config, "patch_size", None) or 1).tolist()
    size = int(sizes[0])
    if len({*sizes}) > 1 or any(size % patch for patch in patches):
        raise UsageError(
            f"image_size is {sizes} and patch_size {patches}, expected square images whose size is a multiple of the "
            "patch size; change one of them",
            subject=name,
        )
    return size


@unwrap_worker_errors()
@torch.inference_mode()
def evaluate(split: ImageSplit, average: AveragedModel, smoothing: float, trainer: RunTrainer) -> Mapping[str, float]:
    """Mean loss (with label smoothing, as in training) and accuracy, of the model ("eval") and the average ("ema")."""
    args = trainer.args
    share = Subset(split, range(args.process_index, len(split), args.world_size))
    batches = DataLoader(share, args.per_device_train_batch_size, num_workers=args.dataloader_num_workers)
    models: dict[str, Any] = {"eval": trainer.model, "ema": average.module}
    for model in models.values():
        model.train(mode=False)
    sums = torch.zeros(len(models), 2, device=args.device)  # of losses, and of right answers
    for batch, batch_labels in batches:
        images = batch.to(args.device)
        labels = batch_labels.to(args.device)
        for row, model in zip(sums, models.values(), strict=True):
            with trainer.accelerator.autocast():
                logits = model(pixel_values=images)["logits"]
            row[0] += soft_cross_entropy(logits, labels, smoothing) * len(labels)
            row[1] += (logits.argmax(-1) == labels).sum()
    means = (trainer.accelerator.reduce(sums, "sum") / len(split)).tolist()
    measured = {}
    for name, (loss, accuracy) in zip(models, means, strict=True):
        measured[f"{name}_loss"] = round(loss, 6)
        measured[f"{name}_accuracy"] = round(accuracy, 6)
    return measured


def make_schedule(optimizer: Optimizer, warmup: int, steps: int) -> LambdaLR:
    """The learning rate: a linear warm-up from 0.033 of its peak, then a cosine down to 0."""

    def share(step: int) -> float:
        if step < warmup:
            return FIRST_RATE + (1 - FIRST_RATE) * step / warmup
        progress = min((step - warmup) / max(steps - warmup, 1), 1)
        return (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, share)


def soft_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Mean cross-entropy of a batch; targets are labels [batch], or shares of the labels [batch, labels]."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)


def image_workers(args: TrainingArguments) -> int:
    """The number of processes that decode images for this one; 0 if it decodes them itself, as without a GPU."""
    if args.device.type != "cuda":
        return 0
    cores: int = available_cores() // args.world_size
    return min(MOST_WORKERS, cores)


class ImageTrainer(RunTrainer):
    """Trains a classifier on shares of labels, with a cosine schedule, and averages its weights.

    average: average of the model's weights, which checkpoints also save. smoothing: label smoothing.
    """

    def __init__(self, *args: Any, average: AveragedModel, smoothing: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # All batches have one size, so the mean over accumulated batches is the mean of their means.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = False
        self._average = average.to(self.args.device)
        self._smoothing = smoothing
        self.args.dataloader_num_workers = image_workers(self.args)
        self.add_callback(UpdateEMA(average, self.args.warmup_steps))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: LabelCount = None,  # noqa: ARG002 - the Trainer's signature
    ) -> Any:
        """Cross-entropy with the label shares of a batch."""
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = soft_cross_entropy(outputs["logits"], inputs["targets"], self._smoothing)
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """See `make_schedule`."""
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = make_schedule(
                optimizer or cast("Optimizer", self.optimizer), warmup, num_training_steps
            )
        return self.lr_scheduler

    def save_state_of_run(self, checkpoint: Path) -> None:
        """Save the average."""
        save_model(self._average, str(checkpoint / EMA_FILE))

    def load_state_of_run(self, checkpoint: Path) -> None:
        """Load the average."""
        load_model(self._average, checkpoint / EMA_FILE)

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the start if it is None."""
        with unwrap_worker_errors():
            super().resume(checkpoint)


def start_average(model: PreTrainedModel, decay: float) -> AveragedModel:
    """The exponential moving average of a model's weights, `module`: decay · average + (1 − decay) · weights."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)  # type: ignore[no-untyped-call]


def adapt_decay(decay: float, images: int, epochs: float) -> float:
    """The decay of one update of the average, which happens every 32 updates of `images` images each.

    1 − min(1, (1 − decay) · images · 32 / epochs); decay is 0.99998 in S3. So a run forgets equally much for any batch
    size and number of epochs, but less with a smaller data set: with ImageNet the average spans a 25th of the run, with
    CIFAR-10 all of it, and with fewer images it stays near the weights at the end of the warm-up.
    """
    return 1 - min(1.0, (1 - decay) * images * EMA_EVERY / epochs)


@dataclass(eq=False)
class UpdateEMA(TrainerCallback):
    """Updates the average at steps 1, 33, 65 …; during the warm-up, it copies the model instead."""

    average: AveragedModel
    warmup: float

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:  # noqa: ARG002
        """Update the average if it is due at this step."""
        if state.global_step % EMA_EVERY == 1:
            self.average.update_parameters(given["model"])
            if state.global_step <= self.warmup:
                self.average.n_averaged.zero_()


@dataclass(frozen=True)
class MixupCutmixCollator:
    """Makes batches: pixel_values [batch, channels, height, width] and targets [batch, labels] whose rows sum to 1.

    Each batch uses mixup or cutmix: every image, and its label, is mixed with the one before it. The draws depend only
    on the seed and on the number `index` of the batch's first image, so they stay the same after a run is resumed, and
    with any number of processes.

    Attributes:
        labels: number of labels.
        mixup: α of the distribution Beta(α, α) of mixup's shares; 0 for no mixup.
        cutmix: α of the distribution Beta(α, α) of cutmix's shares; 0 for no cutmix.
        seed: seed of the draws.

    Sources: Zhang et al. 2018 (arXiv 1710.09412), Yun et al. 2019 (arXiv 1905.04899).
    """

    labels: int
    mixup: float
    cutmix: float
    seed: int

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch of these images."""
        images = torch.stack([example["pixel_values"] for example in examples])
        numbers = torch.tensor([example["label"] for example in examples])
        targets = F.one_hot(numbers, self.labels).to(images.dtype)
        random = np.random.default_rng((self.seed, int(examples[0]["index"]), STREAM))
        alphas = {"mixup": self.mixup, "cutmix": self.cutmix}
        ways = [way for way, alpha in alphas.items() if alpha > 0]
        if ways:
            way = ways[random.integers(len(ways))]
            share = float(random.beta(alphas[way], alphas[way]))
            if way == "mixup":
                images, targets = mixup(images, targets, share)
            else:
                rows, columns = draw_box(share, images.shape[-2], images.shape[-1], random)
                images, targets = cutmix(images, targets, rows, columns)
        return {"pixel_values": images, "targets": targets}


def mixup(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """`share` of each image and target, plus 1 − `share` of the image and target before it."""
    return torch.lerp(images.roll(1, 0), images, share), torch.lerp(targets.roll(1, 0), targets, share)


def cutmix(images: Tensor, targets: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
    """Each image with a box from the image before it, and the same share of that image's target."""
    mixed = images.clone()
    mixed[..., rows, columns] = images.roll(1, 0)[..., rows, columns]
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    share = 1 - area / (images.shape[-2] * images.shape[-1])
    return mixed, torch.lerp(targets.roll(1, 0), targets, share)


def draw_box(share: float, height: int, width: int, random: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box of about 1 − `share` of an image, around a random point, cut off at the edges."""
    half = 0.5 * math.sqrt(1 - share)
    edges = []
    for length in (height, width):
        centre = int(random.integers(length))
        reach = int(half * length)
        edges.append(slice(max(centre - reach, 0), min(centre + reach, length)))
    return edges[0], edges[1]
