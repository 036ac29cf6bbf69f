"""What makes one site of pages that lie in several folders: a hook of mkdocs (`make docs`).

The pages are written to be read in the repository, too. So their links are relative to where they lie there: here each
leads to the page of the site, or, where a file is none of its pages, is text.
"""

import re
from pathlib import Path
from posixpath import join, normpath, relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
ELSEWHERE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploy.md",
    **{str(page.relative_to(ROOT)): f"benchmarks/{page.name}" for page in (ROOT / "tests" / "benchmarks").glob("*.md")},
}
"""The pages outside docs/, by their path in the repository, and where they are in the site."""
LINK: Final = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for path, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 — its names
    """Return a page with links that lead somewhere in the site."""
    uri = page.file.src_uri
    path = next((path for path, there in ELSEWHERE.items() if there == uri), f"docs/{uri}")
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _linked(part, path, uri, files) for part in parts)


def _linked(markdown: str, path: str, uri: str, files: Files) -> str:
    """Return markdown of the page at `path` in the repository, `uri` in the site, with its links changed."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        target, _, anchor = target.partition("#")
        if "://" in target or not target:
            return found[0]
        target = normpath(join(path, "..", target))
        there = ELSEWHERE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(there) is None:
            return _linked(text, path, uri, files)
        hash_ = f"#{anchor}" if anchor else ""
        return f"{mark}[{text}]({relpath(there, join(uri, '..'))}{hash_})"

    return LINK.sub(link, markdown)
