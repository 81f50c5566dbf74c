"""PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion Models
(arXiv 2402.08714)."""
