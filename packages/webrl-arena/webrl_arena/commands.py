"""The commands of the practice sites."""

from webrl.cli.command import Command

ARENA = Command("start and stop webrl's own practice sites", "webrl_arena.cli.arena", "serve", uses_torch=False)
