"""What a run is: every choice that its result depends on, checked before anything is done."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.choices import Objective, Task, Tracker, TrainingPrecision, one_of
from attngeo.errors import TrainingError, UsageError
from attngeo.pretrain.presets import PRESETS, S2, VISION
from attngeo.tables.atomic import atomic_write

FILE = "settings.json"
# Settings that only ask how a run is watched and kept: a resumed run may change them.
FREE = ("save_every", "report_to")
# Settings that mean something for one task only.
OF_TEXT = (
    "objective",
    "text_column",
    "tokenizer",
    "vocab_size",
    "seq_len",
    "mlm_probability",
    "pack",
    "published_text",
)
OF_IMAGES = ("epochs", "warmup_epochs", "mixup", "cutmix", "label_smoothing", "ema_decay")
# Settings that may be paths.
PATHS = ("model", "data", "tokenizer", "init")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run; `Settings.of` fills in what a model is trained with by default.

    model: a name of `PRESETS`, or the path of a transformers config.json.
    objective: masked ("mlm") or next-token ("clm") prediction; images are classified, whatever it says.
    init: see `initialise`.
    data, text_column: see `open_text` and `prepare_images`.
    tokenizer: a reference to one; "train" for one of `vocab_size` pieces trained on the data; "" for the one that the
        data set was published with, or else "train".
    steps: updates of the weights. epochs: passes over the images, where steps is 0.
    batch_size: sequences or images a device takes at once. grad_accum: batches before an update.
    lr: learning rate of AdamW after `warmup` updates, or for images `warmup_epochs`.
    seq_len: tokens. pack: cut the text into full sequences, rather than pad every document.
    published_text: join characters with spaces, as the published code did.
    log_every, save_every: updates between logs, each with scores, and between checkpoints.
    """

    model: str
    task: Task = "text"
    objective: Objective = "mlm"
    init: str = "default"
    data: str = ""
    text_column: str = ""
    tokenizer: str = ""
    vocab_size: int = 0
    steps: int = 0
    epochs: int = 0
    batch_size: int = 0
    grad_accum: int = 1
    lr: float = 0.0
    warmup: int = 0
    warmup_epochs: int = 0
    weight_decay: float = 0.0
    seq_len: int = 0
    mlm_probability: float = 0.0
    pack: bool = True
    published_text: bool = False
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    precision: TrainingPrecision = "auto"
    seed: int = 0
    log_every: int = 0
    save_every: int = 0
    report_to: Tracker = "none"

    @classmethod
    def of(cls, model: str = "tiny", *, task: Task | None = None, **given: Any) -> Settings:
        """The settings that `model` is trained with, and what is given instead. Raises UsageError.

        Settings given as None are taken as not given; where steps are, the warm-up is at most a tenth of them,
        and there are about ten logs where the usual interval would give less than five.
        """
        preset = PRESETS.get(model)
        task = task or (preset.task if preset else "text")
        if preset is not None and preset.task != task:
            fitting = ", ".join(name for name, other in PRESETS.items() if other.task == task)
            raise UsageError(f"model {model} is trained on {preset.task}s, not {task}s; expected one of: {fitting}")
        defaults = preset.settings if preset else S2 if task == "text" else VISION
        chosen = {name: value for name, value in given.items() if value is not None}
        if unknown := chosen.keys() - {field.name for field in dataclasses.fields(cls)}:
            raise UsageError(f"there is no setting {sorted(unknown)[0]!r}")
        for name in OF_TEXT if task == "image" else OF_IMAGES:
            if name in chosen:
                raise UsageError(f"{name} is for {'text' if task == 'image' else 'images'}; leave it out")
        for first, second in (("steps", "epochs"), ("warmup", "warmup_epochs")):
            if chosen.get(first) and chosen.get(second):
                raise UsageError(f"{first} and {second} contradict each other; give one of them")
        if "steps" in chosen and "epochs" not in chosen:
            tenth = chosen["steps"] // 10
            defaults = {
                **defaults,
                "epochs": 0,
                "warmup_epochs": 0,
                "warmup": min(defaults.get("warmup", tenth), tenth),
            }
            defaults["log_every"] = _logs(chosen["steps"], defaults["log_every"])
        if "warmup" in chosen and "warmup_epochs" not in chosen:
            defaults = {**defaults, "warmup_epochs": 0}
        chosen |= {name: absolute(chosen[name]) for name in PATHS if name in chosen}
        settings = cls(model=model if preset else absolute(model), task=task, **{**defaults, **chosen})
        settings.check()
        return settings

    def check(self) -> None:
        """Raise UsageError for a setting that cannot be meant."""
        for name, choices in (
            ("task", Task), ("objective", Objective), ("precision", TrainingPrecision), ("report_to", Tracker),
        ):  # fmt: skip
            one_of(name, getattr(self, name), choices)
        text = self.task == "text"
        if text and self.epochs:
            raise UsageError(f"epochs is {self.epochs}, which is for images; give --steps")
        if self.seed >= 2**32:
            raise UsageError(f"seed is {self.seed}, expected less than 2**32")
        least = {"steps": int(not self.epochs), "batch_size": 1, "grad_accum": 1, "warmup": 0, "seed": 0,
                 "log_every": 1, "save_every": 1, "seq_len": 2 * text, "vocab_size": 1 * text}  # fmt: skip
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} is {getattr(self, name)}, expected at least {bound}")
        self._check_numbers()
        if self.steps and self.warmup > self.steps:
            raise UsageError(f"warmup is {self.warmup}, expected at most the {self.steps} steps; lower --warmup")

    def _check_numbers(self) -> None:
        """Rates and shares."""
        text = self.task == "text"
        for name in ("lr", "weight_decay", "mixup", "cutmix"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (name == "lr" and value == 0):
                raise UsageError(
                    f"{name} is {value}, expected a {'positive' if name == 'lr' else 'non-negative'} number"
                )
        for name, low in (
            ("mlm_probability", text and self.objective == "mlm"),
            ("label_smoothing", False),
            ("ema_decay", False),
        ):
            value = getattr(self, name)
            if not 0 <= value < 1 or (low and value == 0):
                raise UsageError(f"{name} is {value}, expected a share between 0 and 1")

    @property
    def model_name(self) -> str:
        """The preset, or the file's name; a config.json goes by its folder."""
        path = Path(self.model).absolute()
        return path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")

    @property
    def name(self) -> str:
        """What tells this run from others like it, as a file name."""
        init = self.init if self.init in ("default", "symmetric", "identity") else "from-checkpoint"
        return "-".join([self.model_name, self.objective if self.task == "text" else "image", init, f"seed{self.seed}"])

    def write(self, folder: Path) -> None:
        """Leave the settings in a run's folder."""
        with atomic_write(folder / FILE) as path:
            path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """The settings of the run in `folder`. Raises TrainingError where there is none."""
        path = folder / FILE
        try:
            stored = json.loads(path.read_text("utf-8"))
            return cls(**stored)
        except FileNotFoundError:
            if not folder.exists():
                raise TrainingError(f"there is no folder {folder} to resume; start the run without --resume") from None
            if any(folder.glob(f"*/{FILE}")):
                raise TrainingError(
                    f"{folder} holds several runs; name one of them, or give a comparison's whole command with --resume"
                ) from None
            raise TrainingError(
                f"{folder} holds no run to resume: there is no {FILE}; start it without --resume"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(f"{path} is not readable ({error}); start the run anew in another folder") from None

    def resumed(self, given: Mapping[str, Any], folder: Path) -> Settings:
        """These settings with those of `given` that a resumed run may change. Raises UsageError for any other."""
        asked: dict[str, Any] = {
            name: absolute(value) if name in PATHS else value for name, value in given.items() if value is not None
        }
        for name, value in asked.items():
            own = getattr(self, name)
            if name not in FREE and value != (absolute(own) if name in PATHS else own):
                raise UsageError(
                    f"{folder} was started with {name} {own}, not {value}; leave it out, or start another run with -o"
                )
        settings = dataclasses.replace(self, **asked)
        settings.check()
        return settings


def _logs(steps: int, usual: int) -> int:
    """Steps between logs: as usual, or in a short run such that there are about ten, the last at its end."""
    if steps >= 5 * usual:
        return usual
    most = max(steps // 10, 1)
    return next((each for each in range(most, most // 2, -1) if steps % each == 0), most)


def absolute(reference: str) -> str:
    """A path that is there in full, so that a run is resumed from any folder; anything else as it is."""
    head, colon, path = reference.rpartition(":") if reference.startswith("jigsaw:") else ("", "", reference)
    try:
        found = Path(path).expanduser()
        return f"{head}{colon}{found.absolute()}" if path and found.exists() else reference
    except (OSError, RuntimeError, ValueError):
        return reference
