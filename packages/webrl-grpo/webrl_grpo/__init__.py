"""webrl's environment under TRL's GRPO trainer."""
