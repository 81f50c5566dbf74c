"""The meaning of every number that a run reports: the tables of metrics.md, and `find`, which looks a name up.

Names are given by patterns, in which `<part>`, `<term>` and the like each match one piece of a name, without a slash.
Healthy ranges and rules are those of the diagnosis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shuhari.lab.diagnosis import RULES, Rule

SCORES = r"greedy|mean|length|turns|distinct|tokens|pass@\d+|(?:quantile|cvar)@[\d.e-]+|ungraded(?:\.low|\.high)?"
UNITS = {  # what the ledger counts
    "steps": "steps of the loop",
    "updates": "optimiser steps",
    "decisions": "decisions collected, or read from recorded data",
    "env_steps": "steps in environments",
    "tokens": "tokens drawn",
    "prompt_tokens": "tokens of prompts read, once for each sample",
    "scored_tokens": "tokens that an engine scored",
    "scored": "answers that an exact metric scored",
    "rounds": "rounds of a rollout that asks again with hints",
    "branches": "answers that a rollout began inside of another of their group",
    "ungraded": "samples without a grade that a transform left out",
    "failed_graders": "samples on which a grader or the task's grading raised an error",
    "exceeded_graders": "and on which one ran out of time or memory",
    "judge_asked": "questions that a judge was asked",
    "judge_cached": "and those whose verdict was known already",
    "judge_unread": "answers of a judge that were no verdict",
    "judge_failed": "questions that a judge did not answer",
    "judge_agreed": "votes on two answers in which both orders had one result",
    "judge_disagreed": "and in which they had two",
    "judge_prompt_tokens": "tokens of questions, as the judge's server counts them",
    "judge_tokens": "tokens of its answers",
    "failed_rollouts": "groups that were left out, as their rollout raised an error",
    "dropped_groups": "groups in flight that were given up",
    "virtual_seconds": "modelled time, of `engine.virtual`",
}

INFOS = {  # what a term reports beside its loss -> (what it is, unit, of which losses)
    "ratio": ("r = pi / pi_old of the action, at the loss's `level`", "1", "`clip` and its kin, `mixed_policy`"),
    "held": ("the share of decisions whose log-ratio is clipped", "share", "`proximal_pairs`"),
    "clip_fraction": ("the share of decisions whose gradient the clip removes", "share", "`clip` and its kin"),
    "approx_kl": ("r - 1 - log r: an estimate of KL(old || new)", "nats", "`clip` and its kin"),
    "truncated": ("the share of decisions whose weight of the sampler is above `truncate`", "share", "`clip`"),
    "sampler_kl": ("the same estimate of KL(sampler || old)", "nats", "`clip` with `truncate`"),
    "covariance": ("of a decision: (log pi - mean) x (A - mean)", "nats", "`clip_cov`, `kl_cov`"),
    "candidates": ("the share of decisions within the band of covariances", "share", "`clip_cov`"),
    "pull": ("k3 of the policy from the proxy, where it pulls", "nats", "`lp_reg`"),
    "passed": ("the share of decisions that lie on their side of the demonstration already", "share",
               "`calibrated_imitation`"),
    "kl": ("the divergence, with `trust_region` after its step; of `kto` the z0 that it subtracts", "nats",
           "`divergence`, `focops`, `kto`"),
    "within": ("the share of decisions whose KL is within the bound", "share", "`focops`"),
    "multiplier": ("the price of a cost", "reward / cost", "`dual`"),
    "excess": ("the cost of an episode less its limit", "as the cost", "`dual`"),
    "excess_rate": ("and by the length of episodes, for a decision", "as the cost", "`constraint`"),
    "entropy": ("of a decision; of a temperature -log pi of a fresh action", "nats", "`entropy`, `temperature`"),
    "accuracy": ("how often the better one of a pair is preferred; of `outcome` and `classification` how often it is "
                 "right", "share", "`preference`, `outcome`, `classification`"),
    "positives": ("the mean label: the share of good ones", "share", "`classification`"),
    "predicted": ("the mean probability of a good label, which a calibrated model has equal to that", "share",
                  "`classification`"),
    "brier": ("the squared error of that probability; always 1/2 gives 1/4", "share²", "`classification`"),
    "chosen": ("beta times the log-ratio of the better ones (`kto`: good ones); of the selective losses the share of "
               "decisions that were chosen", "nats, share", "`preference`, `kto`, `clip_cov`, `kl_cov`, `lp_reg`"),
    "rejected": ("the same of the worse (bad) ones", "nats", "`preference`, `kto`"),
    "margin": ("chosen less rejected", "nats", "`preference`"),
    "log_ratio": ("s: log pi less the log-probability that `over` names, of an answer; of `boundary` how far its bound "
                  "has moved, over its length", "nats", "`log_ratio`, `proximal_pairs`, `boundary`"),
    "error": ("how far that is from what the advantage asks for", "as the reward", "`log_ratio`"),
    "value": ("the critic's prediction", "as the return", "`value`, the losses of Q"),
    "target": ("what it is moved to", "as the return", "`q_learning`, `soft_td`, `smoothed_td`, `value_td`"),
    "advantage": ("Q of the recorded action less V", "as the return", "`expectile`"),
    "q": ("Q of the action that the policy takes now", "as the return",
          "`reparam`, `deterministic`, `deterministic_bc`, `uniform_q`"),
    "distance": ("the mean square of the policy's action less what it is held to", "actions²", "`deterministic_bc`"),
    "scale": ("what Q counts beside that: alpha over the mean of its size", "1 / return", "`deterministic_bc`"),
    "gap": ("the soft maximum of Q over actions less Q of the recorded one; of `advice_margin` Q of advice less that",
            "as the return", "`conservative`, `conservative_sampled`, `advice_margin`"),
    "kept": ("the share of rows whose advice has a gain", "share", "`advice_gain`"),
    "floored": ("the share of the policy's actions whose value lies below the floor", "share",
                "`conservative_sampled`"),
    "next_q": ("the value of the state behind a decision", "as the return", "`uniform_q`"),
    "fresh_log_prob": ("log pi of a fresh action", "nats", "`reparam`"),
    "temperature": ("the temperature that is trained", "1", "`temperature`"),
    "state_error": ("the squared error of a model of the world, summed over a state", "states²", "`model_error`"),
    "reward_error": ("and of the reward", "rewards²", "`model_error`"),
    "loose": ("the share of decisions whose bound is above the exponential that it replaces", "share", "`boundary`"),
    "implied": ("the reward that a policy and its values imply", "1", "`implied_reward`"),
}  # fmt: skip

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {  # heading -> pattern -> (what it is, unit)
    "Of a step": {
        "step": ("how many were committed", "steps"),
        "stage": ("the stage's name", "-"),
        "wall": ("since the run began, without the time between its starts; in reports `seconds`", "seconds"),
    },
    "Rewards": {
        "reward/mean": ("the mean of the trained reward over graded episodes", "as the reward"),
        "reward/std": ("the mean, over groups, of its standard deviation within a group", "as the reward"),
        "reward/score": ("the task's own measure, in [0, 1]", "score"),
        "reward/<name>": ("the mean of a reward, weighed or not; `task` is what Gymnasium pays", "as the reward"),
    },
    "Rollouts": {
        "rollout/episodes": ("episodes of the step; of lanes, all that have ended so far", "episodes"),
        "rollout/length": ("decisions (tokens, actions) of an episode; of lanes, of the last 100", "decisions"),
        "rollout/truncated": ("the share of episodes that a limit of length or time ended", "share"),
        "rollout/turns": ("calls of the policy in an episode, where some have several", "calls"),
        "rollout/entropy": ("the mean of -log p of what was sampled", "nats"),
        "rollout/alike": ("the share of groups whose samples all have one reward", "share"),
        "rollout/ungraded": ("the share of episodes without a grade, where there are any", "share"),
        "rollout/errors": ("the share of episodes that ended in an error, where there are any", "share"),
        "rollout/rounds": ("how often the step collected until its filters had let enough pass", "rounds"),
        "rollout/staleness": ("how many versions of the weights a decision is old, a mean", "versions"),
        "rollout/staleness_max": ("and the largest", "versions"),
        "rollout/answers_too_long": ("of a stage's first step: the share of answers above `max_new` tokens", "share"),
        "rollout/return": ("of lanes: the sum of rewards of an episode, over the last 100", "as the reward"),
        "rollout/<graded>": ("the same of each named reward that the environment pays", "as the reward"),
        "engine/gap": ("the mean of abs(log p of the engine - log p of the trainer), for the same weights", "nats"),
        "engine/gap_max": ("and the largest", "nats"),
    },
    "Updates": {
        "<part>/loss/<term>": ("the loss, reduced, before its weight; a mean over minibatches", "as the loss"),
        "<part>/loss/nll": ("of it: -log pi of demonstrations", "nats"),
        "<part>/rows": ("rows that carry weight in a draw, a mean", "rows"),
        "<part>/grad_norm": ("the Euclidean norm of the gradient, before `optimiser.clip`", "1"),
        "<part>/search": ("of `trust_region`, how often its step was shortened; `tries` where nothing moved", "times"),
        "<part>/gain": ("and by how much its loss fell", "as the loss"),
        "<part>/lr": ("the learning rate", "1"),
        "<role>/explained_variance": ("1 - Var(return - value) / Var(return), before the update", "at most 1"),
        **{f"<part>/{name}": (f"{what}; {losses}", unit) for name, (what, unit, losses) in INFOS.items()},
        "ucrl/regret": ("what a decision earns less than the best policy does on average, exactly", "as the reward"),
        "ucrl/regret_sum": ("the sum of that over all decisions so far", "as the reward"),
        "ucrl/plans": ("policies that were planned so far", "plans"),
        "ucrl/restarts": ("changes of the world that were detected so far", "changes"),
        "linear/regret": ("V* less Q* of a decision, exactly, if the world reports it", "as the reward"),
        "linear/regret_sum": ("the sum of that: what all returns lack of the best, in expectation", "as the reward"),
        "linear/plans": ("policies that were planned so far", "plans"),
        "<part>/<term>/<info>": ("any of these, where several terms of a part report it", "as it"),
    },
    "Curricula and studies": {
        "curriculum/predicted": ("the mean success rate that was predicted of the problems asked", "share"),
        "curriculum/observed": ("and that was seen", "share"),
        "curriculum/skipped": ("the share of problems offered that rested, as their last group was alike", "share"),
        "curriculum/solved": ("the share of problems tried that greedy decoding solves, and so leaves out", "share"),
        "curriculum/spearman": ("the rank correlation of both over problems", "in [-1, 1]"),
        "curriculum/variance": ("the mean of p (1 - p) over a set of problems when it was scored last", "at most 0.25"),
        "curriculum/diversity": ("and of the share of different trigrams in their answers", "share"),
        "curriculum/share@<level>": ("the chance that a problem was of that level", "share"),
        "curriculum/pay@<level>": ("what a bandit thinks that the level pays", "as advantages"),
        "curriculum/phase": ("the phase that problems are of, from 0 on", "a number"),
        "curriculum/own_reward": ("of a swarm's node, the mean reward of what it answered itself", "as the reward"),
        "curriculum/external": ("groups of its batch that other nodes answered", "groups"),
        "curriculum/offered": ("and groups that they offered it", "groups"),
        "study/<name>": ("the progress of a study, as it reports it", "its own"),
    },
    "Evaluation": {
        "evaluate/greedy": ("the mean reward (`measure`) of one greedy episode a problem", "as the reward"),
        "evaluate/mean": ("the mean over sampled episodes", "as the reward"),
        "evaluate/pass@<k>": ("1 - C(n - c, k) / C(n, k), c of n samples right: unbiased", "share"),
        "evaluate/distinct": ("different right texts among the samples of a problem", "texts"),
        "evaluate/length": ("decisions (tokens, actions) of a greedy episode", "decisions"),
        "evaluate/start_kl": ("KL(now || as loaded) of a model with a `path`, over greedy answers", "nats a token"),
        "evaluate/episodes": ("where it is a point between evaluations: of how many episodes", "episodes"),
        "evaluate/turns": ("and calls of the policy", "calls"),
        "evaluate/greedy.<reward>": ("`greedy` of each graded name, where there are several", "as the reward"),
        "evaluate/greedy.normalised": ("D4RL's score of the return: 0 a random policy's, 100 an expert's", "percent"),
        "evaluate/greedy.score": ("so of the task's own score, if another reward is read", "share"),
        "evaluate/mean.<reward>": ("`mean` of each", "as the reward"),
        "evaluate/pass@<k>.score": ("and `pass@<k>` of it", "share"),
        "evaluate/quantile@<a>": ("the value that a share a of the episodes does not exceed", "as the reward"),
        "evaluate/quantile@<a>.<reward>": ("of each graded name", "as the reward"),
        "evaluate/cvar@<a>": ("the mean of the lowest share a of the episodes", "as the reward"),
        "evaluate/cvar@<a>.<reward>": ("of each graded name", "as the reward"),
        "evaluate/ungraded": ("the share of episodes without a grade, where there are any", "share"),
        "evaluate/ungraded.low": ("`greedy`, were those 0", "as the reward"),
        "evaluate/ungraded.high": ("`greedy`, were those 1", "as the reward"),
        "evaluate/tokens": ("tokens (else decisions) of a sampled episode, with a further way to play", "tokens"),
        "evaluate/<way>.<score>": ("any of these, of a further way to play", "as it"),
        "evaluate/<part>/loss/<term>": ("of recorded data: the loss on held-out rows", "as the loss"),
        "evaluate/<part>/accuracy": (
            "the share of held-out pairs whose better answer is preferred, or of held-out labels that are right",
            "share",
        ),
        "evaluate/<part>/<info>": ("and what the loss reports there", "as it"),
    },
    "Exact numbers and weights": {
        "evaluate/<exact>.mean": ("the expected score, all answers summed", "as the score"),
        "evaluate/<exact>.pass@<k>": ("1 - (1 - p)^k, p the probability of a right answer", "share"),
        "evaluate/<exact>.solved": ("the share of problems with p of at least 1/2", "share"),
        "evaluate/<exact>.modes": ("e to the entropy among right answers", "answers"),
        "evaluate/<exact>.mass@<label>": ("the probability of the answers with a label", "share"),
        "evaluate/<exact>.rest": ("the probability of all that is not listed", "share"),
        "evaluate/<exact>.entropy": ("of the distribution over answers", "nats"),
        "evaluate/<exact>.kl.<role>": ("KL(policy || role)", "nats"),
        "evaluate/<exact>.kl_from.<role>": ("KL(role || policy)", "nats"),
        "evaluate/<exact>.reach": ("right answers of at least the probability `floor`", "answers"),
        "evaluate/<exact>.kept.<role>": ("the share of the role's that the policy has kept", "share"),
        "evaluate/<exact>.new.<role>": ("the share of its own that the role has not", "share"),
        "evaluate/<weights>.<change>": ("`changed` (share of numbers that differ), `distance` (Euclidean norm), "
                                        "`relative`, each also `_bf16`", "share, norm"),
        "evaluate/<localisation>.<found>": ("`auc`, whether values fall at a first mistake; `wrong`, the "
                                            "share of answers with one", "share"),
    },
    "What was spent": {
        **{f"spent/{unit}": (what, "-") for unit, what in UNITS.items()},
        "spent/evaluate/<unit>": ("any of these, spent by evaluation, which is no part of the budget", "-"),
        "spent/curve/evaluate/<unit>": ("and by the points of a held-out curve between evaluations", "-"),
        "spent/<tag>/<unit>": ("and by what a component probes", "-"),
    },
}  # fmt: skip
PIECES = {  # what a placeholder matches, if not any piece of a name
    "info": f"(?:{'|'.join(INFOS)})",
    "graded": "(?:score|task)",
    "score": f"(?:{SCORES})",
    "unit": f"(?:{'|'.join(UNITS)})",
    "k": r"\d+",
    "a": r"[\d.e-]+",
    "change": "(?:changed|distance|relative)(?:_bf16)?",
    "found": "(?:auc|wrong)",
}


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern; it also matches the number of one task, `<name>@<task>`."""
    pieces = re.split(r"<(\w+)>", pattern)
    told = (PIECES.get(x, r"[^/.]+") if i % 2 else re.escape(x) for i, x in enumerate(pieces))
    return re.compile(f"{''.join(told)}(?:@.+)?")


def patterns() -> list[str]:
    return [pattern for group in GROUPS.values() for pattern in group]


def find(name: str) -> list[str]:
    """Return the patterns that match a reported name."""
    return [p for p in patterns() if compiled(p).fullmatch(name)]


def rules(pattern: str) -> list[Rule]:
    """Return the rules of the diagnosis that read exactly these names."""
    plain = re.sub(r"<\w+>", "*", pattern)
    return [r for r in RULES if r.reads == plain]


def describe(rule: Rule) -> str:
    """Return the number that a rule computes, its healthy range and a link to the rule, as Markdown."""
    return f"{(rule.number.__doc__ or '').strip()}: {rule.describe_range()} ([`{rule.name}`](diagnosis.md#the-rules))"


def glossary() -> Iterator[str]:
    """Yield the lines of the tables, each below a heading."""
    for heading, group in GROUPS.items():
        yield from (f"## {heading}", "", "| name | what it is | unit | healthy, and the rule |", f"|{' --- |' * 4}")
        for pattern, (what, unit) in group.items():
            healthy = "; ".join(map(describe, rules(pattern))) or "-"
            yield f"| `{pattern}` | {what.replace('|', chr(92) + '|')} | {unit} | {healthy} |"
        yield ""
