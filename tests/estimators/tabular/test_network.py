"""The network against the same recipe in torch's own modules, and the copies of rows that it is trained on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attngeo.estimators.tabular.cell_layout import MISSING, CellLayout
from attngeo.estimators.tabular.masking import CHUNK, MaskedRows
from attngeo.estimators.tabular.network import TableAttention
from attngeo.training.loop import draw_generator

HEADS, HEAD_SIZE, HIDDEN = 2, 3, 5
WIDTH = HEADS * HEAD_SIZE
SIZES = (3, 2, 4)
ROWS = 12


class PlainBlock(nn.Module):
    """One model in torch's modules: each copy of a row goes through attention, and the masked position is read."""

    def __init__(self, network: TableAttention, model: int) -> None:
        super().__init__()
        w = {name: each[model].double() for name, each in network.weights.items()}
        self.words, self.positions = w["words"], w["positions"]
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.out = nn.Linear(WIDTH, w["word"].shape[1])
        self.double()
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(torch.cat([w[name].T for name in ("query", "key", "value")]))
            biases = torch.cat([w[f"{name}_bias"][0] for name in ("query", "key", "value")])
            self.attention.in_proj_bias.copy_(biases)
            linear = ((self.attention.out_proj, "out"), (self.up, "up"), (self.down, "down"), (self.out, "word"))
            for module, name in linear:
                module.weight.copy_(w[name].T)
                module.bias.copy_(w[f"{name}_bias"][0])
            for number, norm in enumerate(self.norms, 1):
                norm.weight.copy_(w[f"gain{number}"][0])
                norm.bias.copy_(w[f"bias{number}"][0])

    def forward(self, words: Tensor, column: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of all words at the masked position, and its attention [rows, heads, K].

        noise: of dropout at the masked position after attention and after the feed-forward layer, [rows, 2d].
        """
        first, second = torch.ones(len(words), 1, 2).chunk(2, -1) if noise is None else noise[:, None].chunk(2, -1)
        x = self.words[words] + self.positions
        mixed, attention = self.attention(x, x, x, average_attn_weights=False)
        x = self.norms[0](x + mixed * first)
        x = self.norms[1](x + self.down(torch.relu(self.up(x))) * second)
        at = torch.arange(len(column))
        return self.out(x[at, column]), attention[at, :, column]


def make_network(layout: CellLayout, models: int = 2) -> TableAttention:
    generators = [draw_generator(seed) for seed in range(models)]
    network = TableAttention(layout, heads=HEADS, head_size=HEAD_SIZE, feed_forward=HIDDEN, generators=generators)
    with torch.no_grad():  # no weight is 0 or 1, or small
        for weight in network.weights.values():
            weight.add_(torch.randn_like(weight) * 0.3)
    return network.double()


def draw_codes(models: int = 2) -> Tensor:
    """Categories of rows; some are missing."""
    codes = torch.stack([torch.randint(size, (models, ROWS)) for size in SIZES], -1)
    codes[:, 3, 1] = MISSING
    return codes


def mask(layout: CellLayout, codes: Tensor, column: Tensor) -> Tensor:
    slots = layout.to_slots(codes)
    return slots.scatter(-1, column[..., None], layout.mask_slots()[column][..., None])


@pytest.mark.parametrize("shared", [False, True])
def test_it_is_the_block_of_torchs_own_modules(shared: bool) -> None:
    layout = CellLayout(SIZES, shared)
    network, codes = make_network(layout), draw_codes()
    column = torch.randint(len(SIZES), (2, ROWS))
    slots = mask(layout, codes, column)
    logits, attention = network.read(slots, column)[1], network.attend(slots, column)
    for model in range(2):
        plain_logits, plain_attention = PlainBlock(network, model)(layout.word_of_slot()[slots[model]], column[model])
        of_column = [layout.to_words(torch.arange(SIZES[at]), torch.tensor(at)) for at in column[model].tolist()]
        for row, words in enumerate(of_column):
            torch.testing.assert_close(logits[model, row, words], plain_logits[row, words])
            assert logits[model, row].isfinite().sum() == len(words)
        torch.testing.assert_close(attention[model].transpose(1, 2), plain_attention)


def test_a_step_moves_the_weights_as_torchs_own_modules_do() -> None:
    """The gradients of words and positions, through which every other one goes."""
    layout = CellLayout((3, 3, 3), shared=True)  # all words are allowed in all columns
    network, codes = make_network(layout, 1), draw_codes(1).clamp(max=2)
    column, weight = torch.randint(3, (1, ROWS)), torch.rand(1, ROWS, dtype=torch.float64)
    target = codes.gather(2, column[..., None])[..., 0].clamp(min=0)
    slots = mask(layout, codes, column)
    noise = (torch.rand(1, ROWS, 2 * WIDTH, dtype=torch.float64) < 0.75) / 0.75
    total, count = network(slots, column, target, weight, noise)
    total.sum().backward()
    plain = PlainBlock(network, 0)
    plain.words, plain.positions = (each.detach().requires_grad_() for each in (plain.words, plain.positions))
    logits = plain(layout.word_of_slot()[slots[0]], column[0], noise[0])[0]
    loss = functional.cross_entropy(logits, target[0], reduction="none")
    (loss * weight[0]).sum().backward()
    assert count.item() == pytest.approx(weight.sum().item())
    assert plain.words.grad is not None
    assert plain.positions.grad is not None
    torch.testing.assert_close(network.weights["words"].grad[0], plain.words.grad)
    torch.testing.assert_close(network.weights["positions"].grad[0], plain.positions.grad)
    torch.testing.assert_close(network.weights["up"].grad[0], plain.up.weight.grad.T)


def test_each_observed_cell_is_masked_once_in_an_epoch() -> None:
    layout, codes = CellLayout(SIZES), draw_codes(2)
    rows = MaskedRows(layout, codes, torch.ones(2, ROWS), 5, seeds=[1, 2])
    batches = list(rows.epoch(0))
    assert [len(batch[0][0]) for batch in batches] == [5] * 7
    slots, column, target, weight, noise = (torch.cat(parts, 1) for parts in zip(*batches, strict=True))
    assert noise.shape == (2, 35, 0)
    assert weight.sum() == 70
    for model in range(2):
        found = sorted((row.tolist(), at, word) for row, at, word in zip(slots[model], column[model].tolist(),
                                                                      target[model].tolist(), strict=True))  # fmt: skip
        expected = []
        for row in codes[model]:
            for at in range(3):
                if row[at] != MISSING:
                    masked = mask(layout, row[None], torch.tensor([at]))[0].tolist()
                    expected.append((masked, at, int(layout.to_words(row[at], torch.tensor(at)))))
        assert found == sorted(expected)
    assert not torch.equal(column[0], column[1])
    assert not torch.equal(next(rows.epoch(1))[1], batches[0][1])


def test_dropout_drops_with_its_probability() -> None:
    layout, codes = CellLayout(SIZES), torch.stack([draw_codes(1)[0]] * 60).reshape(1, -1, 3)
    rows = MaskedRows(layout, codes, torch.ones(1, len(codes[0])), 4, seeds=[3], noise=10, dropout=0.25)
    batches = list(rows.epoch(2))
    noise = torch.cat([batch[-1] for batch in batches], 1)
    assert noise.unique().tolist() == [0, pytest.approx(4 / 3)]
    assert (noise == 0).double().mean() == pytest.approx(0.25, abs=0.01)
    chunk = CHUNK * 4
    assert not torch.equal(noise[:, :chunk], noise[:, chunk : 2 * chunk])
    for batch, same in zip(rows.epoch(2), batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))


def test_weights_start_as_those_of_keras() -> None:
    """Uniformly within limits: 0.05 for categories, otherwise Glorot's by the fans of Keras.

    For 5 heads of 4, Keras counts 20·5 and 20·4 for kernels [20, 5, 4], and 20 and 5·20 for [5, 4, 20].
    """
    layout = CellLayout((10,) * 6, shared=True)
    network = TableAttention(layout, heads=5, head_size=4, feed_forward=5, generators=map(draw_generator, range(20)))
    limits = {
        "words": 0.05, "positions": (6 / 26) ** 0.5, "query": (6 / 180) ** 0.5, "key": (6 / 180) ** 0.5,
        "value": (6 / 180) ** 0.5, "out": (6 / 120) ** 0.5, "up": (6 / 25) ** 0.5, "down": (6 / 25) ** 0.5,
        "word": (6 / 30) ** 0.5,
    }  # fmt: skip
    for name, weight in network.weights.items():
        if name in limits:
            assert 0.95 * limits[name] < weight.abs().max() <= limits[name]
            assert weight.std().item() == pytest.approx(limits[name] / 3**0.5, rel=0.05)
        else:
            assert (weight == name.startswith("gain")).all()


def test_a_share_of_the_other_cells_is_hidden_and_some_are_taken_for_unseen() -> None:
    """Each copy draws its share up to the largest one, so that a cell is hidden with half of that probability."""
    layout = CellLayout(SIZES, has_unseen=True)
    codes = torch.stack([torch.randint(size, (1, 4000)) for size in SIZES], -1)
    rows = MaskedRows(layout, codes, torch.ones(1, 4000), 128, seeds=[1], hidden=0.6)
    slots, column, target, _, _ = (torch.cat(parts, 1)[0] for parts in zip(*rows.epoch(0), strict=True))
    is_target = torch.arange(3) == column[:, None]
    is_masked = slots == layout.mask_slots()
    assert is_masked[is_target].all()
    assert is_masked[~is_target].double().mean() == pytest.approx(0.3, abs=0.02)
    is_unseen = slots == layout.mask_slots() + 1
    assert is_unseen.double().sum() / (~is_target).sum() == pytest.approx(0.007, abs=0.003)
    assert len(target) == 12000  # all cells are predicted, also those that are hidden elsewhere
    for batch, same in zip(rows.epoch(1), rows.epoch(1), strict=True):
        assert torch.equal(batch[0], same[0])


def test_an_epoch_masks_the_responses_first() -> None:
    layout, codes = CellLayout(SIZES), draw_codes(2)
    rows = MaskedRows(layout, codes, torch.ones(2, ROWS), 5, seeds=[1, 2], most=20, has_response=True)
    column = torch.cat([batch[1] for batch in rows.epoch(0)], 1)
    assert column.shape == (2, 20)
    assert ((column == 2).sum(1) == ROWS).all()
    assert not (column[:, :ROWS] == 2).all()  # in a random order
    few = MaskedRows(layout, codes, torch.ones(2, ROWS), 5, seeds=[1, 2], most=7, has_response=True)
    assert all((batch[1] == 2).all() for batch in few.epoch(0))
    fixed = MaskedRows(layout, codes, torch.ones(2, ROWS), 5, most=ROWS, has_response=True)
    assert torch.cat([batch[1] for batch in fixed.epoch(0)], 1).tolist() == [[2] * ROWS] * 2


def test_unseen_values_have_a_vector_of_each_column() -> None:
    """They are the only cells that read it, and no cell is predicted to be one."""
    layout = CellLayout(SIZES, has_unseen=True)
    network = make_network(layout, 1)
    codes = torch.tensor([[[0, -2, 1], [0, MISSING, 1], [0, 1, 1]]])
    column = torch.zeros(1, 3, dtype=torch.int64)
    slots = mask(layout, codes, column)
    before = network.read(slots, column)[1]
    assert before.shape[-1] == sum(SIZES)
    with torch.no_grad():
        network.weights["unseen"][:, 1] += 1
    after = network.read(slots, column)[1]
    changed = (after != before)[0].any(-1)
    assert changed.tolist() == [True, False, False]
    assert torch.equal(CellLayout(SIZES).to_slots(codes[0, :1]), CellLayout(SIZES).to_slots(codes[0, 1:2]))
