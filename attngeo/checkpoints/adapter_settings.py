"""What adapter_config.json of a PEFT adapter of the method LoRA states, and what that means for queries and keys.

Every setting of PEFT's `LoraConfig` is in one of three tables. One that is in none is refused, unless it is off.
Source: https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attngeo.bounds.names import printable
from attngeo.checkpoints.files import ADAPTER
from attngeo.checkpoints.patterns import PatternError, matches, matches_start
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

MERGE = "merge it with PEFT's merge_and_unload, and give that checkpoint"
APPLIED = frozenset({
    "alpha_pattern", "base_model_name_or_path", "exclude_modules", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "modules_to_save", "peft_type", "r", "rank_pattern", "revision",
    "target_modules", "target_parameters", "use_dora", "use_rslora",
})  # fmt: skip
# Setting → why it does not change what is computed of queries and keys.
WITHOUT_EFFECT = {
    "auto_mapping": "it names the class of the base, not its weights",
    "bias": "the file has the biases that were trained, and these are read",
    "corda_config": "it is about an initialisation that is refused",
    "enable_lora": "a setting of 2023, which PEFT does not read any more",
    "ensure_weight_tying": "it ties embeddings",
    "eva_config": "it is about the first values of the factors, which are stored after training",
    "fan_in_fan_out": "PEFT takes the layout of each layer from its class when it loads the adapter",
    "inference_mode": "it freezes the factors",
    "loftq_config": "it is about an initialisation that is refused",
    "lora_dropout": "it is for training",
    "lora_ga_config": "it is about an initialisation that is refused",
    "megatron_core": "it is read with megatron_config only, which is refused",
    "merge_weights": "a setting of 2023, which PEFT does not read any more",
    "peft_version": "it does not change how PEFT reads a file",
    "qalora_group_size": "it is read with use_qalora only, which is refused",
    "runtime_config": "PEFT does not read it from a file",
    "task_type": "it chooses the head",
    "trainable_token_indices": "it is about rows of embeddings",
}
# Setting → why an adapter that has it switched on is refused. PEFT merges those of `NOT_MERGED` into no weights.
NOT_MERGED = {
    "alora_invocation_tokens": "the update is for some of the tokens only",
    "arrow_config": "the adapter is chosen for each token",
    "layer_replication": "layers of the base are repeated, and each has an update of its own",
}
REFUSED = NOT_MERGED | {
    "kasa_config": "it has changed the weights of the base as well",
    "lora_bias": "the update has a bias of its own",
    "megatron_config": "the layers are those of Megatron",
    "monteclora_config": "the update is drawn at random",
    "use_bdlora": "the factors are stored as blocks",
    "use_qalora": "the inputs are pooled before they are multiplied",
    "velora_config": "the adapter has further tensors",
}
# What has been done to the base of a model in memory.
IN_MEMORY = ("layer_replication",)
# Initialisations that leave the base as it is: as they are written, and those that PEFT compares in lower case.
INITIALISATIONS = ("eva", "orthogonal")
LOWER_CASE_INITIALISATIONS = ("gaussian", "mica")
# How PEFT finds the number of a layer in the name of a module, if no layers_pattern says what comes before it.
LAYER = r".*?\.[^.]*\.(?P<number>\d+)\."
MOST_DIGITS = 9
# The characters of a name in a message.
LONGEST_NAME = 150
# PEFT's rank and alpha if none is stated.
RANK_AND_ALPHA = 8
PLAIN_NAME = re.compile(r"\w+", re.ASCII)


class LoraSettings:
    """The settings of one adapter.

    Args:
        fields: its adapter_config.json.
        has_own_base: whether the weights of the base are those that the adapter was trained on, whatever it started
            with, as in a model in memory.

    Raises:
        UnsupportedModelError: Another method than LoRA and DoRA, or a setting that is in no table or refused there.
        CorruptCheckpointError: A value that PEFT does not take, or takes for something else.
    """

    def __init__(self, fields: Mapping[str, Any], *, has_own_base: bool = False) -> None:
        self._fields = fields
        self._numbers: dict[tuple[str, str], Any] = {}  # setting and module → its number
        if fields.get("peft_type") != "LORA":
            raise UnsupportedModelError(
                f"an adapter of the method {fields.get('peft_type')!r:.40}, expected LORA; {MERGE}"
            )
        for name, value in fields.items():
            is_known = name in APPLIED or name in WITHOUT_EFFECT or (has_own_base and name in IN_MEMORY)
            if value and not is_known:
                reason = REFUSED.get(name, "it is unknown to this version of attngeo")
                advice = "score its base" if name in NOT_MERGED else MERGE
                raise UnsupportedModelError(f"{ADAPTER} has {name!r:.60} = {value!r:.60}: {reason}; {advice}")
        self.use_dora = self._read_switch("use_dora")
        self._use_rslora = self._read_switch("use_rslora")
        if not has_own_base:
            self._check_initialisation(fields.get("init_lora_weights", True))

    def _read_switch(self, name: str) -> bool:
        """A setting that is on or off. PEFT takes every text, "false" as well, as on."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise CorruptCheckpointError(f"{ADAPTER} has {name} = {value!r:.60}, expected true or false; correct it")
        return bool(value)

    def _check_initialisation(self, value: Any) -> None:
        """Raise if the factors started with values that were subtracted from the base, or if PEFT refuses the value."""
        is_harmless = value is None or isinstance(value, bool)
        if isinstance(value, str):
            is_harmless = value in INITIALISATIONS or value.lower() in LOWER_CASE_INITIALISATIONS
        if not is_harmless:
            raise UnsupportedModelError(
                f"{ADAPTER} has init_lora_weights = {value!r:.40}, which changes the weights of the base "
                f"as well, or is unknown; {MERGE}"
            )

    @property
    def base(self) -> str:
        """The model that the adapter was trained on. Raises CorruptCheckpointError if none is named."""
        base = self._fields.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            raise CorruptCheckpointError(f"{ADAPTER} names the base {base!r:.80}, expected a model; correct it")
        return base

    @property
    def revision(self) -> str | None:
        """The revision of the base, if it is on the Hub. Raises CorruptCheckpointError."""
        revision = self._fields.get("revision")
        if revision is not None and not isinstance(revision, str):
            raise CorruptCheckpointError(
                f"{ADAPTER} has revision = {revision!r:.60}, expected that of the base as text; correct it"
            )
        return revision or None

    def scale(self, module: str, rank: int) -> float:
        """What the product B·A of a module is multiplied by: alpha / rank, or alpha / √rank with rsLoRA.

        rank: of its factors. Raises CorruptCheckpointError if another one is stated, or no number.
        """
        stated = self._find_value("rank_pattern", module, "r")
        alpha = self._find_value("alpha_pattern", module, "lora_alpha")
        if type(stated) is not int or stated != rank or rank < 1 or not _is_finite(alpha):
            raise CorruptCheckpointError(
                f"{show_name(module)}: rank {rank}, and {ADAPTER} states r = {stated!r:.20}, "
                f"lora_alpha = {alpha!r:.20}, expected the same rank, at least 1, and a number"
            )
        divisor = math.sqrt(rank) if self._use_rslora else rank
        return float(alpha / divisor)

    def _find_value(self, setting: str, module: str, usual: str) -> Any:
        """A number of a module: that of the first pattern that fits, or that of all modules."""
        if (setting, module) not in self._numbers:
            patterns = self._fields.get(setting)
            if patterns is None:
                patterns = {}
            if not isinstance(patterns, Mapping):
                raise CorruptCheckpointError(
                    f"{ADAPTER} has {setting} = {patterns!r:.60}, expected pattern: number; correct it"
                )
            number = self._fields.get(usual, RANK_AND_ALPHA)
            for pattern in patterns:
                if self._matches_start(setting, r"(.*\.)?({})$", pattern, module):
                    number = patterns[pattern]
                    break
            self._numbers[setting, module] = number
        return self._numbers[setting, module]

    def _matches_start(self, setting: str, template: str, key: str, module: str) -> bool:
        """Whether the name of a module begins with a pattern: a key of a setting in place of the braces."""
        with self._explain(setting, key):
            return matches_start(template.replace("{}", key), module)

    @contextmanager
    def _explain(self, setting: str, key: str) -> Iterator[None]:
        """Inside, a PatternError becomes a CorruptCheckpointError."""
        try:
            yield
        except PatternError as error:
            raise CorruptCheckpointError(f"{ADAPTER} has the {setting} {key!r:.60}, which {error}; {MERGE}") from None

    def require_target(self, module: str) -> None:
        """Raise CorruptCheckpointError if PEFT adds no update to a module, although the file has one of it.

        module: its name in the model that was trained.
        """
        if not self._is_target(module):
            raise CorruptCheckpointError(
                f"it stores an update of {show_name(module)}, which {ADAPTER} does not name (target_modules = "
                f"{self._fields.get('target_modules')!r:.60}), so that PEFT does not load it; correct it"
            )

    def _is_target(self, module: str) -> bool:
        """PEFT's `check_target_module_exists`."""
        if self._fields.get("exclude_modules") and self._names("exclude_modules", module):
            return False
        for saved in self._read_list("modules_to_save"):
            if self._matches_start("modules_to_save", r"(^|.*\.){}($|\..*)", str(saved), module):
                return False
        weight = f"{module}.weight"
        if any(weight == end or weight.endswith(f".{end}") for end in self._read_list("target_parameters")):
            return False  # its update is another one, around that of the module
        targets = self._fields.get("target_modules")
        layers = self._fields.get("layers_to_transform")
        layers_pattern = self._fields.get("layers_pattern")
        if layers_pattern and layers is None:
            raise CorruptCheckpointError(f"{ADAPTER} has layers_pattern without layers_to_transform; correct it")
        if isinstance(targets, str):
            if layers is not None or layers_pattern is not None:
                raise CorruptCheckpointError(
                    f"{ADAPTER} has a choice of layers beside a pattern of target_modules; correct it"
                )
            return targets.lower() == "all-linear" or self._names("target_modules", module)
        if module in self._read_list("target_modules"):
            return True
        return self._names("target_modules", module) and self._is_chosen_layer(module)

    def _names(self, setting: str, module: str) -> bool:
        """Whether a setting, which is a pattern or a list of names or of their ends, has a module."""
        value = self._fields.get(setting)
        if isinstance(value, str):
            with self._explain(setting, value):
                return matches(value, module)
        return any(module == end or module.endswith(f".{end}") for end in self._read_list(setting))

    def _read_list(self, setting: str) -> list[Any]:
        """A setting that is a list of names."""
        value = self._fields.get(setting)
        if isinstance(value, set):  # of a model in memory
            return sorted(value)
        names = [] if value is None else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CorruptCheckpointError(
                f"{ADAPTER} has {setting} = {value!r:.60}, expected a list of names; correct it"
            )
        return names

    def _is_chosen_layer(self, module: str) -> bool:
        """Whether layers_to_transform has the layer of a module, or there is no such choice."""
        chosen = self._fields.get("layers_to_transform")
        if chosen is None or chosen == []:
            return True
        stated = self._fields.get("layers_pattern")
        names = [stated] if isinstance(stated, str) and stated else self._read_list("layers_pattern")
        if not all(PLAIN_NAME.fullmatch(str(name)) for name in names):
            raise CorruptCheckpointError(
                f"{ADAPTER} has layers_pattern = {stated!r:.60}, expected names of lists of layers; {MERGE}"
            )
        patterns = [rf"(?:^|.*?\.){name}\.(?P<number>\d+)\." for name in names] or [LAYER]
        for pattern in patterns:
            match = re.match(pattern, module)  # the pattern is attngeo's own, so that Python's engine ends
            if match is None:
                continue
            if len(match["number"]) > MOST_DIGITS:
                return False
            return int(match["number"]) in (chosen if isinstance(chosen, list) else [chosen])
        return False


def show_name(name: str) -> str:
    """The name of a tensor or module in a message: what prints of it, in bounded length."""
    return f"{printable(name):.{LONGEST_NAME}}"


def _is_finite(value: Any) -> bool:
    """Whether a value is a number, and neither infinite nor too large for a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
