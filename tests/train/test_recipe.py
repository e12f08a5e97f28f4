from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sbert_search.config import to_mapping, to_toml
from sbert_search.errors import ConfigError
from sbert_search.train.bi_encoder import BiEncoderRecipe
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.loop.schedule import BudgetConfig
from sbert_search.train.recipe import load_recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    layers: int = 12
    hidden: int = 768


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a task's recipe may look like: settings of its own beside those of the loop."""

    size: str = "base"
    model: Shape = field(default_factory=Shape)
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(budget=BudgetConfig(epochs=1)),
    )
    names: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)


TEXT = """
size = "mini"
[model]
layers = 6
[train.budget]
steps = 10
[sizes.mini.model]
layers = 4
hidden = 256
[sizes.tiny]
model = {layers = 2, hidden = 128}
train = {optim = {lr = 1e-3}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "task.toml"
    path.write_text(TEXT)
    return str(path)


def test_a_bare_name_is_a_shipped_recipe_of_the_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bi-encoder").mkdir()
    (tmp_path / "bi-encoder" / "nli.toml").write_text("[budget]\nsteps = 7\n")
    monkeypatch.setattr("sbert_search.train.recipe.SHIPPED", tmp_path)
    assert load_recipe(TrainConfig, "bi-encoder", "nli").budget.steps == 7
    with pytest.raises(ConfigError, match="Unknown recipe 'nlli'; did you mean 'nli'"):
        load_recipe(TrainConfig, "bi-encoder", "nlli")
    with pytest.raises(ConfigError, match="Unknown recipe 'nli'"):
        load_recipe(TrainConfig, "cross-encoder", "nli")


def test_a_size_is_laid_over_the_recipe_and_overrides_over_both(recipe: str) -> None:
    assert load_recipe(Task, "bi-encoder", recipe).model == Shape(layers=4, hidden=256)
    tiny = load_recipe(
        Task, "bi-encoder", recipe, ["size=tiny", "model.layers=3", "train.optim.clip=0"]
    )
    assert tiny.model == Shape(layers=3, hidden=128)
    assert (tiny.train.optim.lr, tiny.train.optim.clip, tiny.train.budget.steps) == (1e-3, 0.0, 10)
    assert tiny.size == "tiny"


def test_unknown_names_get_the_nearest_one(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"'train\.optim\.lrr'; did you mean 'lr'"):
        load_recipe(Task, "bi-encoder", recipe, ["train.optim.lrr=1"])
    with pytest.raises(ConfigError, match="Unknown size 'minni'; did you mean 'mini'"):
        load_recipe(Task, "bi-encoder", recipe, ["size=minni"])
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        load_recipe(Task, "bi-encoder", "absent.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sizes = 3", "sizes is 3; it must be a table"),
        ('size = "a"\nsizes = {a = 1}', r"sizes\.a is 1; it must be a table"),
        ("size = 5\nsizes = {a = {}}", "Unknown size '5'"),
        ('train = 3\nsize = "a"\nsizes = {a = {}}', "train is a value, not a table"),
    ],
)
def test_a_value_in_the_place_of_a_table_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(Task, "bi-encoder", str(path), ["train.budget.steps=5"])


def test_a_resolved_recipe_can_be_read_again(recipe: str, tmp_path: Path) -> None:
    overrides = ["names=['a', 'b']", 'prompts={"query: " = "ü\\n"}', "train.schedule.warmup=0.25"]
    task = load_recipe(Task, "bi-encoder", recipe, overrides)
    again = tmp_path / "recipe.toml"
    again.write_text(to_toml(to_mapping(task)), encoding="utf-8")
    assert load_recipe(Task, "bi-encoder", str(again)) == task


def test_a_model_may_be_the_path_of_a_folder() -> None:
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "stsb", ["data.train=t.jsonl"])
    with_path = replace(recipe, model=Path("enc"))
    assert to_mapping(with_path)["model"] == "enc"
    with pytest.raises(ConfigError, match="device is 7; pass a text"):
        replace(recipe, device=7)  # type: ignore[arg-type]
