#!/usr/bin/env python3
"""Check the project's prose: `python scripts/words.py` (part of `make lint`).

- README.md, docs/ and CHANGELOG.md stay within their lengths, README.md within its reading ease.
- README.md, docs/ and CHANGELOG.md contain none of the phrases of `PLAIN`.
- The docstrings and texts of `webrl/` contain no more of them than `LIMITS` allows; lower a limit when a count falls.
- Every `webrl …` line of a fenced block is a command that the real parser accepts, and every option that a page names
  exists.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
README_WORDS, README_LINES, README_LINE_LENGTH, README_EASE = 1100, 150, 120, 50.0
DOCS_WORDS = 20_000
CHANGELOG_LINES = 80

PLAIN = {
    r"\banew\b": "again",
    r"\bwhoever\b": "anyone who; the client",
    r"\bwhatever\b": "any; everything that",
    r"\blest\b": "so that … does not",
    r"\bbeside\b": "next to; in addition to; at the same time as",
    r"\bnobody\b": "no one; passive voice",
    r"\bsomebody\b": "someone",
    r"\bof its own accord\b": "by itself",
    r"\b(?:is|are|was|were|be|been) asked\b(?! to\b)": "receives a request; is queried",
    r"\bis asked to\b": "must; should",
    r"\bstands? in\b": "is used instead; is in",
    r"\b(?<!it )stands? (?:there|beside|below|above|for|where|to)\b": "is; represents",
    r"\bstand-ins?\b": "replacement; substitute server",
    r"\bgoes on\b|\bgo on\b|\bgoing on\b": "continues",
    r"\bhas had (?:its|their) fill\b": "was trained longer",
    r"\bis right on\b|\bright on\b": "succeeds on; is correct on",
    r"\bnothing (?:beside|else on) it\b": "on an idle machine",
    r"\bgives? (?:it|them|what|rise|back)\b": "returns; provides",
    r"\bas it stands\b|\bas they stand\b": "unchanged",
    r"\bheld against\b|\bhold against\b|\bholding against\b": "compared with",
    r"\bput (?:beside|questions)\b": "compare with",
    r"\bthe more so\b": "especially",
    r"\bsay what\b|\bsays what\b": "explain; report",
    r"\bin the mean\b": "on average",
    r"\bfor want of\b": "without",
    r"\bin place of\b": "instead of",
    r"\bas typed\b": "verbatim",
    r"\bwith eyes\b|\bhas eyes\b": "with vision",
    r"\bsees to it\b": "ensures",
    r"\ba good deal\b": "much",
    r"\bby heart\b": "memorized",
    r"\bhere and there\b": "in places",
    r"\bare to be had\b|\bis to be had\b": "are available",
}
"""Pattern (case aside): what to write instead."""

LIMITS = {
    "reward": 1,
    "tasks": 2,
    "webrl_webarena": 1,
}
"""Phrases of `PLAIN` in the docstrings and texts of each part of `webrl/`; they may only go down."""

VARIABLES = {"$CONFIG": "demo", "$stage": "rollout", "$phase": "1"}
"""Values of the shell variables that commands of the pages use."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.S | re.M)
FILE_ENDINGS = (".jsonl", ".json", ".html", ".yaml", ".csv", ".md", ".py")
_COMMAND = re.compile(r"\s*(?:do\s+)?(?:[A-Z_]+=\S*\s+)*(?:\.venv/bin/)?webrl(?=\s)")
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_VOWELS = re.compile(r"[aeiouy]+")


def prose(markdown: str) -> str:
    """A page without code, with the text of its links alone."""
    text = _COMMENT.sub("", _FENCE.sub("", markdown))
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.S)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]+\)", r"\1", text)
    return re.sub(r"`[^`\n]*`", "CODE", text)


def num_words(markdown: str) -> int:
    """Words of a page, code and tables included."""
    return sum(any(c.isalnum() for c in word) for word in markdown.split())


def paragraphs(markdown: str) -> str:
    """The sentences of a page: no headings, tables or pictures."""
    lines = [line for line in prose(markdown).splitlines() if not line.startswith(("#", "|", "!"))]
    return re.sub(r"^ *[-*] ", "", "\n".join(lines), flags=re.M)


def syllables(word: str) -> int:
    """An estimate: groups of vowels, a silent e left out."""
    word = word.lower()
    groups = len(_VOWELS.findall(word))
    if word.endswith("e") and not word.endswith(("le", "ee")) and groups > 1:
        groups -= 1
    return max(groups, 1)


def reading_ease(markdown: str) -> float:
    """Flesch's reading ease: 206.835 - 1.015 words/sentence - 84.6 syllables/word; higher is easier."""
    text = paragraphs(markdown)
    words = re.findall(r"[A-Za-z][A-Za-z'’-]*", text)
    blocks = re.split(r"\n\s*\n", text)
    sentences = sum(max(1, len(re.findall(r"[.!?:;](?:\s|$)", block))) for block in blocks if block.strip())
    return 206.835 - 1.015 * len(words) / sentences - 84.6 * sum(map(syllables, words)) / len(words)


def found_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, phrase, what to write instead) for each phrase of `PLAIN`."""
    for pattern, plain in PLAIN.items():
        for match in re.finditer(pattern, text, re.I):
            yield text.count("\n", 0, match.start()) + 1, match[0], plain


def blank_code(markdown: str) -> str:
    """A page with its code and link addresses blanked, so that line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = _FENCE.sub(blank, markdown)
    return re.sub(r"`[^`\n]*`|\]\([^)\s]+\)", blank, text)


