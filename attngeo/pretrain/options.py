"""The options of `attngeo pretrain`, each declared once: the library, the command and the recipe read them here.

    make_options("bert-mini", steps=1000)      TextPretrainOptions; the rest as bert-mini is trained by default
    make_options(data="digits")                ImagePretrainOptions of vit-tiny
    TextPretrainOptions.of("config.json")      a model of your own, with the options of the paper's section S2

Imports nothing heavy.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from attngeo.choices import Objective, Task, Tracker, TrainingPrecision, one_of
from attngeo.errors import UsageError
from attngeo.options import (
    COMPARISON,
    COMPUTATION,
    INPUT,
    MODEL,
    OPTIMISATION,
    RESULTS,
    RUNNING,
    Converted,
    Options,
    Shown,
    default_of,
    make_keyword,
    option,
    options_of,
    show_type,
)
from attngeo.pretrain.presets import (
    DATA_OF,
    DEFAULT_MODELS,
    DEFAULTS,
    IMAGE_DATA,
    INITS,
    PATHS,
    PRESETS,
    SCALED_INITS,
    show_presets,
)
from attngeo.scores.options import parse_scores

# The default of an option that each model has its own value for; `of` fills it in.
BY_MODEL: Any = ...
LARGEST_SEED = 2**32 - 1
# A number for each of Wq, Wk and Wv.
ThreeNumbers = tuple[float, float, float]
# Of initial weights: smaller or larger ones have products that float32 does not hold.
LEAST_STD = 1e-12
LARGEST_STD = 1e6
# A number of at least 0, as the options say.
Share = Annotated[float, Field(lt=1)]


def preset_option(name: str, help: str, *, panel: str, least: float, default: Any = BY_MODEL, **about: Any) -> Any:
    """An option with a value in each preset, which `--help` shows as its default."""
    return option(default, help, panel=panel, shown_default=show_presets(name), least=least, **about)


def parse_three(name: str, value: Any) -> Any:
    """One number for each of Wq, Wk and Wv, from one number or three; as a text, with commas between them.

    >>> parse_three("init_std", "0.05, 0.05, 0.02"), parse_three("init_std", 0.05)
    ((0.05, 0.05, 0.02), (0.05, 0.05, 0.05))
    """
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) or (isinstance(value, Sequence) and not isinstance(value, bytes)):
        numbers = [_read_number(part) for part in parts]
    else:
        numbers = [_read_number(value)]
    least = LEAST_STD if name == "init_std" else 0.0
    if len(numbers) not in (1, 3) or not all(least <= number <= LARGEST_STD for number in numbers):
        smallest = "positive numbers" if least else "numbers of at least 0"
        raise UsageError(
            f"${name} is {value!r:.60}, expected one number, or three for Wq, Wk and Wv, {smallest}, such as 0.05",
            name,
        )
    return tuple(numbers * (3 // len(numbers)))


def _read_number(part: Any) -> float:
    """A number, or a text with one; NaN for anything else."""
    if isinstance(part, bool) or not isinstance(part, str | Real):
        return math.nan
    try:
        return float(part)
    except (ValueError, OverflowError):
        return math.nan


def refuse_scale(name: str, init: str) -> None:
    """Raise UsageError if `init` sets the weights whose scale the option `name` gives."""
    if init not in SCALED_INITS:
        raise UsageError(
            f"${name} applies to $init {' and '.join(SCALED_INITS)}, not to {init}, whose weights have their own "
            "scale; leave it out",
            name,
            "init",
        )


class PretrainOptions(Options):
    """Options of a training run, on text or on images. Raises UsageError for an invalid value.

    Make them with `of`, which fills in the model's default options.
    """

    TASK: ClassVar[Task]

    model: str = option(
        BY_MODEL,
        f"Model: {', '.join(PRESETS)}, or a transformers config.json",
        panel=MODEL,
        metavar="NAME|CONFIG.json",
        shown_default="tiny; vit-tiny for images",
    )
    task: Task = option(BY_MODEL, "Kind of data", panel=MODEL, shown_default="the model's")
    init: str = option(
        "default",
        "Initial Wq and Wk; REF copies them from a checkpoint",
        panel=MODEL,
        metavar="default|symmetric|identity|published|REF",
    )
    init_std: Converted[float | Sequence[float] | str | None, ThreeNumbers | None] = option(
        None,
        "Standard deviation of the initial Wq, Wk and Wv: a number, or three with commas",
        advanced=True,
        panel=MODEL,
        metavar="STD[,STD,STD]",
        shown_default="the model's own",
        parse=partial(parse_three, "init_std"),
    )
    init_bias: Converted[float | Sequence[float] | str | None, ThreeNumbers | None] = option(
        None,
        "The same for the biases of queries, keys and values, which are drawn anew",
        advanced=True,
        panel=MODEL,
        metavar="STD[,STD,STD]",
        shown_default="the model's own",
        parse=partial(parse_three, "init_bias"),
    )
    data: str = option(
        BY_MODEL,
        "Text: austen (bundled), repeats (random syllables, repeated), a file, a folder, "
        "org/name[:config][@revision][#split] on the Hub, wikipedia, "
        "redpajama or jigsaw:train.csv; images: digits, cifar10, a folder or a Hub data set",
        panel=INPUT,
        metavar="REF",
        shown_default=show_presets("data"),
    )
    steps: int = preset_option("steps", "Number of weight updates", panel=OPTIMISATION, least=0, default=0)
    batch_size: int = preset_option(
        "batch_size", "Sequences or images per device and batch", panel=OPTIMISATION, least=1
    )
    grad_accum: int = preset_option("grad_accum", "Batches per update", advanced=True, panel=OPTIMISATION, least=1)
    lr: float = preset_option("lr", "Peak learning rate of AdamW", panel=OPTIMISATION, least=0)
    warmup: int = preset_option(
        "warmup",
        "Updates before the learning rate reaches its peak",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        default=0,
    )
    weight_decay: float = preset_option(
        "weight_decay", "Weight decay of AdamW", advanced=True, panel=OPTIMISATION, least=0
    )
    precision: TrainingPrecision = option(
        "auto", "Number type; auto is mixed precision on a GPU, otherwise fp32", advanced=True, panel=COMPUTATION
    )
    seed: int = option(
        0,
        "Seed of the weights, the order of the data, and the masks or mixed images",
        panel=COMPUTATION,
        least=0,
        most=LARGEST_SEED,
    )
    log_every: int = preset_option(
        "log_every", "Updates between logs; every log includes the scores", panel=RESULTS, least=1
    )
    scores: Sequence[str] = option(
        (),
        "Optional scores to record as well, named as for attngeo score; or all",
        advanced=True,
        panel=RESULTS,
        metavar="LIST",
        parse=parse_scores,
    )
    report_to: Tracker = option("none", "Experiment tracker that also gets the logs", advanced=True, panel=RESULTS)
    save_every: int = preset_option(
        "save_every",
        "Updates between checkpoints; only the last two checkpoints are kept, but the scores of every log are",
        advanced=True,
        panel=RUNNING,
        least=1,
    )

    def _check(self) -> None:
        for name in ("init_std", "init_bias"):
            if getattr(self, name) is not None:
                refuse_scale(name, self.init)
        if self.lr == 0:
            raise UsageError(f"$lr is {self.lr}, expected a positive number", "lr")
        if self.steps and self.warmup > self.steps:
            raise UsageError(f"$warmup is {self.warmup}, expected at most the {self.steps} steps; lower it", "warmup")

    @classmethod
    def of(cls, model: str = "", **options: Any) -> Self:
        """The options of a run of `model`. Options you omit take the model's defaults.

        If you give `steps`, the default warm-up is at most a tenth of them, and a short run logs about ten times.

        Args:
            model: a preset such as "tiny", or the path of a transformers config.json.
            **options: options by name; None means not given.

        Returns:
            The checked options.

        Raises:
            UsageError: an option has an invalid value, or belongs to the other task.
        """
        data = DATA_OF[cls.TASK]
        model = model or DEFAULT_MODELS[cls.TASK]
        preset = PRESETS.get(model)
        if preset is not None and preset.task != cls.TASK:
            names = ", ".join(name for name, other in PRESETS.items() if other.task == cls.TASK)
            raise UsageError(f"model {model} trains on {DATA_OF[preset.task]}, not on {data}; expected one of: {names}")
        chosen = {name: value for name, value in options.items() if value is not None}
        for other in OPTIONS_CLASSES.values():
            for name in chosen.keys() & options_of(other).keys() - options_of(cls).keys():
                problem = f"${name} applies to {DATA_OF[other.TASK]}, but this run uses {data}"
                raise UsageError(f"{problem}; leave it out", name)
        if chosen.get("objective") == "clm":
            refuse_masking(chosen)
        defaults = preset.options if preset else DEFAULTS[cls.TASK]
        chosen |= {name: make_absolute(name, chosen[name]) for name in PATHS if name in chosen}
        filled = {**_adapt(defaults, chosen), **chosen}
        return cls(model=make_absolute("model", model), task=cls.TASK, **filled)

    @property
    def model_name(self) -> str:
        """Name of the preset or the file; for a config.json, name of its folder."""
        path = Path(self.model).absolute()
        return path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")

    @property
    def objective_name(self) -> str:
        """Objective, as named in tables and folders: mlm, clm or image."""
        return self.TASK

    @property
    def run_name(self) -> str:
        """Name for this run, which can be used as a file name."""
        init = self.init if self.init in INITS else "from-checkpoint"
        return "-".join([self.model_name, self.objective_name, init, f"seed{self.seed}"])


class TextPretrainOptions(PretrainOptions):
    """Options of a run on text: an encoder that predicts masked tokens, or a decoder that predicts the next token."""

    TASK: ClassVar[Task] = "text"

    objective: Objective = option("mlm", "Objective: predict masked tokens or the next token", panel=MODEL)
    mlm_probability: Share = preset_option(
        "mlm_probability", "Share of tokens to mask", advanced=True, panel=MODEL, least=0
    )
    text_column: str = option(
        "", "Column with the text, for a table", advanced=True, panel=INPUT, shown_default="text", metavar="COLUMN"
    )
    tokenizer: str = option(
        "",
        "Tokeniser: train one on the data, or use one from a folder or the Hub",
        panel=INPUT,
        metavar="train|REF",
        shown_default="the data set's, else train",
    )
    vocab_size: int = preset_option(
        "vocab_size", "Vocabulary size of a tokeniser trained on the data", panel=INPUT, least=1
    )
    pack: bool = option(
        True,
        "Join documents and cut them into full sequences; otherwise pad each document",
        advanced=True,
        panel=INPUT,
        shown_default="pack",
    )
    space_characters: bool = option(
        False, "Join the characters with spaces, like the paper's published code", advanced=True, panel=INPUT
    )
    masked_decoder: bool = option(
        False,
        "With clm, mask inputs as for mlm and predict only masked tokens, like the paper's published code",
        advanced=True,
        panel=MODEL,
    )
    symmetry_penalty: float = option(
        0.0,
        "λ of a penalty λ·‖M_n‖²/‖M‖², a mean over layers, where M_n is the skew-symmetric part of M; the logged loss "
        "is without it",
        advanced=True,
        panel=MODEL,
        least=0,
    )
    tie_query_key: bool = option(
        False, "Use one matrix as Wq and Wk, so that each head stays symmetric", advanced=True, panel=MODEL
    )
    seq_len: int = preset_option("seq_len", "Tokens per sequence", panel=INPUT, least=2)

    def _check(self) -> None:
        if not self.steps:
            raise UsageError("$steps is 0, expected at least 1", "steps")
        if self.tie_query_key and self.init not in SCALED_INITS:
            raise UsageError(
                f"$tie_query_key applies to $init {' and '.join(SCALED_INITS)}, not to {self.init}, whose Wq and Wk "
                "differ; leave it out",
                "tie_query_key",
                "init",
            )
        if self.objective == "mlm" and self.mlm_probability == 0:
            raise UsageError("$mlm_probability is 0, so nothing would be predicted; raise it", "mlm_probability")

    @property
    def objective_name(self) -> str:
        """Objective: mlm or clm."""
        return self.objective

    @property
    def masks_inputs(self) -> bool:
        """Whether some of the input tokens are masked, and only these are predicted."""
        return self.objective == "mlm" or self.masked_decoder


class ImagePretrainOptions(PretrainOptions):
    """Options of a run on images: a classifier trained as in Saponati et al. 2025, section S3."""

    TASK: ClassVar[Task] = "image"

    epochs: int = preset_option(
        "epochs", "Passes over the images, instead of a number of steps", panel=OPTIMISATION, least=0, default=0
    )
    warmup_epochs: int = preset_option(
        "warmup_epochs",
        "Epochs of warm-up, instead of steps",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        default=0,
    )
    mixup: float = preset_option(
        "mixup", "α of mixup's Beta distribution; 0 for none", advanced=True, panel=OPTIMISATION, least=0
    )
    cutmix: float = preset_option(
        "cutmix", "α of cutmix's Beta distribution; 0 for none", advanced=True, panel=OPTIMISATION, least=0
    )
    label_smoothing: Share = preset_option(
        "label_smoothing", "Label smoothing", advanced=True, panel=OPTIMISATION, least=0
    )
    ema_decay: Share = preset_option(
        "ema_decay",
        "Decay of the moving average of the weights; adapted to the batch size and the number of epochs",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
    )

    def _check(self) -> None:
        if not self.steps and not self.epochs:
            raise UsageError("$steps and $epochs are both 0; set one of them to 1 or more", "steps", "epochs")


RunOptions = TextPretrainOptions | ImagePretrainOptions
OPTIONS_CLASSES: Mapping[Task, type[RunOptions]] = {"text": TextPretrainOptions, "image": ImagePretrainOptions}


def parse_names(text: Any) -> Any:
    """The names in a text such as "default, symmetric"; a list is returned unchanged.

    >>> parse_names("default, symmetric")
    ['default', 'symmetric']
    """
    return [name.strip() for name in text.split(",")] if isinstance(text, str) else text


class ComparisonOptions(Options):
    """Options of a comparison of runs. Raises UsageError for an invalid value."""

    compare: Sequence[str] | None = option(
        None,
        "Initialisations to compare; the first is the baseline",
        panel=COMPARISON,
        metavar="INIT,INIT",
        parse=parse_names,
    )
    objectives: Sequence[str] | None = option(
        None,
        "Objectives to train with",
        in_command=" (with --compare)",
        advanced=True,
        panel=COMPARISON,
        metavar="mlm,clm",
        parse=parse_names,
    )
    seeds: int = option(1, "Number of seeds", in_command=" (with --compare)", panel=COMPARISON, least=1)

    def _check(self) -> None:
        for name in ("objectives", "seeds"):
            if self.compare is None and getattr(self, name) != default_of(type(self), name):
                raise UsageError(f"${name} requires $compare; leave it out for a single run", name, "compare")
        for objective in self.objectives or ():
            one_of("objectives", objective, Objective)


def separate_comparison(options: Mapping[str, Any]) -> tuple[ComparisonOptions, dict[str, Any]]:
    """Split options into the options of a comparison and the options of its runs. Raises UsageError."""
    chosen = {name: value for name, value in options.items() if value is not None}
    compared = {name: chosen[name] for name in options_of(ComparisonOptions) if name in chosen}
    comparison = ComparisonOptions(**compared)
    rest = {name: value for name, value in chosen.items() if name not in compared}
    if comparison.compare is not None and "init" in rest:
        raise UsageError(
            "$init and $compare contradict each other; name all initialisations in $compare", "init", "compare"
        )
    if comparison.objectives is not None and "mlm" not in comparison.objectives:
        refuse_masking(rest)
    return comparison, rest


def refuse_masking(options: Mapping[str, Any]) -> None:
    """Raise UsageError if `mlm_probability` is given for a run that masks no tokens."""
    if "mlm_probability" in options and not options.get("masked_decoder"):
        raise UsageError(
            "$mlm_probability applies to $objective mlm, but the objective is clm; leave it out",
            "mlm_probability",
            "objective",
        )


def make_options(model: str = "", *, task: Task | None = None, **options: Any) -> RunOptions:
    """The options of a run. Options you omit take the model's defaults.

    If you give `steps`, the default warm-up is at most a tenth of them, and a short run logs about ten times.

    Args:
        model: a preset such as "tiny", or the path of a transformers config.json; by default the task's smallest model.
        task: "text" or "image"; by default the task of the model, or without a model "image" for the data digits and
            cifar10, else "text".
        **options: options by name; None means not given.

    Returns:
        TextPretrainOptions or ImagePretrainOptions.

    Raises:
        UsageError: an option has an invalid value, or belongs to the other task.
    """
    preset = PRESETS.get(model or "")
    if task is None and preset is not None:
        task = preset.task
    if task is None:
        task = "image" if options.get("data") in IMAGE_DATA else "text"
    return OPTIONS_CLASSES[one_of("task", task, Task)].of(model or "", **options)


def _sign_with_options(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function with the options of both tasks in place of `**options`."""
    own = inspect.signature(function)
    keywords = {}
    for parameter in own.parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            keywords[parameter.name] = parameter.replace(annotation=Shown(show_type(parameter.annotation)))
    for options_class in OPTIONS_CLASSES.values():
        for name in options_of(options_class):
            keyword = make_keyword(options_class, name)
            if keyword.default is inspect.Parameter.empty:  # what each model has its own value for
                keyword = keyword.replace(default=None, annotation=Shown(f"{keyword.annotation!r} | None"))
            keywords.setdefault(name, keyword)
    return inspect.Signature([*keywords.values()], return_annotation=Shown(show_type(own.return_annotation)))


