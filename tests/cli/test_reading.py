"""`runs`, `show`, `eval`, `compare`, `methods`, `tasks`, `doctor`: each tells what the store and the library hold."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import scipy.stats

from shuhari.config.files import find_file
from shuhari.config.library import TROUBLES
from shuhari.config.recipe import list_names, load
from shuhari.desk.api import read_trained
from shuhari.desk.cli.text import NOTHING, make_printable, print_table
from shuhari.store import Run, Store


def told(done) -> object:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_runs(shuhari, home: Path, tmp_path: Path) -> None:
    found = told(shuhari("runs", "--json"))
    assert [(r["name"], r["status"], r["step"]) for r in found] == [("s0", "complete", 4), ("s1", "complete", 4)]
    out = shuhari("runs").out
    assert "s0" in out and "complete" in out and "4/4" in out
    empty = shuhari("runs", "--root", tmp_path / "empty")
    assert empty.code == 0 and "no run is in" in empty.err


def test_show(shuhari, home: Path) -> None:
    run = Run("runs/s0")
    metrics = run.metrics()
    whole = told(shuhari("show", "s0", "--json"))
    assert whole["metrics"]["reward/mean"] == metrics["reward/mean"] and whole["summary"] == run.summary
    rows = list(csv.DictReader(io.StringIO(shuhari("show", "s0", "--csv").out)))
    assert [float(r["reward/mean"]) for r in rows] == metrics["reward/mean"]
    assert [r["evaluate/greedy"] == "" for r in rows] == [v is None for v in metrics["evaluate/greedy"]]
    out = shuhari("show", "s0").out
    heads = ["held-out", "reward", "before", "after", "change"]
    assert "complete, step 4" in out and heads in map(str.split, out.splitlines())
    assert "held-out score" in out and "(held-out score)" in shuhari("runs").out
    assert shuhari("show", "s0", "--json", "--csv").code == 2


def test_show_latest_and_what_is_not_there(shuhari, home: Path) -> None:
    assert shuhari("show", "latest").code == 0
    done = shuhari("show", "s00")
    assert done.code == 2 and "did you mean 's0'?" in done.err


def test_rollouts_are_the_best_the_worst_and_a_random_group(shuhari, home: Path) -> None:
    groups = told(shuhari("show", "s0", "--rollouts", "--json"))
    assert groups[0]["why"] == "best" and {g["step"] for g in groups} == {4}
    assert all(len(g["episodes"]) == 4 for g in groups)
    for g in groups:
        assert g["score"] == pytest.approx(sum(e["reward"]["score"] for e in g["episodes"]) / 4)
    assert groups[0]["score"] == max(g["score"] for g in groups)
    for e in (e for g in groups for e in g["episodes"]):
        (numbers,) = e["decisions"]
        assert len(numbers["logp"]) == len(numbers["advantage"]) and set(map(type, numbers["logp"])) == {float}
    out = shuhari("show", "s0", "--rollouts").out
    assert f"prompt: {groups[0]['problem']['prompt']}" in out and "score=" in out
    none = shuhari("show", "s0", "--rollouts", "--step", 99)
    assert none.code == 1 and "keeps no rollouts of step 99; the nearest step is 4" in none.err


def test_samples_of_text_that_is_written_token_by_token_are_its_rollouts(shuhari, home: Path) -> None:
    done = shuhari("show", "s0", "--samples")
    assert done.code == 2 and "see show --rollouts" in done.err and not Path("runs/s0/samples.png").exists()


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    assert make_printable("a\x1b[2Jb\x07\u202ec") == "a\\x1b[2Jb\\x07\\u202ec"
    assert make_printable("two\nlines") == "two\nlines" and make_printable("x" * 10, 4) == "xxxx… (10 characters)"


def test_a_table_leaves_out_columns_that_have_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b", "c", "d"), [(1, None, "", "x"), (2, None, "", None)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "d"] in lines and ["1", "x"] in lines and ["2", "-"] in lines
    print_table(("a", "b"), [])
    assert capsys.readouterr().out.split()[:2] == ["a", "b"]


def test_runs_of_claims_are_listed_where_they_are_asked_for(shuhari, home: Path) -> None:
    made = Path("runs/claims/0123456789abcdef-s1000")
    with Store.open(made) as store:
        store.write_text("recipe.toml", "name = 'claim'\nsteps = 1\n")
        store.commit(1, stage="main", wall=1.0, metrics={"reward/mean": 1.0})
    (made / "made_for.json").write_text('[{"method": "rlvr/x", "arm": "method", "seed": 1000, "bed": "rev"}]')
    done = shuhari("runs")
    assert "s0" in done.out and "claims/" not in done.out and "1 more was made by claims or studies: --all" in done.err
    assert "rlvr/x, seed 1000" in shuhari("runs", "--all").out
    assert [r["child"] for r in told(shuhari("runs", "rlvr/x", "--all", "--json"))] == [True]
    assert shuhari("runs", "rlvr/x").code == NOTHING and "claims" not in shuhari("show", "latest").out


# ---------------------------------------------------------------- eval and compare


def test_eval_gives_what_the_run_measured_with_intervals(shuhari, home: Path) -> None:
    found = told(shuhari("eval", "s0", "--samples", 4, "-k", 1, "-k", 4, "--json"))
    assert found["greedy"]["value"] == Run("runs/s0").summary["after"]["greedy"] and found["greedy"]["n"] == 8
    assert found["mean"]["value"] == pytest.approx(found["pass@1"]["value"])  # score is 0 or 1 here
    assert found["pass@4"]["value"] >= found["pass@1"]["value"]
    for name in ("greedy", "mean", "pass@1", "pass@4"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    again = told(shuhari("eval", "runs/s0", "--samples", 4, "-k", 1, "-k", 4, "--json"))
    assert {k: v for k, v in again.items() if k != "run"} == {k: v for k, v in found.items() if k != "run"}
    assert Run("runs/s0").step == 4  # nothing was stored


def test_eval_of_an_earlier_step_and_another_split(shuhari, home: Path) -> None:
    found = told(shuhari("eval", "s0", "--step", 2, "-n", 3, "--samples", 1, "--split", "train", "--json"))
    assert (found["step"], found["split"], found["problems"]) == (2, "train", 3) and "mean" not in found
    out = shuhari("eval", "s0", "--n", 2, "--samples", 2).out
    assert "pass@2" in out and "95 % interval" in out
    done = shuhari("eval", "s0", "--split", "nope")
    assert done.code == 2 and "--split" in done.err and "'nope'" in done.err and "known: test, train" in done.err
    done = shuhari("eval", "s0", "--samples", 2, "-k", 4)
    assert done.code == 2 and "at least 4 samples" in " ".join(done.err.replace("│", " ").split())


def test_eval_in_further_ways_says_which_setting_gave_them(shuhari, home: Path) -> None:
    way = "evaluate.more.cold.sampling.temperature=0.1"
    found = told(shuhari("eval", "s0", "--samples", 4, "--set", way, "--json"))
    assert found["settings"] == {"evaluate.more.cold.sampling.temperature": 0.1} and found["cold.mean"]["n"] == 8
    assert found["cold.mean"]["low"] <= found["cold.mean"]["value"] <= found["cold.mean"]["high"]
    plain = told(shuhari("eval", "s0", "--samples", 4, "--json"))
    assert {k: v for k, v in found.items() if "cold" not in k and k not in ("settings", "tokens")} == {
        k: v for k, v in plain.items() if k != "settings"
    }
    done = shuhari("eval", "s0", "--set", way, "--set", "evaluate.samples=2")
    assert "cold.pass@2" in done.out and "pass@4" not in done.out
    assert "set: evaluate.more.cold.sampling.temperature = 0.1" in done.out
    done = shuhari("eval", "s0", "--set", "part.policy.optimiser.lr=1")
    assert done.code == 2 and "evaluated as it was trained: expected evaluate.<setting>" in done.err


def test_a_run_that_only_measures_is_a_run(shuhari, home: Path) -> None:
    Path("look.toml").write_text(
        Path("runs/s0/recipe.toml").read_text().partition("[buffer]")[0].replace("steps = 4", "steps = 0")
        + "[evaluate]\nn = 8\nmore.cold.sampling.temperature = 0.1\n"
    )
    done = shuhari("train", "look.toml", "--init", "s0", "--run", "runs/look")
    assert done.code == 0 and "cold.greedy" in done.out and "the last stage only measures" in done.out, done
    assert Run("runs/look").metrics()["evaluate/greedy"] == [Run("runs/s0").summary["after"]["greedy"]]
    again = shuhari("train", "look.toml", "--init", "s0", "--run", "runs/look")
    assert again.code == 0 and "is complete" in again.err
    assert "all of it is as it was written" in shuhari("doctor", "look").out
    assert "only measures" in shuhari("diagnose", "look").out
    shown = shuhari("show", "look")
    assert shown.code == 0 and "complete, step 0" in shown.out
    assert shuhari("export", "look", "exported").code == 0 and Path("exported/config.json").is_file()
    page = shuhari("board", "--json", "run?run=look")
    assert page.code == 0, page.err


def copy_runs(values: dict[str, list[float]], seeds: list[int]) -> list[str]:
    """Runs of an arm for each name, whose last reward is as given; the arms, as `compare` takes them."""
    arms = []
    for name, wanted in values.items():
        for seed, value in zip(seeds, wanted, strict=True):
            recipe = Path("runs/s0/recipe.toml").read_text().replace("seed = 0", f"seed = {seed}")
            with Store.open(Path(f"runs/{name}{seed}")) as store:
                store.write_text("recipe.toml", recipe)
                store.commit(1, stage="main", wall=1.0, metrics={"reward/mean": value})
        arms.append(",".join(f"{name}{seed}" for seed in seeds))
    return arms


def test_compare_of_few_seeds_gives_no_interval(shuhari, home: Path) -> None:
    a, b = (Run(f"runs/s{i}").metrics()["reward/mean"][-1] for i in (0, 1))
    asked = ("compare", "s0,s1", "s1,s0", "--metric", "reward/mean", "--png", "out/c.png")
    found = told(shuhari(*asked, "--json"))
    first, second = found["arms"].values()
    assert found["over"] == "seeds" and first["value"] == pytest.approx((a + b) / 2) and first["n"] == 2
    assert second["difference"] == pytest.approx(0) and second["low"] is second["high"] is None
    assert "fewer than 5" in found["caveats"][0] and "no interval: 2 seeds" in shuhari(*asked).err
    assert (home / "out/c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_of_five_seeds_is_the_paired_interval_of_claims(shuhari, home: Path) -> None:
    x, y = [0.1, 0.5, 0.2, 0.4, 0.3], [0.3, 0.6, 0.3, 0.7, 0.5]
    arms = copy_runs({"a": x, "b": y}, [0, 1, 2, 3, 4])
    found = told(shuhari("compare", *arms, "--metric", "reward/mean", "--json"))
    entry = found["arms"]["b"]  # what its runs begin with
    wanted = scipy.stats.ttest_rel(y, x).confidence_interval()
    assert (entry["low"], entry["high"]) == pytest.approx((wanted.low, wanted.high))
    assert entry["paired"] is True and not found["caveats"]
    shuffled = "B=" + ",".join(reversed(arms[1].split(",")))
    found = told(shuhari("compare", f"A={arms[0]}", shuffled, "--metric", "reward/mean:final", "--json"))
    assert found["arms"]["B"] == entry and [*found["arms"]] == ["A", "B"]


def test_compare_of_several_arms_corrects_and_writes_tables(shuhari, home: Path) -> None:
    x, y, z = [0.1, 0.5, 0.2, 0.4, 0.3], [0.3, 0.6, 0.3, 0.7, 0.5], [0.2, 0.4, 0.2, 0.5, 0.3]
    a, b, c = copy_runs({"a": x, "b": y, "c": z}, [0, 1, 2, 3, 4])
    asked = ("compare", f"GRPO={a}", f"Clip-Cov={b}", f"100%_new={c}", "--metric", "reward/mean",
             "--guard", "step:best")  # fmt: skip
    done = shuhari(*asked, "--table", "t/x.tex", "--table", "x.csv", "--table", "x.md", "--pdf", "x.pdf", "--json")
    found = told(done)
    p = scipy.stats.ttest_rel(y, x).pvalue
    assert 0.005 < p < 0.025 and found["arms"]["Clip-Cov"]["level"] == pytest.approx(0.975)
    wanted = scipy.stats.ttest_rel(y, x).confidence_interval(0.975)
    assert found["arms"]["Clip-Cov"]["low"] == pytest.approx(wanted.low) and found["arms"]["100%_new"]["level"] == 0.95
    assert "2 comparisons with GRPO are read together" in found["caveats"][0]
    assert Path("x.pdf").read_bytes().startswith(b"%PDF") and not Path("compare.png").exists()
    tex = Path("t/x.tex").read_text()
    assert r"Clip-Cov & 5 & 0.48 [0.26, 0.70] & 0.18 [0.05, 0.31] & 97.5 \%" in tex and r"100\%\_new" in tex
    assert "Holm" in tex and "| Clip-Cov | 5 | 0.48 [0.26, 0.70] |" in Path("x.md").read_text()
    rows = list(csv.DictReader(Path("x.csv").read_text().splitlines()))
    assert [r["arm"] for r in rows] == ["GRPO", "Clip-Cov", "100%_new"] * 2 and rows[3]["metric"] == "step:best"
    assert float(rows[1]["difference"]) == pytest.approx(0.18) and rows[0]["difference"] == ""
    assert "no interval of Clip-Cov" not in done.err and "there is no room" not in done.err


def test_compare_at_a_ceiling_has_no_interval(shuhari, home: Path) -> None:
    """All seeds alike: [0, 0] would be certain of what five equal numbers do not tell."""
    arms = copy_runs({"a": [1.0] * 5, "b": [1.0] * 5}, [0, 1, 2, 3, 4])
    done = shuhari("compare", *arms, "--metric", "reward/mean")
    assert done.code == 0 and "[0, 0]" not in done.out
    assert "no interval of b: every value of both is 1: there is no room to differ in" in done.err


def test_compare_names_arms_and_refuses_what_is_none(shuhari, home: Path) -> None:
    for words, told in (
        (("A=s0", "A=s1"), "two arms are called 'A'"),
        (("A=s0", "B="), "'B=' names no run"),
        (("A=s0", "B=s1", "--metric", "reward/mean:are"), "did you mean 'area'"),
        (("A=s0", "B=s1", "--table", "x.doc"), "expected .tex, .csv, .md"),
        (("A=s0", "--bed", "beds/trie/easy"), "--bed compares what was measured there"),
        (("--bed", "beds/trie/easyy"), "did you mean 'beds/trie/easy'"),
    ):
        done = shuhari("compare", *words)
        assert done.code == 2 and told in " ".join(done.err.replace("│", " ").split()), done.err


def test_compare_draws_for_print(shuhari, home: Path) -> None:
    assert shuhari("compare", "s0,s1", "s1,s0", "--metric", "reward/mean", "--plot", "c.svg").code == 0
    assert Path("c.svg").read_text().startswith("<?xml") and "reward (reward/mean)</text>" in Path("c.svg").read_text()
    done = shuhari("compare", "s0", "s1", "--metric", "reward/mean", "--png", "c.gif")
    assert done.code == 2 and "expected .png or .svg or .pdf" in " ".join(done.err.replace("│", " ").split())


def test_compare_labels_for_a_paper(shuhari, home: Path) -> None:
    asked = ("compare", "A=s0", "B=s1", "--metric", "reward/mean:final")
    labels = ("--label", r"reward/mean=accuracy (\%)", "--label", "x=training steps")
    assert shuhari(*asked, *labels, "--svg", "c.svg", "--table", "c.tex", "--table", "c.md").code == 0
    drawn = Path("c.svg").read_text()
    assert r"accuracy (\%)</text>" in drawn and "training steps</text>" in drawn and "reward/mean" not in drawn
    assert r"arm & seeds & accuracy (\%) & difference to A" in Path("c.tex").read_text()
    assert "| accuracy" in Path("c.md").read_text()
    formula = ("--label", r"reward=$\mathrm{KL}$", "--label", "x=cost in $", "--svg", "d.svg")
    assert shuhari(*asked, *formula).code == 0
    assert ">K</tspan>" in (drawn := Path("d.svg").read_text()) and "cost in $</text>" in drawn
    for label, told in (("rewards=a", "did you mean 'reward'"), ("x", "expected NAME=TEXT")):
        done = shuhari(*asked, "--label", label)
        assert done.code == 2 and told in " ".join(done.err.replace("│", " ").split()), done.err


def test_compare_asks_for_different_seeds(shuhari, home: Path) -> None:
    done = shuhari("compare", "s0,s1", "s1,s0,s1", "--metric", "reward/mean")
    assert done.code == 2 and "two runs have seed 1" in " ".join(done.err.split())


def test_compare_of_single_runs_is_over_problems(shuhari, home: Path) -> None:
    done = shuhari("compare", "s0", "s1", "-n", 6)
    assert done.code == 0 and "problems" in done.out and "plot: compare.png" in done.out
    assert "one run an arm" in done.err and done.out.split()[0] == "held-out"
    assert "written over" not in done.err
    again = shuhari("compare", "s0", "s1", "--n", 6, "--metric", "held-out")
    assert again.out == done.out and "compare.png was there, and is written over" in again.err
    found = told(shuhari("compare", "s0", "s1", "-n", 6, "--json"))["arms"]
    assert found["s1"]["paired"] is True and found["s1"]["n"] == 6  # the same problems, though the seeds differ
    assert found["s0"]["value"] == told(shuhari("eval", "s0", "-n", 6, "--samples", 1, "--json"))["greedy"]["value"]
    assert found["s1"]["low"] is None and "no interval: 6 held-out problems" in done.err  # too few
    assert "compared: 'score'" in done.out
    recipe = Path("runs/s1/recipe.toml")
    recipe.write_text(recipe.read_text() + "\n[reward.own]\nuse = 'length'\n[reward.weights]\nown = 1.0\n")
    done = shuhari("compare", "s0", "s1", "--png", "c.png")
    assert "compared is 'score'; trained is 'own': --metric evaluate/greedy.own" in done.err
    done = shuhari("compare", "s0", "s0,", "--metric", "evaluate/greedy.scor")
    assert done.code == 2 and "did you mean 'score'" in " ".join(done.err.replace("│", " ").split())


def test_runs_that_differ_by_the_same_everywhere_have_no_interval(shuhari, home: Path) -> None:
    """The interval of equal differences would be [0, 0], as though nothing were left to know."""
    shutil.copytree("runs/s0", "runs/again")
    done = shuhari("compare", "s0", "again", "-n", 12)
    assert done.code == 0 and "[0, 0]" not in done.out and "the same on each of 12 problems" in done.err


def test_eval_of_recorded_pairs_is_their_accuracy(shuhari, home: Path) -> None:
    """Of a reward model, which no rollout plays, and of a policy trained on pairs, of which nothing is graded."""
    row = '{"prompt": "%d=", "chosen": "1", "rejected": "2", "split": "%s"}\n'
    Path("pairs.jsonl").write_text("".join(row % (i, "test" if i < 12 else "train") for i in range(40)))
    small = "hidden = 16\nlayers = 1\nheads = 2\n"
    Path("rm.toml").write_text(
        f"steps = 12\n[task]\nname = 'file/pairs.jsonl'\n[models.reward]\nuse = 'causal_value'\nafter = 'last'\n{small}"
        "[buffer]\nuse = 'preferences'\nrole = 'reward'\nsize = 8\n[part.reward]\noptimiser.lr = 1e-2\n"
        "terms.preference = {role = 'reward', score = 'value', reference_free = true, beta = 1.0}\n"
    )
    assert shuhari("train", "rm.toml", "--run", "runs/rm", "--set", "evaluate.every=6").code == 0
    summary = Run("runs/rm").summary
    share = summary["after"]["reward/accuracy"]
    assert share > 0.5 and "greedy" not in summary["after"]
    found = told(shuhari("eval", "rm", "--json"))
    wilson = scipy.stats.binomtest(round(12 * share), 12).proportion_ci(method="wilson")
    assert found["reward/accuracy"] == pytest.approx({"value": share, "low": wilson.low, "high": wilson.high, "n": 12})
    assert "chosen answer is above the rejected" in shuhari("eval", "rm").out
    sizes = [f"models.policy.{key}" for key in ("hidden=16", "layers=1", "heads=2")]
    sets = ["task.name=file/pairs.jsonl", "buffer.use=preferences", 'remove=["stage.warm-up"]', "steps=2", *sizes]
    asked = [word for text in sets for word in ("--set", text)]
    assert shuhari("train", "baselines/dpo", "--run", "runs/dpo", *asked).code == 0
    found = told(shuhari("eval", "dpo", "--samples", 2, "--json"))
    assert found["policy/accuracy"]["value"] == Run("runs/dpo").summary["after"]["policy/accuracy"]
    assert "greedy" not in found
    assert read_trained("runs/dpo").evaluate()["policy/accuracy"] == found["policy/accuracy"]["value"]
    done = shuhari("compare", "rm", "dpo")
    assert done.code == 2 and "evaluate/reward/accuracy" in done.err


def test_compare_mistakes(shuhari, home: Path) -> None:
    assert shuhari("compare", "s0").code == 2
    done = shuhari("compare", "s0,s1", "s1", "--metric", "reward/men")
    assert done.code == 2 and "did you mean 'reward/mean'?" in " ".join(done.err.replace("│", " ").split())


# ---------------------------------------------------------------- what there is


KEYS = {"name", "family", "paper", "summary", "verdict", "stale", "helps", "problem"}


def test_methods(shuhari) -> None:
    found = told(shuhari("methods", "--json"))
    assert [m["name"] for m in found] == list_names()
    assert all(set(m) == KEYS for m in found)
    out = shuhari("methods", "--all").out
    methods, _, beds = out.partition("Beds, and what is seen there")
    assert "baselines/grpo\n" in methods and "\nbeds/" not in methods
    assert "beds/trie/twins" in beds and "control" not in beds
    assert max(map(len, out.splitlines())) <= 80


def test_methods_without_words_are_names_by_family(shuhari) -> None:
    """All of them, each once, on a screen; controls are found by their bed's name."""
    out = shuhari("methods").out
    lists, _, how = out.partition("\n\n")
    rows = dict(re.findall(r"^(\S+)/ \(\d+\): (.*)$", lists.replace("\n    ", " "), re.MULTILINE))
    named = [
        f"{family}/{name}"
        for family, names in rows.items()
        for name in names.split(", ")
    ]
    controls = {name for name in list_names() if name.startswith("beds/") and "/control/" in name}
    assert sorted(named) == sorted(set(list_names()) - controls)
    assert list(rows)[-1].startswith("beds/") and list(rows)[:2] == ["baselines", "pretrained"]
    assert "`shuhari methods WORD" in how and max(map(len, lists.splitlines())) <= 80 and len(lists.splitlines()) < 60


