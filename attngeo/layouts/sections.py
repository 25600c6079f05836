"""The parts of a model and the sections of its config.json that describe them.

A composite model has a section for each part: `vision_config` for the tensors of `vision_tower`, and so on. The words
of a section's key are compared with the words of a module's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Words for the same part of a model. The first one of each line names the part, and the stack of its scores.
SYNONYMS = (
    ("vision", "visual", "image", "img", "vit"),
    ("text", "language", "llm", "lm"),
    ("audio", "speech", "sound"),
    ("video",),
    ("backbone", "pixel"),
)
# Words that say nothing about which part it is.
FILLERS = {"config", "model", "tower", "cfg", "module", "branch"}
# Sections for tensors that carry no prefix of their own.
MAIN = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
DEEPEST = 4
NUMBER_OF_HEADS = re.compile(r"(^|_)(n_?heads?|num_(attention_)?heads|attention_heads)$")
_CANONICAL = {word: words[0] for words in SYNONYMS for word in words}


class Section(NamedTuple):
    """One section of config.json. keys: the fields that lead to it, empty for the whole. fields: its content."""

    keys: tuple[str, ...]
    fields: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The field that holds it; "" for the whole configuration."""
        return self.keys[-1] if self.keys else ""


def list_sections(config: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[Section]:
    """The configuration and all of its sections that describe a model, the outer ones first."""
    yield Section(keys, config)
    if len(keys) == DEEPEST:
        return
    for key, value in config.items():
        described = str(key).endswith("_config") or (isinstance(value, Mapping) and "model_type" in value)
        if isinstance(value, Mapping) and (described or _states_heads(value)):
            yield from list_sections(value, (*keys, str(key)))


def find_section(module: str, config: Mapping[str, Any]) -> tuple[str | None, Section]:
    """The part of the model that a module belongs to, None for a model of one part, and the section that describes it.

    The section whose words stand first in the module's name is taken; of several, the one with most words, and then the
    innermost. If none fits: the whole configuration, or the section of the language model if only sections state heads.
    """
    place: dict[str, int] = {}
    for position, segment in enumerate(module.split(".")):
        for word in split_words(segment):
            place.setdefault(word, position)
    sections = list(list_sections(config))
    fitting: list[tuple[int, int, int, Section]] = []
    for section in sections[1:]:
        words = split_words(section.key)
        if words and words <= place.keys():
            first = min(place[word] for word in words)
            fitting.append((first, -len(words), -len(section.keys), section))
    if fitting:
        *_, section = min(fitting, key=lambda one: one[:3])
        return _name_part(section), section
    part = next((words[0] for words in SYNONYMS if words[0] in place), None)
    if _states_heads(config):
        return part, sections[0]
    stating = [section for section in sections[1:] if _states_heads(section.fields)]
    for key in MAIN:
        for section in stating:
            if section.key == key and part is None:
                return _name_part(section), section
    if len(stating) == 1 and part is None:
        return None, stating[0]
    return part, sections[0]


def split_words(name: str) -> set[str]:
    """The words of a name, with one word for each part of a model, and without words that say nothing.

    >>> sorted(split_words("visual_encoder"))
    ['encoder', 'vision']
    """
    words = {_CANONICAL.get(word, word) for word in re.split(r"[_\d]+", name.lower()) if word}
    return words - FILLERS


def _name_part(section: Section) -> str:
    words = split_words(section.key)
    known = (*(synonyms[0] for synonyms in SYNONYMS), "decoder", "encoder")
    return next((word for word in known if word in words), section.key.removesuffix("_config"))


def _states_heads(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(name, str) and NUMBER_OF_HEADS.search(name) for name in fields)
