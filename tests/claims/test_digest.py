"""A digest of what a recipe does: the same for two ways to write it, another for another setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shuhari.config.overlay import format_path, walk_leaves
from shuhari.config.recipe import Recipe, RecipeError, dump, load
from shuhari.lab.claims.digest import compute_digest, describe


def written(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return load(path)


def test_neither_seed_nor_title_nor_threads_count() -> None:
    recipe = load("baselines/grpo")
    assert compute_digest(recipe) == compute_digest(
        recipe.with_settings({"seed": 3, "summary": "x", "threads": 2, "paper.year": 1})
    )
    assert compute_digest(recipe) != compute_digest(
        recipe.with_settings({"task.seed": 0})
    )  # which otherwise is that of the run


def test_a_setting_at_its_default_is_none_wherever_it_stands(tmp_path: Path) -> None:
    chain = 'extends = "baselines/grpo_chain"\n'
    above = written(tmp_path, f"{chain}part.policy.terms.loss.high = 0.2\ncurriculum.use = 'sequential'")
    below = written(tmp_path, f"{chain}stage.rl.part.policy.terms.loss = {{use = 'clip', low = 0.2, high = 0.2}}")
    assert compute_digest(above) == compute_digest(below) == compute_digest(load("baselines/grpo_chain"))
    high = {"part.policy.terms.loss.high": 0.28}
    in_stage = load("baselines/grpo_chain").with_settings({f"stage.rl.{k}": v for k, v in high.items()})
    assert compute_digest(in_stage) == compute_digest(above.with_settings(high))
    assert compute_digest(above.with_settings(high)) != compute_digest(above)


def test_order_counts_where_it_acts_and_names_where_they_are_told(tmp_path: Path) -> None:
    def of(collect: str, terms: str = "clip = {}, entropy = {weight = 0.1}") -> str:
        head = 'extends = "baselines/grpo_chain"\nremove = ["collect", "stage"]\n[[stage]]\nname = "rl"\n'
        return compute_digest(written(tmp_path, f"{head}collect = {{{collect}}}\npart.policy.terms = {{{terms}}}"))

    one = of("drop_uniform_groups = {}, advantage = {}")
    assert one == of("advantage = {}, drop_uniform_groups = {before = 'advantage'}")
    assert one == of("m = {use = 'drop_uniform_groups'}, advantage = {}")
    assert one != of("advantage = {}, drop_uniform_groups = {}")
    assert one == of("drop_uniform_groups = {}, advantage = {}", "entropy = {weight = 0.1}, clip = {}")
    assert one != of("drop_uniform_groups = {}, advantage = {}", "clip = {}, bonus = {use = 'entropy', weight = 0.1}")
    tasks = "task = {name = 'mixture', tasks = {%s}}"
    chain, other = "a = {name = 'chain'}", "b = {name = 'countdown'}"
    orders = (f"{chain}, {other}", f"{other}, {chain}")
    both = [f'extends = "baselines/grpo_chain"\n{tasks % order}' for order in orders]
    assert compute_digest(written(tmp_path, both[0])) != compute_digest(
        written(tmp_path, both[1])
    )  # another is drawn first


def test_shares_of_a_stage_are_its_steps() -> None:
    recipe = load("baselines/grpo_chain")
    rate = "stage.warm-up.part.policy.optimiser.lr"  # of 450 steps
    spelled = recipe.with_settings({rate: {"from": 2e-3, "to": 0, "after": 360, "over": 90, "warm": 15}})
    assert compute_digest(recipe) == compute_digest(spelled)
    assert compute_digest(recipe) != compute_digest(spelled.with_settings({f"{rate}.over": 91}))
    longer = {"stage.warm-up.steps": 900}
    assert compute_digest(recipe.with_settings(longer)) != compute_digest(spelled.with_settings(longer))


def test_files_of_ones_own_go_by_their_names(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "mine.py").write_text("def good(problem, answer):\n    return 1.0\n")
        text = 'extends = "baselines/grpo"\n[reward.good]\nuse = "mine.py:good"\n'
        found.append(compute_digest(written(folder, text)))
    assert found[0] == found[1] != compute_digest(load("baselines/grpo"))


@pytest.mark.parametrize("name", ["rlvr/kimi_k15", "curriculum/dots", "baselines/sac_pendulum"])
def test_every_number_of_a_recipe_is_in_it(name: str) -> None:
    recipe = load(name)
    own = compute_digest(recipe)
    tried = 0
    for path, other in numbers(recipe):
        try:
            found = compute_digest(recipe.with_settings({format_path(path): other}))
        except RecipeError:
            continue  # no number that may stand there
        tried += 1
        assert found != own, format_path(path)
    assert tried > 10 and own == compute_digest(Recipe("x", load_again(recipe).tree))


def numbers(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, value in walk_leaves(recipe.tree):
        told = path[0] in ("format", "threads", "seed", "claim", "paper", "laid")
        if not told and isinstance(value, int | float) and not isinstance(value, bool):
            yield path, 3 * value + 2 if isinstance(value, int) else value * 0.875 or 0.5


def load_again(recipe: Recipe) -> Recipe:
    import tomllib

    tree = tomllib.loads(dump(recipe))
    return Recipe("", {**tree, "stage": {s.pop("name"): s for s in tree["stage"]}} if "stage" in tree else tree)


def test_what_it_describes_are_the_stages() -> None:
    (_, warm), (name, rl) = describe(load("baselines/grpo_chain"))["stages"]
    assert name == "rl" and rl["n"] == 8 and rl["task"]["terms"] == 5 and "task" in warm
    assert rl["learners"]["main"]["parts"]["policy"]["optimiser"]["lr"] == 2e-4