def test_a_long_verdict_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from shuhari.desk.cli.catalogue import _say_method
    from shuhari.lab.claims.wording import describe_verdict

    failing = [f"stage-{i}: evaluate/greedy of the baseline at least 0.{i}" for i in range(4)]
    kept = {"headline": {}, "verdict": "uninformative", "premise": {"failing": failing}, "hashes": {}}
    kept |= {"guard": "", "because": "not asked", "exploratory": [], "kind": "trained"}
    verdict = describe_verdict(kept)
    _say_method(SimpleNamespace(name="rlvr/x", summary="What it does.", problem=None), verdict)
    *head, about = capsys.readouterr().out.splitlines()
    assert len(head) > 2 and max(map(len, head)) <= 80 and about == "    What it does."
    assert " ".join(map(str.strip, head)) == f"rlvr/x: {verdict}" and failing[3] in verdict


def test_methods_by_trouble(shuhari) -> None:
    found = told(shuhari("methods", "--for", "Slow collection", "--json"))
    assert {m["name"] for m in found} == {"engine/areal", "engine/srl"}
    assert "rlvr/kl_cov: " in shuhari("methods", "--for", "entropy collapse", "covariance").out
    assert "hopeless problems" in shuhari("methods", "--for", "all").out
    assert shuhari("methods", "--for", "long answer").out == shuhari("methods", "--for", "long answers").out
    for wrong, near in (("hopless", "hopeless problems"), ("entropy colapse", ""), ("forgeting", "forgetting")):
        done = shuhari("methods", "--for", wrong)
        assert (done.code == 2 and f"did you mean '{near}'" in done.err) if near else "rlvr/kl_cov" in done.out
    assert shuhari("methods", "--for", "entropy").out == shuhari("methods", "--for", "entropy collapse").out


