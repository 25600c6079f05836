"""The adapter_config.json of a LoRA adapter of PEFT, and its meaning for queries and keys.

Every setting of PEFT's `LoraConfig` is in one of three tables. PEFT ignores one that is in none, which another program
has written; it is refused if a later PEFT has written the file.
Source: https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from attngeo.bounds.names import printable
from attngeo.checkpoints.files import ADAPTER
from attngeo.checkpoints.patterns import PatternError, matches, matches_start
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.schemas import expected_of

MERGE = "merge it with PEFT's merge_and_unload, and give the merged checkpoint"
# Setting → why it does not change what is computed of queries and keys.
WITHOUT_EFFECT = {
    "auto_mapping": "it names the class of the base, not its weights",
    "bias": "the file contains the trained biases, and they are read",
    "corda_config": "it configures an initialisation that is refused",
    "enable_lora": "a setting from 2023, which PEFT no longer reads",
    "ensure_weight_tying": "it ties embeddings",
    "eva_config": "it sets the initial factors; the file has the trained ones",
    "fan_in_fan_out": "PEFT derives the layout of each layer from its class when it loads the adapter",
    "inference_mode": "it freezes the factors",
    "loftq_config": "it configures an initialisation that is refused",
    "lora_dropout": "it matters only in training",
    "lora_ga_config": "it configures an initialisation that is refused",
    "megatron_core": "PEFT reads it only with megatron_config, which is refused",
    "merge_weights": "a setting from 2023, which PEFT no longer reads",
    "peft_version": "it does not change how PEFT reads a file",
    "qalora_group_size": "PEFT reads it only with use_qalora, which is refused",
    "runtime_config": "PEFT does not read it from a file",
    "task_type": "it selects the head",
    "trainable_token_indices": "it concerns rows of the embeddings",
}
# Setting → why an adapter that has it switched on is refused. PEFT merges those of `NOT_MERGED` into no weights.
NOT_MERGED = {
    "alora_invocation_tokens": "it applies only to some tokens",
    "arrow_config": "it selects an adapter for each token",
    "layer_replication": "it repeats layers of the base, each with its own update",
}
REFUSED = NOT_MERGED | {
    "kasa_config": "the training also changed the weights of the base",
    "lora_bias": "the update has its own bias",
    "megatron_config": "it is for Megatron layers",
    "monteclora_config": "the update is random",
    "use_bdlora": "the factors are stored as blocks",
    "use_qalora": "inputs are pooled before the multiplication",
    "velora_config": "the adapter has additional tensors",
}
# The version of PEFT whose settings these tables have.
KNOWN_PEFT = (0, 21)
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
# Method of PEFT → what it trains, if that is no weight: there is nothing to merge.
WITHOUT_WEIGHTS = {
    "ADAPTION_PROMPT": "vectors for additional attention",
    "CARTRIDGE": "keys and values that precede the text",
    "CPT": "vectors that precede the text",
    "MULTITASK_PROMPT_TUNING": "vectors that precede the text",
    "PREFIX_TUNING": "keys and values that precede the text",
    "PROMPT_TUNING": "vectors that precede the text",
    "P_TUNING": "vectors that precede the text",
}
# Method of PEFT → why no weights have what it adds, so that PEFT cannot merge it.
NOT_MERGEABLE = {
    "POLY": "it mixes its updates by task",
    "SHADOW": "its update depends on the input",
    "XLORA": "it mixes its updates by token",
}
# Field of an adapter_config.json without peft_type → who writes it.
OTHER_PROGRAMS = {"lora_parameters": "MLX", "model_class": "AdapterHub", "swift_type": "ms-swift"}
# What has been done to the base of a model in memory.
IN_MEMORY = ("layer_replication",)
# Initialisations that leave the base as it is: as they are written, and those that PEFT compares in lower case.
INITIALISATIONS = ("eva", "orthogonal")
LOWER_CASE_INITIALISATIONS = ("gaussian", "mica")
# How PEFT finds the number of a layer in the name of a module, if no layers_pattern says what comes before it.
LAYER = r".*?\.[^.]*\.(?P<number>\d+)\."
MOST_LAYER_DIGITS = 9
# The characters of a name in a message.
LONGEST_NAME = 150
PLAIN_NAME = re.compile(r"\w+", re.ASCII)


class AppliedSettings(BaseModel):
    """The PEFT settings that are applied, with the types that PEFT accepts. Sets occur only for models in memory.

    Attributes:
        peft_type: the method.
        base_model_name_or_path: name of the base model.
        revision: revision of the base model.
        r: rank of an update.
        lora_alpha: an update is multiplied by lora_alpha / r.
        rank_pattern: pattern of module names → their rank in place of `r`.
        alpha_pattern: pattern of module names → their value in place of `lora_alpha`.
        use_dora: whether the magnitudes of weights are also trained.
        use_rslora: whether the factor is lora_alpha / √r.
        init_lora_weights: initialisation; some initialisations change the base.
        target_modules: modules to update: a pattern, or name endings.
        exclude_modules: modules to leave alone: a pattern, or name endings.
        target_parameters: parameters to update.
        modules_to_save: modules that are trained and saved as a whole.
        layers_to_transform: numbers of the layers to update; None for all.
        layers_pattern: names of the module lists that these numbers index.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    peft_type: str
    base_model_name_or_path: str | None = None
    revision: str | None = None
    r: int = 8
    lora_alpha: float = 8
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_dora: bool | None = None
    use_rslora: bool | None = None
    init_lora_weights: Any = True
    target_modules: str | list[str] | set[str] | None = None
    exclude_modules: str | list[str] | set[str] | None = None
    target_parameters: list[str] | None = None
    modules_to_save: list[str] | set[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None


APPLIED = AppliedSettings.model_fields.keys()
# Setting → what it may be, for messages.
NAMES = "a list of names"
EXPECTED = {
    "rank_pattern": "pattern: number", "alpha_pattern": "pattern: number", "target_modules": NAMES,
    "exclude_modules": NAMES, "target_parameters": NAMES, "modules_to_save": NAMES, "layers_pattern": NAMES,
}  # fmt: skip


def _is_later(version: Any) -> bool:
    """Whether a later PEFT than that of the tables has written a file."""
    numbers = VERSION.match(version) if isinstance(version, str) else None
    return numbers is not None and (int(numbers[1]), int(numbers[2])) > KNOWN_PEFT


def require_lora(fields: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError for an adapter that does not use LoRA, or that PEFT did not write.

    fields: its adapter_config.json.
    """
    method = fields.get("peft_type")
    if method == "LORA":
        return
    base = f"{fields.get('base_model_name_or_path') or fields.get('model') or 'its base'!s:.80}"
    if isinstance(method, str) and method in WITHOUT_WEIGHTS:
        raise UnsupportedModelError(
            f"an adapter of type {method} has {WITHOUT_WEIGHTS[method]}, and no weights to merge: its queries and keys "
            f"equal those of its base; score {base}"
        )
    if isinstance(method, str) and method in NOT_MERGEABLE:
        raise UnsupportedModelError(
            f"an adapter of type {method} cannot be merged: {NOT_MERGEABLE[method]}; score its base, {base}"
        )
    if not method:
        programs = [program for field, program in OTHER_PROGRAMS.items() if field in fields]
        form = f"an adapter in {programs[0]} format" if programs else "an adapter from another program"
        raise UnsupportedModelError(
            f"{ADAPTER} has no peft_type: it is {form}, expected one from PEFT; merge it into {base} with the program "
            "that wrote it, and give the merged checkpoint"
        )
    raise UnsupportedModelError(f"peft_type is {method!r:.40}, expected LORA; {MERGE}")


class LoraSettings:
    """The settings of one adapter.

    Args:
        fields: its adapter_config.json.
        has_own_base: whether the base has the weights that the adapter was trained on, whatever the initialisation,
            as in a model in memory.

    Attributes:
        ignored: settings of other programs, unknown to PEFT.
        use_dora: whether the method is DoRA.
        revision: revision of the base model; None if not stated.

    Raises:
        UnsupportedModelError: The method is not LoRA or DoRA, or a setting is refused, or unknown and new.
        CorruptCheckpointError: PEFT does not accept a value, or would misread it.
    """

    def __init__(self, fields: Mapping[str, Any], *, has_own_base: bool = False) -> None:
        require_lora(fields)
        ignored: list[str] = []
        may_be_new = has_own_base or _is_later(fields.get("peft_version"))
        for name, value in fields.items():
            is_known = name in APPLIED or name in WITHOUT_EFFECT or (has_own_base and name in IN_MEMORY)
            if value and not is_known and name not in REFUSED and not may_be_new:
                ignored.append(show_name(name))
            elif value and not is_known:
                reason = REFUSED.get(name, "this version of attngeo does not know it")
                advice = "score its base" if name in NOT_MERGED else MERGE
                raise UnsupportedModelError(f"{ADAPTER} has {name!r:.60} = {value!r:.60}: {reason}; {advice}")
        try:
            self._stated = AppliedSettings(**fields)
        except ValidationError as error:
            problems = error.errors()
            setting = str(problems[0]["loc"][0])
            kinds = dict.fromkeys(expected_of(one) for one in problems if one["loc"][0] == setting)
            expected = EXPECTED.get(setting, " or ".join(kinds))
            raise CorruptCheckpointError(
                f"{ADAPTER} has {setting} = {fields[setting]!r:.60}, expected {expected}; correct it"
            ) from None
        self.ignored = ignored
        self.use_dora = bool(self._stated.use_dora)
        self.revision = self._stated.revision or None
        # Other initialisations than these have subtracted values from the base, or PEFT refuses them.
        start = self._stated.init_lora_weights
        is_harmless = start is None or isinstance(start, bool)
        if isinstance(start, str):
            is_harmless = start in INITIALISATIONS or start.lower() in LOWER_CASE_INITIALISATIONS
        if not is_harmless and not has_own_base:
            raise UnsupportedModelError(
                f"{ADAPTER} has init_lora_weights = {start!r:.40}, which is unknown or also changes the weights of the "
                f"base; {MERGE}"
            )

    @property
    def base(self) -> str:
        """The name of the base model. Raises CorruptCheckpointError if it is missing."""
        base = self._stated.base_model_name_or_path
        if not base:
            raise CorruptCheckpointError(
                f"{ADAPTER} has base_model_name_or_path = {base!r}, expected a model; correct it"
            )
        return base

    def scale(self, module: str, rank: int) -> float:
        """The factor of a module's product B·A: alpha / rank, or alpha / √rank with rsLoRA.

        rank: of its factors. Raises CorruptCheckpointError if the settings state another rank.
        """
        stated = self._find_number("rank_pattern", module, self._stated.r)
        if stated != rank or rank < 1:
            raise CorruptCheckpointError(
                f"factors have rank {rank}, but {ADAPTER} states r = {stated!r:.20}; expected equal ranks, at least 1",
                subject=show_name(module),
            )
        alpha = self._find_number("alpha_pattern", module, self._stated.lora_alpha)
        return alpha / (math.sqrt(rank) if self._stated.use_rslora else rank)

    def _find_number(self, setting: str, module: str, usual: float) -> float:
        """A number of a module: that of the first pattern of a setting that fits, or that of all modules."""
        patterns: dict[str, float] = getattr(self._stated, setting) or {}
        for pattern, number in patterns.items():
            if _matches(matches_start, rf"(.*\.)?({pattern})$", module, setting, pattern):
                return number
        return usual

    def require_target(self, module: str) -> None:
        """Raise CorruptCheckpointError if the settings do not select a module for which the file has an update.

        module: its name in the trained model.
        """
        if not self._is_target(module):
            raise CorruptCheckpointError(
                f"it stores an update of {show_name(module)}, but {ADAPTER} does not select that module "
                f"(target_modules = {self._stated.target_modules!r:.60}), so PEFT would not load the update; "
                f"correct {ADAPTER}"
            )

    def _is_target(self, module: str) -> bool:
        """PEFT's `check_target_module_exists`."""
        stated = self._stated
        if stated.exclude_modules and _names("exclude_modules", stated.exclude_modules, module):
            return False
        for saved in stated.modules_to_save or ():
            if _matches(matches_start, rf"(^|.*\.){saved}($|\..*)", module, "modules_to_save", saved):
                return False
        if _is_end(stated.target_parameters or (), f"{module}.weight"):
            return False  # its update is another one, around that of the module
        if stated.layers_pattern and stated.layers_to_transform is None:
            raise CorruptCheckpointError(f"{ADAPTER} has layers_pattern without layers_to_transform; correct it")
        targets = stated.target_modules or ()
        if isinstance(targets, str):
            if stated.layers_to_transform is not None or stated.layers_pattern is not None:
                raise CorruptCheckpointError(
                    f"{ADAPTER} selects layers, but its target_modules is a pattern, expected a list; correct it"
                )
            return targets.lower() == "all-linear" or _names("target_modules", targets, module)
        return module in targets or (_is_end(targets, module) and self._is_chosen_layer(module))

    def _is_chosen_layer(self, module: str) -> bool:
        """Whether layers_to_transform has the layer of a module, or there is no such choice."""
        chosen = self._stated.layers_to_transform
        if chosen is None or chosen == []:
            return True
        stated = self._stated.layers_pattern or []
        names = [stated] if isinstance(stated, str) else stated
        if not all(PLAIN_NAME.fullmatch(name) for name in names):
            raise CorruptCheckpointError(
                f"{ADAPTER} has layers_pattern = {stated!r:.60}, expected names of layer lists; {MERGE}"
            )
        patterns = [rf"(?:^|.*?\.){name}\.(?P<number>\d+)\." for name in names] or [LAYER]
        for pattern in patterns:
            match = re.match(pattern, module)  # the pattern is attngeo's own, so that Python's engine ends
            if match is None:
                continue
            if len(match["number"]) > MOST_LAYER_DIGITS:
                return False
            return int(match["number"]) in (chosen if isinstance(chosen, list) else [chosen])
        return False


def _names(setting: str, value: str | Collection[str], module: str) -> bool:
    """Whether a setting, which is a pattern or names or their ends, has a module."""
    return _matches(matches, value, module, setting, value) if isinstance(value, str) else _is_end(value, module)


def _is_end(ends: Collection[str], name: str) -> bool:
    """Whether one of these is a name, or the last parts of it."""
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _matches(match: Callable[[str, str], bool], pattern: str, module: str, setting: str, stated: str) -> bool:
    """Whether a pattern, made of what a setting states, matches.

    Raises CorruptCheckpointError if it is invalid or takes too long.
    """
    try:
        return match(pattern, module)
    except PatternError as error:
        raise CorruptCheckpointError(
            f"{ADAPTER} has the pattern {stated!r:.60} in {setting}, which {error}; {MERGE}"
        ) from None


def show_name(name: str) -> str:
    """The name of a tensor or module for a message: printable, in bounded length."""
    return f"{printable(name):.{LONGEST_NAME}}"
