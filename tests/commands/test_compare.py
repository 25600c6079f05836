"""`attngeo compare` as a user runs it: by command, by recipe, and its figures."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import weights, with_outputs, write_single
from support.hub_server import Hub
from support.messages import assert_fails, assert_states, refuses
from support.peft_adapters import write_adapter, write_base

import attngeo as library
from attngeo.changes.compare_options import compare_columns
from attngeo.errors import CorruptCheckpointError, DataError, UsageError
from attngeo.reporting.report import build_report


def change_head(layer: int, head: int) -> dict[str, torch.Tensor]:
    """The weights of `write_single`, but for the queries of one head, which are larger by half."""
    state = weights()
    state[f"model.layers.{layer}.self_attn.q_proj.weight"][6 * head : 6 * head + 6] *= 1.5
    return state


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A LLaMA of two layers and 4 heads, and the same but for head 1.2."""
    return write_single(tmp_path / "base"), write_single(tmp_path / "tuned", change_head(1, 2))


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_says_which_layers_and_heads_changed_most(
    inside: Command, folders: tuple[Path, Path], width: int
) -> None:
    run = inside("compare", *map(str, folders), cwd=folders[0].parent, COLUMNS=str(width))
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    # A path may be longer than a line: titles are wrapped.
    assert max(len(line) for line in lines if str(folders[0].parent) not in line) <= width
    cells = [line.split() for line in lines]
    rows = library.compare(list(folders), per_head=True)
    of_layer = rows[(rows.layer == 1) & rows["head"].isna()].change.item()
    changed = next(line for line in cells if line[-2:] == ["0.5", "(2)"])
    assert "1" in changed[:2]  # the layer, after the stack if there is room for it
    assert f"{of_layer:.3g}" in changed
    assert f"layers that changed most: 1 ({of_layer:.3g})" in lines
    start = next(number for number, line in enumerate(lines) if line == "heads that changed most")
    assert [line[:4] for line in cells[start + 3 :]] == [["1", "2", "0.5", "+1.000"]]  # no others have changed


def test_equal_models_have_not_changed(inside: Command, folders: tuple[Path, Path]) -> None:
    same = write_single(folders[0].parent / "same")
    run = inside("compare", folders[0], same, "--fail-if", "heads.change.max > 0 or cosine.min < 1", "-q")
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "nothing changed in queries and keys"


def test_rows_without_a_change_are_not_called_unchanged(inside: Command, folders: tuple[Path, Path]) -> None:
    """A weight of one head of layer 1 is not finite, then all weights are."""
    broken = weights()
    queries = broken["model.layers.1.self_attn.q_proj.weight"]
    queries[0, 0] = torch.nan
    other = write_single(folders[0].parent / "broken", broken)
    run = inside("compare", folders[0], other, "-q")
    assert run.returncode == 0
    last = run.stdout.splitlines()[-1]
    assert_states(last, "nothing changed in queries and keys, in 1 of 2 layers and 7 of 8 heads", "the notes")
    for tensor in broken.values():
        tensor.fill_(torch.nan)
    write_single(other, broken)
    for pair in ((folders[0], other), (other, folders[0])):
        run = inside("compare", *pair, "-q")
        assert run.stdout.splitlines()[-1] == "no layer or head has a change: see the notes"


