"""`webrl serve-model`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os

from webrl.cli.options import add_section_help, count, split_settings
from webrl_serve.model.app import serve
from webrl_serve.model.checkpoint import check_context, find_checkpoint
from webrl_serve.net import MODEL_TOKEN, check_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_section_help(parser, ("models", "rollout", "engine", "evaluate"))
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a run folder (its newest actor), a model folder, a LoRA adapter's, or a hub name",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        default=[],
        metavar="CONFIG | key=value",
        help="prompt, action language and engine: a YAML file or the name of a shipped config, and overrides\n"
        "(default: the config of the run that CHECKPOINT is, or lies in, else the defaults below)",
    )
    parser.add_argument("--phase", type=count, metavar="N", help="of a run: the phase whose actor is served")
    parser.add_argument("--name", help="what clients call the model (default: the run's or folder's name)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: a free one (default: 8000)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be served and how, serve nothing")
    parser.epilog = (
        f"{MODEL_TOKEN} in the environment: token that clients send as their API key; needed if others can "
        "connect.\nWith a GPU and vLLM, vLLM answers, unless engine.kind or rollout.engine.kind is given."
    )


def main(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config, overrides = split_settings(args.settings)
    checkpoint = find_checkpoint(args.checkpoint, config, overrides, phase=args.phase)
    if args.name:
        checkpoint = dataclasses.replace(checkpoint, alias=args.name)
    token = os.environ.get(MODEL_TOKEN) or None
    check_address(args.host, args.port, token, MODEL_TOKEN)
    context = check_context(checkpoint)
    models, rollout = checkpoint.config.models, checkpoint.config.rollout
    prompt = f"{models.prompt_format}, {rollout.observation}, actions {rollout.dialect}"
    length = f"up to {models.max_prompt_tokens} tokens of {context or 'any number of'}"
    what = (
        f"weights  {checkpoint.name}\nprompt   {prompt}, {length} ({checkpoint.source})\nengine   {rollout.engine.kind}"
    )
    if args.dry_run:
        print(f"model    {checkpoint.alias}\n{what}")
        return 0
    on_ready = lambda url: print(f"serving {checkpoint.alias} on {url}/v1\n{what}", flush=True)  # noqa: E731
    asyncio.run(serve(checkpoint, context, on_ready, host=args.host, port=args.port, token=token))
    return 0