def test_every_method_names_its_troubles() -> None:
    """So that `--for` finds it: each that has a folder, and each paper's recipe that has a claim."""
    for name in list_names():
        file, tree = find_file(name), load(name).tree
        folder = file is not None and file.name == "recipe.toml"
        if folder or ("claim" in tree and "paper" in tree):
            paper = tree.get("paper", {})
            assert {"title", "year"} <= paper.keys(), f"{name}: [paper] has {', '.join(paper) or 'nothing'}"
            helps = paper.get("helps", [])
            assert helps and set(helps) <= set(TROUBLES), f"{name}: paper.helps = {helps}, of {list(TROUBLES)}"


def test_methods_by_words(shuhari) -> None:
    assert {m["name"] for m in told(shuhari("methods", "kl_cov", "--json"))} == {"rlvr/kl_cov"}
    assert "covariance" in shuhari("methods", "KL_cov").out
    none = shuhari("methods", "grpo", "nothing-is-called-so")
    assert none.code == 1 and "no recipe has grpo and nothing-is-called-so" in none.err
    misspelt = shuhari("methods", "luspoo", "--json")
    assert misspelt.code == 1 and json.loads(misspelt.out) == [] and "did you mean 'luspo'?" in misspelt.err
    assert "--for 'forgetting'" in shuhari("methods", "forgeting").err