def texts(path: Path) -> Iterator[str]:
    """The docstrings and other string literals of a module that read as prose."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield node.value


def counts() -> dict[str, int]:
    """Phrases of `PLAIN` by part of `webrl/` (a folder or module right below it), and by companion."""
    found: Counter[str] = Counter()
    for path in sorted([*ROOT.glob("webrl/**/*.py"), *ROOT.glob("packages/*/webrl_*/**/*.py")]):
        parts = path.relative_to(ROOT).parts
        part = parts[2] if parts[0] == "packages" else parts[1].removesuffix(".py")
        found[part] += sum(1 for text in texts(path) for _ in found_phrases(text))
    return {part: number for part, number in sorted(found.items()) if number}


def commands(markdown: str) -> Iterator[tuple[int, list[str]]]:
    """(line, arguments) of each `webrl …` line of a page's fenced blocks."""
    for block in re.finditer(r"^ *```(?:bash|sh)\n(.*?)^ *```$", markdown, re.S | re.M):
        number = markdown.count("\n", 0, block.start(1)) + 1
        for offset, line in enumerate(block[1].replace("\\\n", "  ").splitlines()):
            for part in re.split(r"\s(?:&&|\|\||[|;&])(?:\s|$)", line.strip()):
                if found := _COMMAND.match(part):
                    words = shlex.split(part[found.end() :], comments=True)
                    yield number + offset, [VARIABLES.get(word, word) for word in words]


def command_problem(arguments: list[str]) -> str:
    """Why webrl refuses a command, its options included; empty if it accepts it."""
    from webrl.cli import parse
    from webrl.config import describe_options

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = parse(arguments)
    except SystemExit as end:
        return said.getvalue().strip().splitlines()[-1] if end.code else ""
    if args.command in ("grpo", "arena"):  # options of their own
        return ""
    known = [key for option in describe_options() for key in option.keys]
    for setting in getattr(args, "settings", ()):
        key, equals, _ = setting.partition("=")
        if equals and not any(name == key or f"{key}.".startswith(f"{name}.") for name in known):
            return f"no option is called {key}"
    return ""


def option_problems() -> Iterator[str]:
    """Options in the text of the pages, such as `actor.lr=1e-5`, that no section has."""
    from webrl.config import describe_options

    known = [key for option in describe_options() for key in option.keys]
    sections = "|".join(sorted({key.partition(".")[0] for key in known if "." in key}))
    option = re.compile(rf"`(?:[^`\n]* )?((?:{sections})(?:\.[a-z_]+)+)(?=[=:` ])")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in option.finditer(text):
            key = match[1]
            if not key.endswith(FILE_ENDINGS) and not any(
                f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in known
            ):
                yield f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: no option is called {key}"


def pages() -> list[Path]:
    """The pages that are held to plain words."""
    return [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def length_problems() -> Iterator[str]:
    """What is too long or too hard to read."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if (words := num_words(readme)) > README_WORDS:
        yield f"README.md: {words} words, at most {README_WORDS}"
    if (lines := len(readme.splitlines())) > README_LINES:
        yield f"README.md: {lines} lines, at most {README_LINES}"
    for number, line in enumerate(_FENCE.sub(lambda m: "\n" * m[0].count("\n"), readme).splitlines(), 1):
        if len(line) > README_LINE_LENGTH and not line.startswith(("|", "![")):
            yield f"README.md:{number}: {len(line)} characters, at most {README_LINE_LENGTH}"
    if (ease := reading_ease(readme)) < README_EASE:
        yield f"README.md: reading ease {ease:.0f} (Flesch), at least {README_EASE:.0f}; shorter words and sentences"
    total = sum(num_words(page.read_text(encoding="utf-8")) for page in (ROOT / "docs").glob("*.md"))
    if total > DOCS_WORDS:
        yield f"docs/: {total:,} words, at most {DOCS_WORDS:,}"
    changes = len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines())
    if changes > CHANGELOG_LINES:
        yield f"CHANGELOG.md: {changes} lines, at most {CHANGELOG_LINES}"


def phrase_problems() -> Iterator[str]:
    """Phrases of `PLAIN` in pages, and more of them in code than allowed."""
    for page in pages():
        text = blank_code(page.read_text(encoding="utf-8"))
        for line, phrase, plain in found_phrases(text):
            yield f"{page.relative_to(ROOT)}:{line}: {phrase!r}; write: {plain}"
    for part, number in counts().items():
        if number > LIMITS.get(part, 0):
            yield f"{part}: {number} phrases of PLAIN in texts, at most {LIMITS.get(part, 0)} (--code lists them)"


def command_problems() -> Iterator[str]:
    """Commands of the pages that no longer parse."""
    for page in (*pages(), ROOT / "data" / "README.md", ROOT / "AGENTS.md"):
        for line, arguments in commands(page.read_text(encoding="utf-8")):
            if problem := command_problem(arguments):
                yield f"{page.relative_to(ROOT)}:{line}: webrl {shlex.join(arguments)}: {problem}"


def main() -> int:
    """Print every problem; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", action="store_true", help="print the phrases by part of webrl/, for LIMITS")
    parser.add_argument("--code", metavar="PART", help="list the phrases of a part of webrl/")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if args.counts:
        print(counts())
        return 0
    if args.code:
        companion = ROOT / "packages" / args.code.replace("_", "-") / args.code
        folder = companion if companion.is_dir() else ROOT / "webrl" / args.code
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            for text in texts(path):
                for _, phrase, plain in found_phrases(text):
                    print(f"{path.relative_to(ROOT)}: {phrase!r} ({plain}): {text[:100]!r}")
        return 0
    problems = [*length_problems(), *phrase_problems(), *command_problems(), *option_problems()]
    print("\n".join(problems) or "words: all checks passed")
    return min(len(problems), 1)


if __name__ == "__main__":
    raise SystemExit(main())
