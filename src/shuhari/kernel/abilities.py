"""Optional members of components, looked up by name, and their defaults.

A component inherits nothing, so it cannot inherit a default either: `ability` returns it. Nothing else in the library
checks whether an attribute exists. The types are the small protocols beside each port (`shuhari.ports`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shuhari.data import EMPTY, nearest


def do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the default of a method that a component lacks."""


def give_none(*_: Any, **__: Any) -> tuple[()]:
    """Return an empty tuple: no batches, no numbers."""
    return ()


OPTIONAL: Mapping[str, Any] = MappingProxyType({
    # any component
    "observe": None,  # (event): hears what the run tells, in commit order
    "restart": do_nothing,  # (ctx): in a run that is resumed: begins or tells again what `state` does not hold
    "state": None,  # its memory: a plain tree of tensors and JSON, saved and set again
    "close": do_nothing,  # (): lets go of what it holds; of environments, rollouts, rewards and engines
    # curricula and rollouts
    "report": dict,  # () -> Info: numbers for the step's report
    "unit": None,  # of a rollout: "decision" where it is a VectorRollout; of a buffer: what `size` counts
    "asks": False,  # of a rollout of lanes: whether these ask the curriculum where they begin; of a buffer: whether it
    # has the run's rollout answer by itself (read from its class)
    "open": do_nothing,  # of a rollout: (task, seed); of an engine: (seed, charge)
    "role": "policy",  # of a rollout: which role decides; of a buffer of recorded answers: which learns them
    "split": "train",  # of a curriculum, or a buffer of recorded answers: whose problems it takes
    # tasks
    "spaces": do_nothing,  # a must of a task; a model of text is also built without one
    "make": None,  # () -> a Gymnasium environment, for lanes
    "alphabet": "",  # the characters of all its texts, for tokenizers of characters
    "chat": None,  # whether models read its prompts of text as turns of a user; None: as each does by itself
    "system": "",  # what its conversations begin with, where they have no system message of their own
    "read_from": EMPTY,  # field of a problem -> the column of the data that it is read from
    "fit": None,  # (split, problems): these in the place of a split's listed rows, which a model cannot all read
    "ungraded": False,  # whether it grades nothing
    "unanswered": "",  # of one that grades nothing because its data has no answers: which setting gives it some
    "grades": "",  # how it compares answers, in words, where that is not by the whole text
    "answers": do_nothing,  # (problem) -> Answers | None, see Listing
    "compare": None,  # (problem, first, second) -> the probability that the first answer is preferred, see Compares
    "first_wrong": None,  # (problem, text) -> the place of the first character that is wrong; None where it is right
    "preview": None,  # () -> {"spaces", "prompt", "answer"}: what listings show of a task that is dear to make
    "copies": None,  # whether its environments can be copied, once it has tried; workers of lanes are sent it
    "simulates": None,  # and whether by the state of a simulator
    "extras": EMPTY,  # column -> fill value, of what its environments report beside observation and reward
    "table": None,  # the transitions of its environments, where they are known (`tasks.worlds.finite_horizon.Table`)
    "cells": (),  # of a grid whose states are its cells, row by row, and whose actions are up, right, down, left
    "scene": None,  # what lies around a place that its observations tell, a `tasks.scene.Scene`
    "expert": None,  # (observation, generator) -> an action as its environments take it
    "compute_reward": None,  # of goals: (achieved [B, ...], desired [B, ...], info) -> rewards [B]
    "compute_terminated": None,  # likewise -> whether the episode ends by itself [B]
    "filmed": None,  # () -> a task like it whose environments `draw`
    # environments of an episode
    "draw": do_nothing,  # () -> a picture [H, W, 3] uint8 of how it stands, None where there is none
    "facts": EMPTY,  # column -> number or array, beside the rewards of its last step
    "bind": do_nothing,  # (ctx, key): before `reset`; whom to ask for models and noise, and what to name these by
    "snapshot": None,  # () -> a payload that `restore` of another takes back
    "step_lanes": None,  # (lanes, actions): the step of many at once, see `tasks.lanes`
    "moves": (),  # of a class that has it: the attributes that a reset draws or a step changes
    "turn": None,  # () -> the role that decides next, asked after `reset` and each step; None: the next of `acts`
    "takes": None,  # (trace) -> what `step` is to get of a decision
    # rewards
    "counts": True,  # whether it weighs 1, in the place of the task's own measure, where nothing gives weights
    "wants_answer": False,  # whether it grades problems that have an `answer`, and no others
    "name": "",  # the name of its grades, where that is not the one that it goes by
    # models
    "decision": None,  # (taken) -> the columns of the decisions that environments got as `taken`
    "decide": None,  # of a controller: (contexts) -> its action without chance as environments take it, and more
    "memory": None,  # of a policy: how many numbers it carries from decision to decision, see `kernel.recall`
    "rewarded": None,  # of one: (memory, reward) -> what it carries once it was paid for its last decision
    "chains": False,  # whether it scores rows of a batch one after the other, so that these belong together
    "module": None,  # what a role that has no weights lacks
    "kind": "",  # see Policy
    "offers": None,  # the methods of its distribution, where the class that `__call__` is said to return does not tell
    "roles": (),  # those that it is made of: it then has `bind(models)`
    "encode": None,  # see TextModel
    "decode": None,
    "text": None,  # its tokenizer, a `models.text.tokenizers.Tokenizer`: how prompts, answers and turns are written
    "limit": None,
    "longest": None,  # of a model with the setting `context`: what that may be at most
    "special": EMPTY,  # id -> name of the tokens that are no text
    "save": None,
    "save_scorer": None,  # (directory): a value head, as a classifier of texts
    "decoder": None,
    "export": None,  # (directory): weights for an engine elsewhere; it then has `outline()`, see `pretrained.Outline`
    "bins": None,  # of a critic: those of which its value is the mean, a `models.readout.Bins`
    "quantiles": None,  # likewise, a `models.quantiles.Quantiles`
    "with_noise": None,  # of a net with noise on its weights: (generator) -> the net under one draw of it
    "by_batch": None,  # (batches) -> a distribution of each, by a net that all their rows together normalise
    "return_statistic": None,  # of a critic: the moments of the discounted return, a `Moments` that is saved with it
    "packs": False,  # whether it runs rows without padding, so that a micro-batch counts the tokens that there are
    "on_disk": give_none,  # () -> (where, which): a path, and the names of the weights that lie there as they are, once
    # it is built; a checkpoint then has those that are still the same by reference
    "initial": do_nothing,  # () -> the model as it was loaded, a function of a batch; None where that is not known
    "renamed": dict,  # weights as a checkpoint has them -> as they are called in it now
    "lora": None,  # the settings of its adapters
    "path": "",  # the directory that it was read from
    "device": "cpu",  # where it is, as torch names it; a setting, which a process may set before it builds the model
    # engines: see AsyncEngine
    "refuses": lambda sampling: "",  # (Sampling) -> why it cannot sample so, "" where it can
    "stand_in": None,  # () -> an engine in its place where a run is rehearsed
    "read": None,  # of one who answers for a model elsewhere: (ids, never) -> log-probabilities, see `Vllm.read`
    "fixed": "",  # the role whose weights it cannot follow, where it answers with weights that nobody here moves
    "staleness": 0,
    "virtual": None,
    "busy": False,
    # objectives
    # followers, and what an optimiser's reset waits for
    "waits_for": "",  # the score of an evaluation whose plateau it acts on
    "reset": None,  # of an optimiser: when its memory is cleared (`When`), a setting
    "terms": EMPTY,  # of an optimiser: a term that it knows by name -> whether its part must have it (else may not)
    "share": None,  # of an optimiser: (total): its parameters are shards, see `FirstOrder.total`
    # learners and buffers
    "samples": True,  # of a buffer: whether it is filled by what the loop samples; read from its class
    "bootstraps": False,  # of a buffer: whether what learns from it has targets that are copies; read from its class
    "spreads": (),  # the settings that say how the work is spread, not what is done; read from its class
    "shows": None,  # of a buffer of recorded answers: (problem) -> the texts that it puts behind its prompt, each alone
    "imitates": None,  # of a buffer: (task) -> what it imitates of its problems, in words, see `Demos`
    "card": EMPTY,  # of a buffer: what is known of the data set that it has loaded
    "odd": (),  # of a recording, or a task of listed rows: what is to be told of what it has read, in words
    "unknown": "",  # of a recording, or a buffer of one: the first reward in it that is not known, in words
    "d4rl": "",  # of a recording: the data set of D4RL that it is, by which a return is normalised
    "recorded": None,  # of a buffer: () -> what it holds, as the columns of a data set
    "parts": EMPTY,  # name -> what each of its optimisers owns
    "held_out": give_none,  # (split, n, ctx): of a learner -> losses and infos; of a buffer -> batches, see Recorded
    "size": None,  # of a buffer: how much a draw has
    # quantities of a claim's checks, and studies
    "names": (),  # of a quantity: the metrics that it reads, to be kept and drawn
    "trains": True,  # whether there are runs at all
    "alone": False,  # whether its runs must have the machine for themselves
})  # fmt: skip