def test_a_long_reason_of_a_failure_is_a_line(shuhari, home: Path) -> None:
    with Store.open(Path("runs/s0"), keep=1) as store:
        store.set(failed="ValueError: " + "x" * 300 + "\nsecond line", complete=False)
    listed = shuhari("runs").out
    assert "…" in listed and "x" * 81 not in listed and "second line" not in listed
    told_whole = next(r for r in told(shuhari("runs", "--json")) if r["name"] == "s0")
    assert told_whole["note"].endswith("second line")
    assert "second line" in shuhari("show", "s0").err


def test_an_open_guard_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from shuhari.desk.cli.catalogue import _describe_verdict
    from shuhari.lab.claims import kept_results, wording

    kept = {"headline": {"low": 0.1}, "guard": "open", "hashes": {}, "because": "not asked", "premise": {"failing": []}}
    kept |= {"exploratory": [], "kind": "trained"}
    monkeypatch.setattr(kept_results, "read_result", lambda name: kept)
    monkeypatch.setattr(wording, "is_older", lambda hashes: False)
    method = SimpleNamespace(name="rlvr/x", problem=None, verdict="holds", stale="")
    kept["verdict"] = "open"
    assert _describe_verdict(method) == "open (its guard open)"
    kept["headline"]["low"] = -0.1
    assert _describe_verdict(method) == "open"


