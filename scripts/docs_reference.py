"""The reference pages of the documentation: every command from its parser, every option from the config models."""

from __future__ import annotations

import html
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

sys.path.insert(0, str(Path(__file__).parent.parent))

from webrl.cli import command_parser, summaries
from webrl.cli.options import SectionHelp, default_text, section_names
from webrl.config import RunConfig
from webrl_arena.templates import all_templates

_COMMANDS_HEAD = """# Commands

`webrl COMMAND --help` of this version, made while this page was built. The options of a config that a command takes as
`key=value` have [a page of their own](options.md).
"""
_OPTIONS_HEAD = """# Options

Every option of a config file with its default, made from `webrl/config/` while this page was built. A file holds only
what differs: `actor: {lr: 1e-5}`; on the command line the same is `actor.lr=1e-5`. What is not known is refused, with
the nearest known name. `--dry-run` prints what a run would use.
"""
_ARENA_HEAD = """# Arena tasks

The {num} task templates of the [arena](arena.md), made from `webrl_arena/` while this page was built. **h**:
held out, never trained on. Of each template, the first wording.

| Template | Instruction |
|---|---|
"""
_WIDTH = "96"
_NUMBERS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_KINDS = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}


class _Schema(GenerateJsonSchema):
    """A JSON schema in which secrets, which pydantic cannot describe, are text."""

    ignored_warning_kinds: ClassVar = {"non-serializable-default", "skipped-choice"}

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        """Types with validators of their own."""
        del schema, error_info
        return {"type": "string"}


def commands_page() -> str:
    """Every command's help as Markdown; where it lists config options, links to them."""
    about = summaries()
    lines = [_COMMANDS_HEAD, "| command | |", "|---|---|"]
    lines += [f"| [`webrl {name}`](#webrl-{name}) | {_escape(text)} |" for name, (_, text) in about.items()]
    for name in about:
        text, sections = command_help(name)
        lines += ["", f"## webrl {name}", "", "```text", text, "```"]
        if sections:
            links = ", ".join(f"[`{section}`](options.md#{section})" for section in sections)
            lines += ["", f"Options of a config: {links}, and those of [the run](options.md#the-run)."]
    return "\n".join(lines) + "\n"


def arena_page() -> str:
    """Every task template of the arena as Markdown."""
    lines = [
        f"| `{template.key.removeprefix('arena.')}`{' **h**' if template.held_out else ''} | {template.wordings[0]} |"
        for template in all_templates()
    ]
    return _ARENA_HEAD.format(num=len(all_templates())) + "\n".join(lines) + "\n"


def command_help(name: str) -> tuple[str, list[str]]:
    """A command's help, and the sections of the config that it takes."""
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), _WIDTH  # argparse asks the terminal otherwise
    try:
        parser = command_parser(name)
        text = parser.format_help()
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    sections = [a.const or section_names() for a in parser._actions if isinstance(a, SectionHelp)]
    return text.rstrip(), list(sections[0]) if sections else []


def options_page() -> str:
    """Every option as Markdown, a heading a section."""
    definitions = RunConfig.model_json_schema(schema_generator=_Schema)["$defs"]
    lines = [_OPTIONS_HEAD]
    for prefix, model in _sections(RunConfig, ""):
        lines += [f"## {prefix.removesuffix('.') or 'The run'}", "", _escape((model.__doc__ or "").strip()), ""]
        schema = definitions.get(model.__name__) or RunConfig.model_json_schema(schema_generator=_Schema)
        for name in model.model_fields:
            if not _is_section(model, name):
                lines += _option(prefix + name, schema["properties"][name], definitions)
    return "\n".join(lines) + "\n"


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, model
    for name, info in model.model_fields.items():
        if _is_section(model, name):
            yield from _sections(info.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]


def _is_section(model: type[BaseModel], name: str) -> bool:
    kind = model.model_fields[name].annotation
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _option(key: str, schema: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    try:
        default = f"default `{default_text(RunConfig(), key) or '(empty)'}`"
    except AttributeError:  # below an option that is not set
        default = f"default `{json.dumps(schema['default'])}`" if "default" in schema else "required"
    lines = [f"`{key}` · {_kind(schema, definitions)} · {default}", f":   {_escape(schema.get('description', ''))}", ""]
    for name, child, below in _below(schema, definitions):
        lines += _option(f"{key}.{name}{child}", below, definitions)
    return lines


def _below(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Options of a mapping that is no section of its own: (`` or `NAME.`, name, schema)."""
    for part in (schema, *schema.get("anyOf", ())):
        for way, found in (("", part), ("NAME.", part.get("additionalProperties", {}))):
            if isinstance(found, dict) and "$ref" in found:
                for name, child in definitions[found["$ref"].rpartition("/")[2]]["properties"].items():
                    yield way, name, child


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """What an option's value may be, in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(part, definitions) for part in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return f"mapping: {', '.join(definitions[schema['$ref'].rpartition('/')[2]]['properties'])}"
    kind = schema.get("type")
    if kind == "null":
        return "`null`"
    if kind == "array" and "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}: {_kind(schema['prefixItems'][0], definitions)}"
    if kind == "array":
        return f"list: {_kind(schema['items'], definitions)}"
    if kind == "object":
        values = schema.get("additionalProperties", {})
        names = " ".join(f"`{name}`" for name in schema.get("propertyNames", {}).get("enum", ()))
        return f"mapping of {names or 'names'} to {_kind(values, definitions)}"
    limits = [f"{words} {schema[name]:.10g}" for name, words in _NUMBERS.items() if name in schema]
    return ", ".join([("path" if schema.get("format") == "path" else _KINDS[str(kind)]), *limits])


def _escape(text: str) -> str:
    """Plain text with `code` in it as Markdown."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\*_$|])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "".join(parts)