MUSTS: Mapping[str, Mapping[str, str]] = MappingProxyType({  # kind -> method -> what it is called with
    "task": {"problems": "split", "grade": "problem, steps", "environment": "problem", "spaces": ""},
    "source": {"__getitem__": "index", "size": ""},
    "rollout": {"group": "request, ctx"},
    "reward": {"grade": "group, ctx"},
    "curriculum": {"select": "n, ctx"},
    "predictor": {"predict": "problems, ctx"},
    "environments": {"environment": "request, ctx"},
    "window": {"__call__": "play"},
    "model": {"build": "task"},
    "buffer": {"wanted": "", "draw": "ctx"},
    "recording": {"read": "task, seed"},
    "transform": {"__call__": "batch, ctx"},
    "objective": {"__call__": "batch, ctx"},
    "optimiser": {"bind": "params", "step": "evaluate, at"},
    "learner": {"bind": "models", "update": "batch, ctx"},
    "follow": {"__call__": "models, event"},
    "metric": {"__call__": "ctx"},
    "study": {"__call__": "runs"},
    "analysis": {"__call__": "seed"},
    "run_analysis": {"__call__": "given"},
    "quantity": {"__call__": "run"},
})  # fmt: skip


IN_UNITS: Mapping[tuple[str, str], Mapping[str, str]] = MappingProxyType({  # (kind, its `unit`) -> these in their place
    ("rollout", "decision"): {"collect": "n, ctx"},
})  # fmt: skip

