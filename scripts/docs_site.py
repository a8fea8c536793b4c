"""Hooks of mkdocs (`mkdocs.yml`): pages that are made of the code, and what would need scripts from elsewhere.

- `commands.md`, `options.md` and `arena_tasks.md` come from the argument parsers, the config models and the arena's
  task templates of this checkout.
- README.md, data/README.md and others become pages. Links between files work as they do on GitHub; those to files that
  are no page keep their text, but the file must be there.
- Mermaid diagrams become SVG and equations MathML while the site is built.
"""

from __future__ import annotations

import html
import os
import re
import sys
import zlib
from pathlib import Path

import mmdr
from latex2mathml.converter import convert as to_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from docs_reference import arena_page, commands_page, options_page

ROOT = Path(__file__).parent.parent
COPIES = {
    "README.md": "index.md",
    "data/README.md": "files.md",
    "data/tiny/README.md": "tiny.md",
    "CHANGELOG.md": "changes.md",
    "AGENTS.md": "contributing.md",
}
"""Files outside of docs/ that are pages too: file, page."""
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_EXTERNAL = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
_DIAGRAM = re.compile(r'<pre class="mermaid"><code>(.*?)</code></pre>', re.S)
_MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in COPIES.items()}
    pages |= {"commands.md": commands_page(), "options.md": options_page(), "arena_tasks.md": arena_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages where there is one, and be text where there is none."""
    del config, files
    sources = {page: source for source, page in COPIES.items()}
    name = page.file.src_uri
    return rewrite_links(markdown, ROOT / sources.get(name, f"docs/{name}"))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the diagrams and set the equations."""
    del page, config, files
    content = _DIAGRAM.sub(lambda m: draw(html.unescape(m[1])), content)
    return _MATH.sub(lambda m: set_equation(html.unescape(m[2]), display=m[1] == "div"), content)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page whose display would fetch anything from elsewhere."""
    del config
    found = _EXTERNAL.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: the page would fetch from elsewhere: {found[0]:.200}")
    return output


def draw(source: str) -> str:
    """A Mermaid diagram as SVG, its text never smaller than can be read."""
    svg: str = mmdr.render(source).svg()
    svg = re.sub(r"max-width:([\d.]+)px", lambda m: f"{m[0]};min-width:{0.65 * float(m[1]):.0f}px", svg, count=1)
    name = f"diagram-{zlib.crc32(source.encode())}"
    return f'<div class="diagram">{svg.replace("merman", name)}</div>'


def set_equation(source: str, *, display: bool) -> str:
    """An equation as MathML, which browsers know without a script; one that is displayed scrolls where it is wide."""
    if not display:
        return str(to_mathml(source))
    return f'<div class="equation">{to_mathml(source, display="block")}</div>'


def rewrite_links(markdown: str, source: Path) -> str:
    """A file's links as the site has them, all of whose pages lie in one folder."""

    def replace(match: re.Match[str]) -> str:
        text, address = match.groups()
        path, hash_sign, anchor = address.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = Path(os.path.normpath(source.parent / path))
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        if name in COPIES or name.startswith("docs/"):
            return f"[{text}]({COPIES.get(name, name.removeprefix('docs/'))}{hash_sign}{anchor})"
        return text if name and target.exists() else match[0]

    markdown = _LINK.sub(replace, markdown)
    return markdown.replace("](docs/", "](") if source.parent == ROOT else markdown  # pictures
