"""Pages of the site that lie outside docs/: README as the home page, the changelog and others.

A hook of MkDocs (mkdocs.yml names it). Links between those pages are turned towards the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

# Page of the site: file of the repository. One of `docs` keeps its name there.
PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "guide/troubleshooting.md": "src/samebits/troubleshooting.md",
}
LINK = re.compile(r"\[([^][]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def turned(text: str) -> str:
    """A page of the repository's root with its links as the site has them.

    What the site does not hold, such as the licence, keeps its words without the link.
    """
    homes = {source: page for page, source in PAGES.items()}

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target:
            return found[0]
        if target.startswith("docs/site/"):
            return f"[{words}]({target.removeprefix('docs/')})"
        if target.startswith("docs/") and target.endswith(".md"):
            return f"[{words}]({target.removeprefix('docs/')}{anchor})"
        return f"[{words}]({homes[target]}{anchor})" if target in homes else words

    return LINK.sub(link, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=turned(text)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name pages and files as a reader of the site knows them.

    A link that is called by a path gets the title of its page. One that leads from a guide to a
    folder of the repository keeps its words alone. A block ```LANGUAGE NAME is a file of that name
    (tests/test_docs.py).
    """
    markdown = re.sub(r"\[([^][]+)\]\(\.\./\.\./[^)]+\)", r"\1", markdown)

    def titled(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        file = files.get_file_from_path(place)
        if file is None or not words.endswith(".md"):
            return found[0]
        heading = re.search(r"^# (.+)$", file.content_string, flags=re.MULTILINE)
        return f"[{heading[1] if heading else words}]({target}{anchor})"

    markdown = LINK.sub(titled, markdown)
    return re.sub(r"^```(\w+) (\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's dialog of the search, which screen readers else call nothing."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
