"""The models of Wibisono and Wang 2023 in torch, in the paper's notation.

|V| words, the mask is one more token; S positions; embeddings of p dimensions; H heads of d_w dimensions.
Source: arXiv 2307.04057, section 2, appendices B and G.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

# Deviation of the weights of BERT before training (Devlin et al. 2019, `initializer_range`).
START = 0.02


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed inside the block; those of the caller go on as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class ContinuousBag(nn.Module):
    """CBOW with the full softmax: the logit of word k is w_k · (the mean of c_j over the context).

    centre.weight: the center embeddings w_k, [|V|, p]. context.weight: the context embeddings c_j, [|V|, p].
    Both start as torch starts a Linear layer and an Embedding.
    """

    def __init__(self, words: int, dimensions: int) -> None:
        super().__init__()
        self.context = nn.Embedding(words, dimensions, dtype=torch.float64)
        self.centre = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)

    def forward(self, contexts: Tensor) -> Tensor:
        """Logits [n, |V|] of the center word, from how often each word is in its context, [n, |V|]."""
        shares = contexts / contexts.sum(1, keepdim=True)
        # In the cheapest order: |V| may be small against a batch.
        logits: Tensor = torch.linalg.multi_dot([shares, self.context.weight, self.centre.weight.T])
        return logits


class WordAttention(nn.Module):
    """One layer of attention without positions and residual connections: equation (1) of appendix G.2.

    The logit of word k is w_k · Σ_j γ_j c_j over the tokens of the masked sentence, the mask included, with
    γ_j = τ_j / Σ τ and τ_j = exp(c_j·W^KQ·c_mask / √d_w).
    centre.weight: w_k, [|V|, p]. tokens.weight: c_j, [|V| + 1, p], the mask last. key_query: W^KQ, [p, p].
    All start from a normal distribution of deviation 0.02, as BERT does; larger starts saturate the softmax.
    """

    def __init__(self, words: int, dimensions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words + 1, dimensions, dtype=torch.float64)
        self.key_query = nn.Linear(dimensions, dimensions, bias=False, dtype=torch.float64)
        self.centre = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)
        for weight in self.parameters():
            nn.init.normal_(weight, std=START)

    def attention(self) -> Tensor:
        """τ of each token, [|V| + 1], up to a factor that all have in common."""
        mask = self.tokens.weight[-1]
        scores: Tensor = self.key_query(self.tokens.weight) @ mask / mask.numel() ** 0.5
        return (scores - scores.max()).exp()

    def forward(self, contexts: Tensor) -> Tensor:
        """Logits [n, |V|] of the masked word, from how often each word is around it, [n, |V|]."""
        weights = F.pad(contexts, (0, 1), value=1.0) * self.attention()
        shares = weights / weights.sum(1, keepdim=True)
        logits: Tensor = torch.linalg.multi_dot([shares, self.tokens.weight, self.centre.weight.T])
        return logits


class AttentionLayer(nn.Module):
    """Attention and a linear layer, each with a residual connection: steps 2 to 6 of appendix B.

    query.weight, key.weight: W^Q and W^K of all heads, [H·d_w, p]. value.weight: W^V, [H·d_w, p]. output.weight:
    (W^O)ᵀ, [p, H·d_w]. linear.weight: W′, [p, p].
    """

    def __init__(self, dimensions: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (
            nn.Linear(dimensions, heads * head_dim, bias=False, dtype=torch.float64) for _ in range(3)
        )
        self.output = nn.Linear(heads * head_dim, dimensions, bias=False, dtype=torch.float64)
        self.linear = nn.Linear(dimensions, dimensions, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """The representations after the layer, [n, S, p], from those before it."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )  # [n, H, S, d_w]
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [n, S, H·d_w]
        x = x + self.output(mixed)
        after: Tensor = x + self.linear(x)
        return after


class BidirectionalAttention(nn.Module):
    """Bidirectional attention: tokens and positions, one or several layers, and a linear layer to logits (appendix B).

    tokens.weight: C, [|V| + 1, p], the mask last. positions.weight: P, [S, p]. last.weight: W″, [|V|, p].
    """

    def __init__(
        self, words: int, length: int, dimensions: int, *, heads: int = 1, head_dim: int = 4, layers: int = 1
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words + 1, dimensions, dtype=torch.float64)
        self.positions = nn.Embedding(length, dimensions, dtype=torch.float64)
        self.layers = nn.ModuleList(AttentionLayer(dimensions, heads, head_dim) for _ in range(layers))
        self.last = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)

    def forward(self, sentences: Tensor) -> Tensor:
        """Logits [n, S, |V|] of the word in each position, from the numbers of the tokens, [n, S]."""
        x = self.tokens(sentences) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.last(x)
        return logits
