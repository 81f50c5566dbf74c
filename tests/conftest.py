"""One thread: tiny models are quicker so, two workers share the machine, and bits depend on the number of threads."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
