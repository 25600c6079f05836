"""A script for an environment with TransformerLens: `python lens_scores.py FOLDER` prints composition scores as JSON.

FOLDER holds a causal language model of transformers. The scores of each kind are [layers, heads, layers, heads].
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def score(folder: str) -> dict[str, Any]:
    """The scores of each kind."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", bos_token="a", eos_token="a", pad_token="a"
    )
    tokenizer.init_kwargs["name_or_path"] = folder
    bridge = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer, device="cpu")
    return {kind: bridge.all_composition_scores(kind.upper()).scores.tolist() for kind in "qkv"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(score(sys.argv[1])))
