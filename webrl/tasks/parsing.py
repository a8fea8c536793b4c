"""Reads instructions from a language model's answer: separates them from decoration and garbage.

Answers come as one line, numbered or bulleted lists, JSON (strings, objects, one a line), code fences, quoted or
in bold, behind a preamble or a chain of thought. `parse_instructions` takes all of these apart;
`malformed_reason` says why a line cannot be a task. Nothing is dropped without being counted.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from webrl.tasks.prompts import MAX_INSTRUCTION_CHARS

MAX_ANSWER_CHARS = 2_000_000
"""An answer beyond this is cut before it is parsed."""
_KEYS = ("instruction", "task", "intent", "goal", "text", "question")
_LIST_KEYS = ("instructions", "tasks", "intents", "new_instructions", "goals")
THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```[\w-]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_MARKER = re.compile(r"^(?:>\s*)?(?:[-*•–—+]\s+|\(?\d{1,5}[.):]\s*|#{1,6}\s+|\[\s?\]\s+)+")
_LEAD_IN = re.compile(
    r"^(?:\*\*)?(?:(?:new|done|easier|generated)\s+)?(?:instruction|task|intent|answer|sub-?goal)s?"
    r"(?:\s*#?\d{1,5})?(?:\*\*)?\s*[:：](?:\*\*)?\s*",
    re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"^(?:sure|certainly|of course|okay|ok|here (?:are|is)|here's|below (?:are|is))\b", re.IGNORECASE
)
_REFUSAL = re.compile(
    r"^(?:i(?:'|’)?m sorry|i am sorry|sorry|i can(?:'|’)?t|i cannot|i am unable|i(?:'|’)?m unable|i won(?:'|’)?t"
    r"|i apologi[sz]e|unfortunately|as an ai|i(?:'|’)?m not able|no (?:new )?instructions? (?:is|are|can))\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"</?[a-z][\w-]*(?:\s[^<>]*)?/?>|<!--|<\||\|>|\[/?INST\]|<</?SYS>>|\{\{|\}\}|```|&(?:lt|gt|amp|quot|#\d+);|\]\(http",
    re.IGNORECASE,
)
_ECHO = re.compile(r"^(?:site|failed|did|page|rules of this site)\s*:|^\[\w+\]\s|^RootWebArea\b", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"[\[<{]\s*(?:your|insert|some|the|item|name|value|x|\.{3}|…)[\w\s.…-]*[\]>}]", re.IGNORECASE)
# Control, surrogate, private-use and unassigned characters; format characters of scripts are fine.
_CONTROL = ("Cc", "Cs", "Co", "Cn")
_OVERRIDES = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
"""Bidirectional overrides."""
_WRAPPERS = (("**", "**"), ("`", "`"), ('"', '"'), ("“", "”"), ("'", "'"), ("‘", "’"), ("*", "*"))


def parse_instructions(
    answer: str, num_wanted: int = 1, truncated: bool = False
) -> tuple[tuple[str, ...], Counter[str]]:
    """Extract the instructions from a model's answer.

    Args:
        num_wanted: how many the prompt asked for; further ones are counted as `surplus`.
        truncated: the answer was cut at its token limit: its last instruction is incomplete and dropped.

    Returns:
        At most `num_wanted` distinct instructions in the answer's order, not yet checked one by one; and counts of
        what was wrong: `empty_answer`, `refusal`, `truncated`, `repeated_in_answer`, `surplus`.
    """
    counts: Counter[str] = Counter()
    text = THINKING.sub("", answer[:MAX_ANSWER_CHARS])
    items: list[str] = []
    for block in [block for block in _FENCE.findall(text) if block.strip()] or [text]:
        values = list(_from_json(block))
        if not values:
            lines = [line.strip() for line in block.split("\n") if line.strip()]
            is_one = len(lines) == 1
            values = [line for line in lines if is_one or not (line.endswith((":", "：")) or _PREAMBLE.match(line))]
        items += filter(None, map(_undress, values))
    found = list(dict.fromkeys(items))
    counts["repeated_in_answer"] = len(items) - len(found)
    if truncated and found:
        found.pop()
        counts["truncated"] = 1
    refused = [item for item in found if _REFUSAL.match(item)]
    found = [item for item in found if not _REFUSAL.match(item)]
    counts["refusal"] = int(bool(refused))
    counts["empty_answer"] = int(not found and not refused and not counts["truncated"])
    counts["surplus"] = max(0, len(found) - num_wanted)
    return tuple(found[:num_wanted]), +counts


def malformed_reason(instruction: str) -> str | None:
    """Return why this text cannot be an instruction, or None."""
    text, words = instruction.strip(), instruction.lower().split()
    checks = {
        "is empty": not text,
        f"is longer than {MAX_INSTRUCTION_CHARS} characters": len(text) > MAX_INSTRUCTION_CHARS,
        "holds control characters": any(c in _OVERRIDES or unicodedata.category(c) in _CONTROL for c in text),
        "holds markup": bool(_MARKUP.search(text)),
        "repeats the prompt": bool(_ECHO.match(text)),
        "is a refusal": bool(_REFUSAL.match(text)),
        "has an unfilled placeholder": bool(_PLACEHOLDER.search(text)),
        "has fewer than two words": len(text.split()) < 2,
        "has no letters": not any(character.isalpha() for character in text),
        "has an unclosed quote": text.count('"') % 2 == 1 or text.count("“") != text.count("”"),
        "repeats itself": len(words) >= 12 and Counter(words).most_common(1)[0][1] > len(words) / 2,
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def _from_json(block: str) -> Iterator[str]:
    """Instructions of a JSON document in the block, or of JSON lines; none if there is no JSON."""
    start = min((i for i in (block.find("["), block.find("{")) if i >= 0), default=-1)
    end = max(block.rfind("]"), block.rfind("}"))
    if start < 0 or (block[:start].count("\n") > 3 and not block[:start].strip().endswith(":")):
        return
    try:
        yield from _strings(orjson.loads(block[start : end + 1]))
        return
    except orjson.JSONDecodeError:
        pass
    for line in block.split("\n"):
        try:
            yield from _strings(orjson.loads(line.strip().rstrip(",")))
        except orjson.JSONDecodeError:
            continue


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, list):
        for item in data:
            yield from _strings(item)
    elif isinstance(data, dict):
        known = [data[key] for key in (*_LIST_KEYS, *_KEYS) if key in data]
        yield from _strings(known[0] if known else [v for v in data.values() if isinstance(v, list | dict)])


def _undress(line: str) -> str:
    """Strip list markers, lead-ins ("New instruction:"), quotes, back-ticks and bold, from the outside in."""
    text = re.sub(r"[ \t\r\n]+", " ", line).strip(" ")
    while True:
        bare = _LEAD_IN.sub("", _MARKER.sub("", text)).strip().rstrip(",") if text else ""
        for left, right in _WRAPPERS:
            inner = bare[len(left) : len(bare) - len(right)]
            wrapped = bare.startswith(left) and bare.endswith(right) and len(bare) > len(left) + len(right)
            if wrapped and left not in inner and right not in inner:
                bare = inner.strip()
        if bare == text:
            return text
        text = bare
