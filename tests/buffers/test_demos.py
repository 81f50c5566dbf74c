"""Demonstrations: the rows, the walk over problems, what is remembered."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import STATUS
from shuhari.buffers.demos import Demos
from shuhari.data import Problem, Status
from shuhari.kernel.ratio import log_ratio

END = 77


class Squares:
    def __init__(self, count=None, solution=str):
        self.count, self.solution = count, solution

    def size(self):
        return self.count

    def __getitem__(self, i):
        return Problem("squares", str(i), str(i), solution=self.solution(i))


def context(source, splits=None):
    def problems(split):
        if splits is not None:
            splits.append(split)
        return source

    task = SimpleNamespace(problems=problems, environment=lambda problem: None)
    return testing.context(task=task, models={"policy": Digits()})


class Digits:
    """Text as its digits."""

    end = END

    def encode(self, text):
        return np.array([int(c) for c in text], np.int32)

    def decode(self, ids):
        return "".join(str(i) for i in ids if i != END)


def seen(buffer, ctx):
    return [int("".join(map(str, s.context))) for b in buffer.draw(ctx) for s in b.steps]


def test_a_row_is_prompt_and_solution_with_an_end_all_decided():
    splits = []
    ctx = context(Squares(solution=lambda i: str(i * i)), splits)
    buffer = Demos(size=3, offset=11)
    (batch,) = buffer.draw(ctx)
    assert [s.context.tolist() for s in batch.steps] == [[1, 1], [1, 2], [1, 3]] and splits == ["train"]
    assert batch["action"].tolist() == [[1, 2, 1, END], [1, 4, 4, END], [1, 6, 9, END]]
    assert bool(batch["mask"].all()) and bool(batch["logp"].isnan().all()) and bool((batch["version"] == -1).all())
    assert batch.stream == "ce" and batch.weight("ce").sum() == 12 and batch["length"].tolist() == [6, 6, 6]
    assert ctx.ledger == {"decisions": 12}  # imitation is not free
    with pytest.raises(ValueError, match="unknown"):
        log_ratio(torch.zeros(3, 4), batch["logp"], batch)


def test_solutions_may_be_ids_or_pieces_and_an_end_is_not_doubled():
    ids = context(Squares(solution=lambda i: np.array([4, END], np.int32)))
    assert next(iter(Demos(size=1).draw(ids)))["action"].tolist() == [[4, END]]
    pieces = context(Squares(solution=lambda i: ("12", "3")))
    assert next(iter(Demos(size=1).draw(pieces)))["action"].tolist() == [[1, 2, 3, END]]


def test_an_endless_task_is_walked_on_from_the_offset_and_resumed():
    ctx = context(Squares())
    buffer = Demos(size=2, draws=2, offset=100)
    assert seen(buffer, ctx) == [100, 101, 102, 103] and buffer.state == {"at": 4, "rows": 4} and buffer.wanted() == 0
    again = Demos(size=2, draws=2, offset=100)
    again.state = {"at": 4}
    assert seen(again, ctx) == seen(buffer, ctx) == [104, 105, 106, 107]


def test_a_finite_split_is_walked_round_and_round_each_pass_in_its_own_order():
    ctx = context(Squares(count=5))
    plain = Demos(size=7, shuffle=False, offset=3)
    assert seen(plain, ctx) == [3, 4, 0, 1, 2, 3, 4]
    buffer = Demos(size=5, offset=0, draws=4)
    walk = seen(buffer, ctx)
    passes = [tuple(walk[i : i + 5]) for i in range(0, 20, 5)]
    assert all(sorted(p) == [0, 1, 2, 3, 4] for p in passes) and len(set(passes)) > 1
    assert seen(Demos(size=5, offset=0, draws=4), ctx) == walk


class Kinds(Squares):
    """Of every three problems the second is `hard`."""

    def __getitem__(self, i):
        return Problem("squares", str(i), str(i), solution="1", info={"kind": "hard" if i % 3 == 1 else "easy"})


def test_problems_are_chosen_by_what_they_are():
    ctx = context(Kinds())
    buffer = Demos(size=2, draws=2, offset=100, where={"kind": "hard"})
    assert seen(buffer, ctx) == [100, 103, 106, 109]
    again = Demos(size=2, draws=2, offset=100, where={"kind": "hard"})
    again.state = {"at": 4}
    assert seen(again, ctx) == seen(buffer, ctx) == [112, 115, 118, 121]
    assert seen(Demos(size=3, offset=100, where={"kind": ["hard", "easy"]}), ctx) == [100, 101, 102]
    few = context(Kinds(count=8))  # 1, 4 and 7
    assert seen(Demos(size=4, offset=0, shuffle=False, where={"kind": "hard"}), few) == [1, 4, 7, 1]
    walk = seen(Demos(size=3, draws=3, offset=0, where={"kind": "hard"}), few)
    assert [sorted(walk[i : i + 3]) for i in (0, 3, 6)] == [[1, 4, 7]] * 3
    (held,) = Demos(size=4, where={"kind": "hard"}).held_out("test", 5, few)
    assert len(held) == 3


@pytest.mark.parametrize("count", [None, 8])
def test_a_choice_that_no_problem_meets_says_what_there_is(count):
    with pytest.raises(ValueError, match=r"none of \d+ problems is so; their 'kind' are easy, hard"):
        list(Demos(size=1, where={"kind": "hrad"}).draw(context(Kinds(count))))
    with pytest.raises(ValueError, match="'knid': did you mean 'kind'"):
        list(Demos(size=1, where={"knid": "hard"}).draw(context(Kinds(count))))


def test_ids_are_unique_over_draws_and_apart_from_the_runs():
    ctx = context(Squares())
    buffer = Demos(size=4, draws=3)
    ids = torch.cat([b["id"] for b in buffer.draw(ctx)] + [b["id"] for b in Demos(size=4, stream="other").draw(ctx)])
    assert len(ids.unique()) == 16 and int(ids.min()) > 2**40


def test_an_answer_is_imitated_only_where_that_is_said():
    class Answers(Squares):
        def __getitem__(self, i):
            return Problem("squares", str(i), "1", answer="42")

    with pytest.raises(ValueError, match=r"problem '1000000' of squares has an answer and no demonstration.*imitate"):
        list(Demos(size=1).draw(context(Answers())))


def test_without_a_solution_the_answer_is_shown():
    class Answers(Squares):
        def __getitem__(self, i):
            return Problem("squares", str(i), "1", answer="42")

    assert next(iter(Demos(size=1, imitate="answer").draw(context(Answers()))))["action"].tolist() == [[4, 2, END]]


def test_an_answer_that_is_a_number_is_shown_as_text():
    class Answers(Squares):
        def __getitem__(self, i):
            return Problem("squares", str(i), "1", answer=42)

    assert next(iter(Demos(size=1, imitate="answer").draw(context(Answers()))))["action"].tolist() == [[4, 2, END]]


def test_what_cannot_be_demonstrated_is_named():
    with pytest.raises(ValueError, match="problem '1000000' of squares has no solution"):
        list(Demos(size=1).draw(context(Squares(solution=lambda i: None))))
    with pytest.raises(TypeError, match="not text"):
        list(Demos(size=1).draw(context(Squares(solution=lambda i: 0.5))))
    with pytest.raises(ValueError, match="no problems"):
        list(Demos(size=1).draw(context(Squares(count=0))))


# ------------------------------------------------------------------------------------------------ several turns


class Echo:
    """Says `<what was said>` back, until somebody says `9`."""

    def __init__(self, fails=False):
        self.fails, self.closed = fails, 0

    def reset(self, problem):
        return problem.prompt

    def step(self, action):
        if self.fails:
            raise OSError("no echo")
        return ("", {}, Status.FINISHED) if action == "9" else (f"0{action}0", {"task": 1.0}, None)

    def close(self):
        self.closed += 1


def played(solution, world=None):
    ctx, world = context(Squares(solution=lambda i: solution)), world or Echo()
    ctx.task.environment = lambda problem: world
    (batch,) = Demos(size=1, offset=12).draw(ctx)
    assert world.closed == 1 and ctx.ledger == {"decisions": int(batch["mask"].sum())}  # not what is said between
    return batch


def test_turns_are_played_in_the_environment_and_only_they_are_decided():
    batch = played(("34", "5", "9"))
    assert len(batch) == 1 and batch.steps[0].context.tolist() == [1, 2]  # the turns are one row, without a closing one
    assert batch["action"][0].tolist() == [3, 4, END, 0, 3, 4, 0, 5, END, 0, 5, 0, 9, END]
    assert batch["mask"][0].long().tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert batch["segment"][0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert batch.weight("ce")[0].tolist() == batch["mask"][0].float().tolist()
    assert bool(batch["logp"][batch["mask"]].isnan().all()) and batch["status"][0] == STATUS[Status.FINISHED]
    one = played("34")  # a text is one turn; where the game is not over, the demonstration is cut
    assert one["action"][0].tolist() == [3, 4, END] and one["status"][0] == STATUS[Status.CUT]


def test_turns_that_the_environment_does_not_take_are_named():
    with pytest.raises(ValueError, match="problem '12' of squares: the environment ends after turn 2 of the 3"):
        played(("1", "9", "2"))
    with pytest.raises(ValueError, match="turn 1 of its solution: OSError: no echo"):
        played(("1", "9"), Echo(fails=True))

    with pytest.raises(ValueError, match="problem '12' of squares has a solution without a turn"):
        played(())

    class Dense(Echo):
        def reset(self, problem):
            return np.zeros(2, np.float32)

    with pytest.raises(ValueError, match=r"Dense\.reset gave array\(.*\) to be read: expected text"):
        played(("1",), Dense())


def test_a_model_scores_the_turns_of_the_tool_game_and_nothing_between():
    from shuhari.config.build import make_component
    from shuhari.needs import Need, evaluate
    from shuhari.tasks.shop import Shop

    task, model = Shop(), make_component("model", {"use": "causal", "hidden": 16, "layers": 1, "heads": 2})
    torch.manual_seed(0)
    model.build(task)
    (batch,) = Demos(size=3).draw(testing.context(models={"policy": model}, task=task))
    for i, (step, mask) in enumerate(zip(batch.steps, batch["mask"].numpy(), strict=True)):
        said = model.decode(step.action[mask[: len(step.action)]])
        assert said == "<end>".join(task.problems("train")[1_000_000 + i].solution)
    (column,) = evaluate(batch, [Need(("policy",), "log_prob", live=True)], {"policy": model}, ("policy",)).values()
    assert bool((column[~batch["mask"]] == 0).all()) and bool((column[batch["mask"]] < 0).all())


def test_numbers_of_a_problem_are_columns_of_its_row():
    told = [{"level": 3, "hard": True, "name": "x", "most": 10**50}, {"level": None, "share": 0.25}]

    class Source(Squares):
        def __getitem__(self, i):
            return Problem("squares", str(i), str(i), solution="1", info=told[i])

    (batch,) = Demos(size=2, shuffle=False, offset=0).draw(context(Source(2)))
    names = sorted(name for name in batch.names() if name.startswith("info/"))
    assert names == ["info/hard", "info/level", "info/share"]
    assert batch["info/level"].nan_to_num(-1.0).tolist() == [3, -1]
    assert [batch[n].nan_to_num(-1.0).tolist() for n in ("info/hard", "info/share")] == [[1, -1], [-1, 0.25]]
    ctx = context(Source(2))
    ctx.task.environment = lambda problem: Echo()  # where turns are played, too
    (batch,) = Demos(size=2, shuffle=False, offset=0).draw(ctx)
    assert batch["info/level"].nan_to_num(-1.0).tolist() == [3, -1]