def test_tasks_of_an_environment_shows_its_spaces(shuhari, home: Path) -> None:
    out = shuhari("tasks", "gym/CartPole-v1").out
    assert "Discrete(2)" in out and "at most 500 steps" in out and "train/0" not in out and " - " not in out


def test_tasks(shuhari, home: Path) -> None:
    found = told(shuhari("tasks", "--json"))
    assert {"arithmetic", "countdown", "bandit", "gridworld"} <= {t["name"] for t in found}
    out = shuhari("tasks").out
    assert "arithmetic" in out and "-> - " not in out
    shown = told(shuhari("tasks", "arithmetic", "-n", 2, "--set", "digits=3", "--json"))
    assert len(shown) == 2 and all(len(p["prompt"].split("+")[0]) == 3 for p in shown)
    done = shuhari("tasks", "arithmetik")
    assert done.code == 2 and "did you mean 'arithmetic'?" in done.err


def test_runs_are_chosen_by_words_and_removed_when_asked(shuhari, home: Path) -> None:
    assert [r["name"] for r in told(shuhari("runs", "S1", "--json"))] == ["s1"]
    assert told(shuhari("runs", "--status", "failed", "--json")) == []
    for more in ((), ("--json",), ("--rm", "--yes")):
        none = shuhari("runs", "s00", *more)
        assert none.code == 1 and "no run with s00 is in runs/; did you mean 's0'?" in none.err
    out = shuhari("runs", "s0").out
    assert "tiny" in out and "arithmetic" in out and "s1" not in out
    assert "did you mean 'failed'" in shuhari("runs", "--status", "faild").err
    assert shuhari("runs", "--rm").code == 2 and len(told(shuhari("runs", "--json"))) == 2
    assert "shuhari runs s0 --rm" in " ".join(shuhari("runs", "rm", "s0").err.split())
    assert "removed" in shuhari("runs", "s0", "--rm", "--yes").out
    assert [p.name for p in (home / "runs").iterdir()] == ["s1"]


