"""Post-training with TRL: supervised fine-tuning and GRPO, each a process of its own."""