def test_a_note_of_a_few_heads_names_them(inside: Command, folders: tuple[Path, Path]) -> None:
    """The queries of heads 1 and 2 of layer 1 are zero in the other model, then those of the whole layer."""
    zero = weights()
    queries = zero["model.layers.1.self_attn.q_proj.weight"]
    width = len(queries) // 4
    queries[width : 3 * width] = 0
    other = write_single(folders[0].parent / "zero", zero)
    [note] = inside("compare", folders[0], other).stderr.splitlines()
    assert_states(note, "layer 1, heads 1, 2: other: the form is zero")
    queries.zero_()
    write_single(other, zero)
    [note] = inside("compare", folders[0], other).stderr.splitlines()
    assert_states(note, "layer 1: other: the form is zero")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_heading_names_the_adapter(inside: Command, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    title, *_ = inside("compare", base, "--adapter", adapter, "-q", COLUMNS="300").stdout.splitlines()
    assert title.startswith(f"{base} → {base} + {adapter}")


def test_files_and_formats_have_every_row(inside: Command, folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = [tmp_path / f"rows.{suffix}" for suffix in ("csv", "parquet")]
    run = inside(
        "compare", *folders, "--per-head", "--format", "json", *(part for file in out for part in ("-o", file))
    )
    assert run.returncode == 0
    rows = library.compare(list(folders), per_head=True)
    for read in (pd.read_csv(out[0]), pd.read_parquet(out[1]), pd.DataFrame(json.loads(run.stdout))):
        assert list(read.columns) == list(compare_columns())
        assert read["change"].tolist() == pytest.approx(rows["change"].tolist())
    selected = inside(
        "compare", *folders, "--per-head", "--sort", "change", "--top", 2, "--columns", "layer,head,change",
        "--format", "csv",
    )  # fmt: skip
    # The whole layer changed, too; with --per-head, the first rows are of heads alone.
    assert pd.read_csv(io.StringIO(selected.stdout)).to_dict("records") == [
        {"layer": 1, "head": 2, "change": pytest.approx(0.5)}, {"layer": 0, "head": 0, "change": 0}
    ]  # fmt: skip
    of_layers = inside("compare", *folders, "--format", "csv", "--circuit", "qk")
    assert len(pd.read_csv(io.StringIO(of_layers.stdout))) == 2
    assert inside("compare", *folders, "--sort", "change", "-q").stdout.count("\n") > 2


def test_several_models_have_a_line_each(inside: Command, folders: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "models.txt"
    file.write_text(f"{folders[1]}\n{write_single(tmp_path / 'more', change_head(0, 1))}\n")
    run = inside("compare", folders[0], "--models", file, cwd=tmp_path, COLUMNS="200")
    assert (run.returncode, run.stderr) == (0, "")
    lines = [line.split() for line in run.stdout.splitlines()]
    found = {line[0]: line[-2:] for line in lines if line and line[0].startswith(str(tmp_path))}
    assert found == {str(folders[1]): ["0.5", "(1.2)"], str(tmp_path / "more"): ["0.5", "(0.1)"]}


def test_a_condition_that_holds_is_exit_code_1(inside: Command, folders: tuple[Path, Path]) -> None:
    run = inside("compare", *folders, "--fail-if", "heads.change.max > 0.4", "--format", "csv")
    assert run.returncode == 1
    assert run.stdout.startswith("model,revision,other,")
    assert_states(run.stderr, "check failed", folders[1], "heads.change.max is 0.5")
    run = inside("compare", *folders, "--fail-if", "cosine.min < 0.5 or symmetry_other.max > 1", "--per-head", "-q")
    assert_fails(run, 2, "--per-head", "layers.cosine.min")
    passed = inside("compare", *folders, "--fail-if", "layers.cosine.min < 0.5", "--per-head")
    assert passed.returncode == 0
    assert_states(passed.stderr, "check passed")
    overlap = inside("compare", "demo:encoder", "demo:decoder", "--fail-if", "heads.key_overlap.max > 0.9", "-q")
    assert overlap.returncode == 0
    assert inside("compare", *folders, "--fail-if", "layers < 2 or heads < 8", "-q").returncode == 0
    unknown = inside("compare", *folders, "--fail-if", "parameters < 9", "-q")
    assert_fails(unknown, 2, "unknown name 'parameters'", "and layers, heads")
    for circuit, column, other in (("qk", "value_overlap", "ov"), ("ov", "key_overlap", "qk")):
        options = ("--circuit", circuit, "-q")
        of_other = inside("compare", *folders, "--fail-if", f"heads.{column}.min < 0.9", *options)
        assert_fails(of_other, 2, column, f"--circuit {other}")
        assert "condition applies to results of" not in of_other.stderr
        assert_fails(inside("compare", *folders, "--sort", column, *options), 2, column, f"--circuit {other}")
    missing = inside("compare", "demo:encoder", "demo:minilm", "--fail-if", "change.max > 9", "-q")
    assert missing.returncode == 1
    assert_states(missing.stderr, "change.max is missing")
    for baseline in (("--baseline", "scores.csv"), ("--baseline=scores.csv",)):
        elsewhere = inside("compare", *folders, *baseline, "--fail-if", "change.max > 9")
        assert_fails(elsewhere, 2, "no such option: --baseline", "attngeo score", "first model")
    notes = inside("compare", "demo:encoder", "demo:minilm").stderr
    assert "note: encoder" in notes
    assert inside("compare", "demo:encoder", "demo:minilm", "--summary").stderr == notes


def test_a_model_that_fails_leaves_the_rows_of_the_others(inside: Command, folders: tuple[Path, Path]) -> None:
    base, tuned = folders
    broken = write_single(base.parent / "broken")
    (broken / "model.safetensors").write_bytes(b"short")
    run = inside("compare", base, broken, tuned, "--format", "csv")
    assert run.returncode == 4
    assert pd.read_csv(io.StringIO(run.stdout))["other"].unique().tolist() == [str(tuned)]
    assert_states(run.stderr, broken, "model.safetensors")
    file = base.parent / "rows.csv"
    assert_fails(inside("compare", base, broken, "-o", file), CorruptCheckpointError, broken)
    assert not file.exists()
    assert_fails(inside("compare", base, tuned, "-o", tuned / "model.safetensors"), 2, "model.safetensors")
    assert len(inside("compare", broken, base, tuned).stderr.splitlines()) == 1


def test_a_trajectory_starts_at_its_first_step(connected: Command, hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "main")
    hub.branches["org/name"] = {f"step{step}": f"{step:040x}" for step in (10, 2, 3)}
    for step in (10, 2, 3):
        state = weights()
        for name in state:
            state[name] = state[name] * (1 + step / 100)
        hub.repositories[f"org/name@step{step}"] = write_single(tmp_path / f"{step}", state)
    run = connected("compare", "org/name@step*", "--format", "json", "--quiet")
    assert run.returncode == 0, run.stderr
    rows = pd.DataFrame(json.loads(run.stdout))
    assert rows["model"].unique().tolist() == ["org/name@step2"]
    assert rows["other"].unique().tolist() == ["org/name@step3", "org/name@step10"]
    assert rows["revision"].unique().tolist() == [f"{2:040x}"]
    assert rows["other_revision"].unique().tolist() == [f"{3:040x}", f"{10:040x}"]
    expected = [(1.03 / 1.02) ** 2 - 1, (1.10 / 1.02) ** 2 - 1]
    assert rows.groupby("other", sort=False)["change"].first().tolist() == pytest.approx(expected, rel=1e-5)
    for file in (tmp_path / "3").iterdir():
        file.unlink()
    gone = connected("compare", "org/name@step*", "--format", "json", "--quiet", "--fresh")
    assert gone.returncode == 4
    assert {row["other"] for row in json.loads(gone.stdout)} == {"org/name@step10"}
    assert_states(gone.stderr, "org/name@step3")
    assert_fails(connected("compare", "org/name@step2"), 2, "needs at least two", "org/name@step*")


def test_equal_revisions_are_refused_among_three_and_compared_if_there_are_two(
    connected: Command, hub: Hub, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "main")
    hub.branches["org/name"] = {f"step{step}": f"{step:040x}" for step in (1, 2, 3)}
    for step in (1, 2, 3):
        state = {name: tensor * max(step, 2) for name, tensor in weights().items()}
        hub.repositories[f"org/name@step{step}"] = write_single(tmp_path / f"{step}", state)
    run = connected("compare", "org/name@step*", "--format", "json", "-q")
    assert_fails(run, 2, "(step1, step2)", "--allow-repeats")
    allowed = connected("compare", "org/name@step*", "--format", "json", "-q", "--allow-repeats")
    changes = pd.DataFrame(json.loads(allowed.stdout)).groupby("other")["change"].first().tolist()
    assert changes == pytest.approx([0, 1.5**2 - 1], rel=1e-5)
    two = connected("compare", "org/name@step1", "org/name@step2", "--format", "json", "-q")
    assert {row["change"] for row in json.loads(two.stdout)} == {0}


@pytest.mark.parametrize("command", ["compare", "lineage"])
def test_a_kept_result_is_about_both_models(
    command: str, inside: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    store = {"ATTNGEO_CACHE": str(tmp_path / "store")}
    assert inside(command, *folders, "-q", **store).returncode == 0
    assert "from kept results" in inside(command, *folders, **store).stderr
    [entry] = json.loads(inside("cache", "list", "--format", "json", folders[1], **store).stdout)
    assert (entry["model"], entry["other"], entry["outdated"]) == (*map(str, folders), False)
    write_single(folders[1], change_head(0, 1))
    [entry] = json.loads(inside("cache", "list", "--format", "json", **store).stdout)
    assert entry["outdated"] is True
    assert inside("cache", "clear", "--outdated", "-q", **store).returncode == 0
    assert json.loads(inside("cache", "list", "--format", "json", **store).stdout) == []


@pytest.mark.usefixtures("no_pictures")
def test_figures_and_recipes(inside: Command, folders: tuple[Path, Path], tmp_path: Path) -> None:
    file, page = tmp_path / "rows.parquet", tmp_path / "map.json"
    assert inside("compare", *folders, "-o", file, "--per-head", "--plot", page, "-q").returncode == 0
    [trace] = json.loads(page.read_text())["data"]
    assert trace["type"] == "heatmap"
    lines = library.plot("change-layers", str(file))
    [line] = lines.data
    assert [float(y) for y in line.y] == pytest.approx(library.compare(list(folders)).change.tolist())
    with refuses(DataError, "--per-head"):
        library.plot("change-map", library.compare(list(folders)))
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'title = "Changes"\n[[results]]\nname = "moved"\ncommand = "compare"\n'
        'models = ["./base", "./tuned", "./gone"]\n[[section]]\ntitle = "Map"\n'
        'figures = [{ kind = "change-map", of = "moved" }, { kind = "change-layers", of = "moved" }]\n'
        'tables = [{ of = "moved", columns = ["model", "other", "layer", "head", "change"] }]\n'
    )
    report = build_report(recipe, tmp_path / "report")
    assert [failure.what for failure in report.failures] == ["./gone"]
    assert report.page.read_text().count('class="chart"') == 2
    rows = pd.read_csv(tmp_path / "report" / "tables" / "moved.csv")
    assert rows["other"].unique().tolist() == ["./tuned"]
    assert rows["model"].unique().tolist() == ["./base"]
    assert len(rows) == 2 * 5


def test_figures_of_several_files_keep_comparisons_apart(
    inside: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two first models, and both circuits; a comparison that is given twice is refused, and none are averaged."""
    base, tuned = folders
    more = write_single(tmp_path / "more", change_head(0, 1))
    for folder in (base, tuned, more):
        write_single(folder, with_outputs(load_file(folder / "model.safetensors")))
    files = {}
    for name, arguments in {"qk": ["base"], "ov": ["base", "--circuit", "ov"], "more": ["more"]}.items():
        files[name] = tmp_path / f"{name}.csv"
        first, *options = arguments
        run = inside("compare", first, "tuned", *options, "--per-head", "-o", files[name], "-q", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    changes = {name: pd.read_csv(file)["change"] for name, file in files.items()}
    for pair, texts in ((("qk", "ov"), ("decoder qk", "decoder ov")), (("qk", "more"), ("base → ", "more → "))):
        figure = library.plot("change-layers", [str(files[name]) for name in pair])
        assert len(figure.data) == 2
        for line, name, text in zip(figure.data, pair, texts, strict=True):
            assert text in line.name
            of_layers = changes[name][pd.read_csv(files[name])["head"].isna()]
            assert [float(y) for y in line.y] == pytest.approx(of_layers.tolist(), rel=1e-6)
        assert len(library.plot("change-map", [str(files[name]) for name in pair]).data) == 2
        assert "nan" not in figure.layout.title.text
    with refuses(DataError, "two rows", "decoder"):
        library.plot("change-map", [str(files["qk"]), str(files["qk"])])


def test_scores_of_both_circuits_from_two_files_are_drawn_apart(inside: Command, tmp_path: Path) -> None:
    folder = write_single(tmp_path / "model", with_outputs(weights()))
    files = []
    for circuit in ("qk", "ov"):
        files.append(str(tmp_path / f"{circuit}.csv"))
        assert inside("score", folder, "--circuit", circuit, "-o", files[-1], "-q").returncode == 0
    title = library.plot("heatmap", files).layout.title.text
    assert "W<sub>qk</sub> and W<sub>ov</sub>" in title


RECIPE = """
title = "Changes"
[[results]]
name = "moved"
command = "compare"
models = ["demo:encoder", "demo:decoder"]
"""


def test_published_scores_are_refused_in_a_recipe(tmp_path: Path) -> None:
    """They would take the first model once for each other one, and say that the others have no scores."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'{RECIPE}[[section]]\ntitle = "Medians"\ntables = [{{ of = "moved", show = "published" }}]\n')
    with refuses(UsageError, "section", "results of compare", "score", "show = rows or summary"):
        build_report(recipe, tmp_path / "report")


@pytest.mark.usefixtures("no_pictures")
def test_a_summary_of_a_recipe_is_that_of_the_command(inside: Command, tmp_path: Path) -> None:
    """Also of results from a file, which are known when it is read."""
    recipe = tmp_path / "r.toml"
    of_file = '[[results]]\nname = "read"\ncommand = "file"\npath = "rows.csv"\n'
    positions = '[[results]]\nname = "heads"\ncommand = "positions"\nmodels = ["demo:encoder"]\n'
    tables = '{ of = "moved", show = "summary", columns = ["heads_change_max", "cosine_min"] }'
    tables += ', { of = "moved", show = "summary" }, { of = "heads", show = "summary" }'
    tables += ', { of = "read", show = "summary", columns = ["cosine_min"] }'
    recipe.write_text(f'{RECIPE}{positions}{of_file}[[section]]\ntitle = "Medians"\ntables = [{tables}]\n')
    library.compare(["demo:encoder", "demo:decoder"], per_head=True).to_csv(tmp_path / "rows.csv", index=False)
    made = build_report(recipe, tmp_path / "report")
    assert made.failures == []
    for command, models, table in (
        ("compare", ["demo:encoder", "demo:decoder"], "moved-summary-2"),
        ("positions", ["demo:encoder"], "heads-summary"),
    ):
        done = inside(command, *models, "--summary", "--format", "csv", "-q")
        expected = pd.read_csv(io.StringIO(done.stdout))
        shown = pd.read_csv(tmp_path / f"report/tables/{table}.csv")
        pd.testing.assert_frame_equal(shown, expected)
    rows = pd.read_csv(tmp_path / "rows.csv")
    smallest = pd.read_csv(tmp_path / "report/tables/read-summary.csv")["cosine_min"].item()
    assert smallest == pytest.approx(rows.loc[rows["head"].isna(), "cosine"].min())


def tune_layer(folder: Path, layer: int, factor: float) -> Path:
    """A copy of demo:encoder whose queries of one layer are multiplied, which leaves every symmetry as it is."""
    shutil.copytree(Path(library.__file__).parent / "demos/encoder", folder)
    state = load_file(folder / "model.safetensors")
    [name] = [name for name in state if f"layer.{layer}.attention.self.query.weight" in name]
    save_file(state | {name: state[name] * factor}, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_change_that_no_condition_on_scores_sees(inside: Command, tmp_path: Path) -> None:
    """The condition on scores passes, and that on changes fails: by either command, and in a recipe of both."""
    tuned = tune_layer(tmp_path / "tuned", 2, 3.31)
    earlier = tmp_path / "before.csv"
    assert inside("score", "demo:encoder", "-o", earlier, "-q").returncode == 0
    of_scores = "abs(symmetry.median - baseline.symmetry.median) > 0.05"
    passed = inside("score", tuned, "--baseline", earlier, "--fail-if", of_scores)
    assert passed.returncode == 0
    assert_states(passed.stderr, "check passed")
    checks = tmp_path / "checks.csv"
    of_changes = ("--fail-if", "change.max > 0.5", "--checks", checks)
    failed = inside("compare", "demo:encoder", tuned, *of_changes, "-q")
    assert failed.returncode == 1
    assert_states(failed.stderr, "check failed", tuned)
    assert "change.max is 2.31" in failed.stderr
    [check] = pd.read_csv(checks).to_dict("records")
    assert (check["check"], check["model"], check["stack"]) == ("failed", str(tuned), "encoder")
    assert_fails(inside("score", tuned, *of_changes, "-q"), UsageError, "'change.max'", "results of compare")
    assert_fails(inside("compare", "demo:encoder", tuned, "--checks", checks), UsageError, "--checks", "--fail-if")
    (tmp_path / "r.toml").write_text(
        RECIPE.replace("demo:decoder", "./tuned") + '[[results]]\nname = "scores"\ncommand = "score"\n'
        'models = ["demo:encoder", "./tuned"]\n[[check]]\nof = "scores"\nfail_if = "symmetry.median < 0.36"\n'
        '[[check]]\nof = "moved"\nfail_if = "change.max > 0.5"\n'
    )
    report = inside("report", "r.toml", "-q", cwd=tmp_path)
    assert report.returncode == 1
    assert_states(report.stderr, "check failed: ./tuned (encoder)")


def test_checks_of_several_models_stacks_and_heads(inside: Command, folders: tuple[Path, Path]) -> None:
    more = write_single(folders[0].parent / "more", change_head(0, 1))
    conditions = ("--fail-if", "heads.change.max > 0.4 and layers.change.min > 0", "--fail-if", "cosine.min < 0")
    run = inside("compare", *folders, more, *conditions, "-q")
    assert (run.returncode, run.stderr) == (0, "")
    run = inside("compare", *folders, more, "--fail-if", "heads.change.max > 0.4", "-q")
    assert run.returncode == 1
    assert [line.split(" (")[0].split(": ")[-1] for line in run.stderr.splitlines()] == [str(folders[1]), str(more)]


def test_a_narrow_summary_keeps_results_and_lacks_sizes_and_shared_names(
    inside: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    paths = [str(write_single(tmp_path / "runs-with-a-long-name" / f"checkpoint-{step}")) for step in (1, 2)]
    for arguments, results in (
        (("compare", folders[0], *paths), ["change", "cosine"]),
        (("score", *paths, "--sort", "symmetry_median"), ["symmetry", "directionality"]),
    ):
        written = tmp_path / f"{arguments[0]}.tex"
        shown = inside(*arguments, "--summary", "-q", "-o", written, cwd=tmp_path, COLUMNS="80").stdout
        assert ("cosine min" in written.read_text()) == (arguments[0] == "compare")
        table, _, left_out = shown.partition("no room for: ")
        assert all(path in table for path in paths)
        assert all(result in table and result not in left_out for result in results)
        assert "layers" in left_out


def test_the_first_model_may_be_among_those_of_a_pattern_and_a_later_step_is_said(
    inside: Command, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    for step, folder in zip((200, 1000), folders, strict=True):
        shutil.copytree(folder, tmp_path / f"run/checkpoint-{step}")
    run = inside("compare", "run/checkpoint-200", "run/*", "--format", "csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert {*pd.read_csv(io.StringIO(run.stdout))["other"]} == {"run/checkpoint-1000"}
    assert "earlier steps" not in run.stderr
    # As a shell names them.
    run = inside("compare", "run/checkpoint-1000", "run/checkpoint-200", "--format", "csv", cwd=tmp_path)
    assert_states(run.stderr.splitlines()[0], "run/checkpoint-1000", "earlier steps")