def test_runs_are_tagged_and_renamed(shuhari, home: Path) -> None:
    out = shuhari("runs", "s0", "--tag", "good", "--tag", "first").out
    assert "first good" in out and "s1" not in out
    assert [r["name"] for r in told(shuhari("runs", "tag:good", "--json"))] == ["s0"]
    assert told(shuhari("runs", "tag:good", "--untag", "first", "--json"))[0]["tags"] == ["good"]
    assert "renamed" in shuhari("runs", "s0", "--rename", "sums/s0").out
    assert shuhari("runs", "sums/s0", "--rename", "s1").code == 1
    assert shuhari("runs", "--rename", "x").code == 2 and shuhari("runs", "--tag", "x").code == 2
    assert sorted(r["name"] for r in told(shuhari("runs", "--json"))) == ["s1", "sums/s0"]


def test_doctor_of_a_run_changes_it_only_when_asked(shuhari, home: Path) -> None:
    run = home / "runs" / "s0"
    assert shuhari("doctor", "s0").code == 0 and "all of it is as it was written" in shuhari("doctor", run).out
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    refused = shuhari("train", "tiny.toml", "--seed", 0, "--set", "steps=5", "--run", run)
    assert refused.code == 1 and f"shuhari doctor {run}" in refused.err
    told = shuhari("doctor", run)
    assert told.code == 1 and "damaged: " in told.out and "to go on from step 2: shuhari doctor" in told.out
    assert not (run / "damaged-1").exists()
    done = shuhari("doctor", run, "--repair")
    assert done.code == 0 and "goes on from step 2, whose checkpoint is whole; steps 3 to 4 are made again" in done.out
    again = shuhari("doctor", run, "--json")
    assert again.code == 0 and json.loads(again.out)["goes_on_from"] == 2 and json.loads(again.out)["faults"] == []
    assert shuhari("train", "tiny.toml", "--seed", 0, "--run", run).code == 0


