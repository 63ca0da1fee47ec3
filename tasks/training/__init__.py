"""Post-training with TRL: supervised fine-tuning, DPO and GRPO, each a process of its own."""
