"""The ports: what a component may be, and the little that it may ask of a run. Nothing here is implementation.

Components meet in columns of a batch, models by role, and events. Any may have `observe(event)`, told in commit order,
and keeps its memory in `state` (not an init field), tensors and JSON, for the store. These and other things that a
component may have and need not are in `shuhari.kernel.abilities`, with what stands where one is missing; what is in a
port's class without being called optional is a must.

What is to be solved is in `tasks` (its `answers` beside it), models in `models`, `engines` serve them, `context` is
what a component may ask, `collecting` how episodes come about, `learning` what is learnt from them, `studies` what is
done with whole runs, `declares` what a component says of itself. Each imports only those before it. What models answer
(`Dist`, `Need`, `Trace`) is in `shuhari.needs`.
"""

from shuhari.bounds import PORTS
from shuhari.kernel.abilities import ability
from shuhari.needs import Dist, Functional, Need, Noise, Trace, Traces
from shuhari.ports.answers import Answers
from shuhari.ports.collecting import (
    Curriculum,
    Environments,
    Metric,
    Play,
    Predictor,
    Reward,
    Rollout,
    VectorRollout,
    Window,
    is_vector,
)
from shuhari.ports.context import Ctx, Job
from shuhari.ports.declares import Declares
from shuhari.ports.engines import CURRENT_GROUP, REPLAYING, AsyncEngine, Durations, Engine
from shuhari.ports.learning import (
    Buffer,
    Evaluate,
    Follow,
    Learner,
    Objective,
    Optimiser,
    Recorded,
    Recording,
    Transform,
)
from shuhari.ports.models import Model, Policy, TextModel, is_text
from shuhari.ports.studies import Analysis, Runs, Study
from shuhari.ports.tasks import Environment, Listing, Source, Task

__all__ = [
    "CURRENT_GROUP",
    "REPLAYING",
    "Analysis",
    "Answers",
    "AsyncEngine",
    "Buffer",
    "Ctx",
    "Curriculum",
    "Declares",
    "Dist",
    "Durations",
    "Engine",
    "Environment",
    "Environments",
    "Evaluate",
    "Follow",
    "Functional",
    "Job",
    "Learner",
    "Listing",
    "Metric",
    "Model",
    "Need",
    "Noise",
    "Objective",
    "Optimiser",
    "Play",
    "Policy",
    "Predictor",
    "Recorded",
    "Recording",
    "Reward",
    "Rollout",
    "Runs",
    "Source",
    "Study",
    "Task",
    "TextModel",
    "Trace",
    "Traces",
    "Transform",
    "VectorRollout",
    "Window",
    "ability",
    "is_text",
    "is_vector",
]

PORTS.update({name: globals()[name] for name in __all__})  # annotations of settings may name them
