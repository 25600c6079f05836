"""Runs on random inputs, of modules that state little about what they take."""

from __future__ import annotations

from torch import Tensor, nn

from attngeo.verification.drives import find_drives

WIDTH = 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH)


class CrossAttention(Attention):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, tokens, width = query.shape
        return self.q_proj(query) @ key.mT @ value + query.new_zeros(batch, tokens, width)


class TurningAttention(Attention):
    """Swaps the halves of what turns, which have to be as long as each other."""

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        cosines, _ = position_embeddings
        first, second = cosines.chunk(2, -1)
        return self.q_proj(hidden_states).sum() + first * second


class SelfAttention(Attention):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.q_proj(hidden_states)


class Model(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor) -> Tensor:
        output: Tensor = self.attention(hidden_states)
        return output


def test_queries_keys_and_values_are_sequences_of_vectors() -> None:
    found = find_drives(Model(CrossAttention()))
    assert [drive.path for drive in found.drives] == ["attention"]
    assert found.missing == []


def test_without_a_stated_width_an_even_number_of_dimensions_turns() -> None:
    found = find_drives(Model(TurningAttention()))
    assert [drive.path for drive in found.drives] == ["attention"]
    assert found.missing == []


def test_a_run_that_reaches_nothing_new_is_not_kept() -> None:
    found = find_drives(Model(SelfAttention()), submodules=["attention"])
    assert [drive.path for drive in found.drives] == [""]
