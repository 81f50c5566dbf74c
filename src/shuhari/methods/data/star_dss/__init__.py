"""Shape it Up! Restoring LLM Safety during Finetuning (arXiv 2505.17196)."""