make_options.__signature__ = _sign_with_options(make_options)  # type: ignore[attr-defined]


def make_absolute(option: str, reference: str) -> str:
    """An existing path as an absolute one, so that a run can be resumed from any folder; else the reference itself."""
    if reference in PATHS[option]:
        return reference
    prefix = "jigsaw:" if reference.startswith("jigsaw:") else ""
    name = reference.removeprefix(prefix)
    try:
        path = Path(name).expanduser()
        return f"{prefix}{path.absolute()}" if name and path.exists() else reference
    except (OSError, RuntimeError, ValueError):
        return reference


def _adapt(defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A model's default options, fitted to the length that is chosen. Raises UsageError for a contradiction."""
    for first, second in (("steps", "epochs"), ("warmup", "warmup_epochs")):
        if chosen.get(first) and chosen.get(second):
            raise UsageError(f"${first} and ${second} contradict each other; give one of them", first, second)
    adapted = dict(defaults)
    steps = chosen.get("steps")
    if isinstance(steps, int) and "epochs" not in chosen:
        adapted["log_every"] = _fit_interval(steps, defaults["log_every"])
        adapted["warmup"] = 0 if "warmup_epochs" in chosen else min(defaults.get("warmup", steps), steps // 10)
        adapted.pop("epochs", None)
        adapted.pop("warmup_epochs", None)
    elif "warmup" in chosen:
        adapted.pop("warmup_epochs", None)
    return adapted


def _fit_interval(steps: int, usual: int) -> int:
    """Steps between logs: as usual, or in a short run so that there are about ten, the last of them at its end."""
    if steps >= 5 * usual:
        return usual
    longest = max(steps // 10, 1)
    for interval in range(longest, longest // 2, -1):
        if steps % interval == 0:
            return interval
    return longest