def test_doctor(shuhari) -> None:
    import torch

    found = told(shuhari("doctor", "--json"))
    assert found["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["torch"]["matmul_gflops"] > 0
    assert found["cores"]["usable"] >= 1 and isinstance(found["sandbox"]["works"], bool)
    assert "sandbox" in shuhari("doctor").out


def test_every_command_has_help_with_an_example(shuhari) -> None:
    for command in ("train", "eval", "runs", "show", "compare", "methods", "tasks", "doctor", "serve"):
        done = shuhari(command, "--help")
        assert done.code == 0 and f"Example: shuhari {command}" in " ".join(done.out.split())
    assert "0.1.0" in shuhari("--version").out and shuhari("nothing").code == 2


def test_show_tells_what_went_wrong(shuhari, home: Path) -> None:
    assert "problem" not in shuhari("show", "s0").err
    with Store.open("runs/s0") as store:
        problems = [("problem", f"failed_graders: {i} \x1b[31m") for i in (1, 2, 1, *range(3, 8))]
        store.commit(5, metrics={}, events=problems)
        err = shuhari("show", "s0").err
    assert err.count("problem, last at step 5: failed_graders") == 5 and "failed_graders: 7" in err
    assert "\x1b" not in err


def test_a_run_of_which_nothing_can_be_graded_is_measured_by_its_pairs(shuhari, home: Path) -> None:
    row = '{"prompt": "%d+1=", "chosen": "2", "rejected": "3", "split": "%s"}\n'
    Path("pairs.jsonl").write_text("".join(row % (i, "test" if i % 2 else "train") for i in range(8)))
    tiny = ["models.policy.hidden=16", "models.policy.layers=1", "models.policy.heads=2", "buffer.size=4", "steps=2"]
    own = ["task.name=file/pairs.jsonl", "buffer.use=preferences", 'remove=["stage.warm-up"]']
    shown = shuhari("train", "baselines/dpo", "--run", "prefs", *(x for s in tiny + own for x in ("--set", s)))
    assert shown.code == 0, shown.err
    assert "preferred" in shuhari("show", "prefs").out
    done = shuhari("eval", "prefs")
    assert done.code == 0 and "policy/accuracy" in done.out and "greedy" not in done.out


def test_show_profile_tells_where_the_time_went_if_it_was_measured(shuhari, home: Path) -> None:
    none = shuhari("show", "s0", "--profile")
    assert none.code == 1 and "has no profile" in none.err
    done = shuhari("train", "tiny.toml", "--run", "runs/told", "--set", "steps=2", "--profile")
    assert done.code == 0 and "steps 1 to 2" in done.out and "generate" in done.out and "ui.perfetto.dev" in done.out
    assert shuhari("show", "told", "--profile").out.strip() in done.out
    assert told(shuhari("show", "told", "--profile", "--json"))["last_step"] == 2
