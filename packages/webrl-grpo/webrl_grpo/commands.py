"""The command that trains with TRL."""

from webrl.cli.command import Command

GRPO = Command("train on the environment's own reward with TRL's GRPO", "webrl_grpo.cli.grpo", "make")