RENAMED: Mapping[tuple[str, str], str] = MappingProxyType({  # (kind, name as it was called before) -> now
    ("task", "told"): "extras",
    ("buffer", "short"): "wanted",
})  # fmt: skip


def explain_misfit(kind: str, component: Any) -> str:
    """Return why a component does not fit the port of `kind`; "" if it does."""
    for (of, old), new in RENAMED.items():
        if of == kind and hasattr(component, old):
            return f"has {old!r}: it is called {new!r} now"
    unit = ability(component, "unit")
    musts = IN_UNITS.get((kind, unit), MUSTS.get(kind, EMPTY))
    known = [(u, ", ".join(has)) for (of, u), has in IN_UNITS.items() if of == kind]
    others = "".join(f"; one that has {names} says unit = {u!r}" for u, names in known)
    for name, called in musts.items():
        method = getattr(component, name, None)
        wanted = f"{name}({called})"
        if not callable(method):
            return f"is no {kind}: it has no {wanted}{'' if (kind, unit) in IN_UNITS else others}"
        given = [part for part in called.split(", ") if part]
        try:
            inspect.signature(method).bind(*given)
        except TypeError as error:
            return f"is no {kind}: its {name}{inspect.signature(method)} is not {wanted}: {error}"
        except ValueError:  # it is not known how it is called
            continue
    return ""


def find_missing(component: Any, *names: str) -> list[str]:
    """Return the attributes among `names` that the component lacks, for an error message."""
    return [name for name in names if not hasattr(component, name)]


def ability(component: Any, name: str) -> Any:
    """Return the optional member `name` of `component`, or its default. KeyError for a name that is not optional, with
    the nearest one that is. Above `ports`, use `shuhari.ports.ability`, which has the types."""
    if name not in OPTIONAL:
        raise KeyError(f"{name!r} is not among the optional abilities of a component; {nearest(name, OPTIONAL)}")
    return getattr(component, name, OPTIONAL[name])
