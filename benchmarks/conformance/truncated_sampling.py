"""TRL: the log-probability that the trainer gives a token beside the one that it was sampled with, under top-p.

Run with the peers' Python (`../peers/README.md`). vLLM is not needed: the trainer's side is the same with transformers.
Prints, by top_p, the mean of exp(trainer's - sampler's), which vLLM's correction takes for a change of the policy.
"""

from __future__ import annotations

import torch
from tiny import make_trainer, versions


def main() -> None:
    print(versions())
    for top_p in (1.0, 0.9, 0.7):
        trainer = make_trainer("GRPO", lambda completions, **_: [0.0] * len(completions), top_p=top_p)
        prompt = trainer.processing_class("1+1=", return_tensors="pt")["input_ids"].repeat(64, 1)
        torch.manual_seed(1)
        wanted = {"return_dict_in_generate": True, "output_scores": True}
        drawn = trainer.model.generate(prompt, generation_config=trainer.generation_config, **wanted)
        answer = drawn.sequences[:, prompt.shape[1] :]
        processed = torch.stack(drawn.scores, 1).log_softmax(-1)  # after top-p: the distribution that was drawn from
        sampled = processed.gather(-1, answer[..., None])[..., 0]
        seen = torch.ones_like(drawn.sequences)
        told = trainer._get_per_token_logps_and_entropies(trainer.model, drawn.sequences, seen, answer.shape[1])[0]
        first = (told - sampled)[:, 0]  # later positions may be padding
        kept = first.exp().mean().item()
        print(f"top_p {top_p}: exp(trainer - sampler) of the first token, mean {kept:.3f}")


if __name__ == "__main__":
    main()
