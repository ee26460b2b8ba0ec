"""Build the documentation site: the pages of `docs/`, a reference of every public name, and `llms.txt`.

The pages are written so that they can be read in the repository, too. On the site, links to other files of the
repository go to where it is hosted.
"""

import argparse
import http.server
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from docs_llms import llms_txt
from docs_reference import GROUPS, reference_page

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
PORT = 8100

_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def repository() -> str:
    """Return the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Homepage"])


def pages() -> Iterator[tuple[Path, str]]:
    """Return where each page is on the site, and its text."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield page.relative_to(ROOT / "docs"), for_site(page)
    for group in GROUPS:
        yield Path("reference", f"{group.file}.md"), reference_page(group)


def for_site(page: Path) -> str:
    """Return the text of a page, with links that work on the site.

    Args:
        page: a file of the repository.

    Raises:
        SystemExit: it has a link to a file that is not there.
    """
    up = "../" * (len(page.relative_to(ROOT / "docs").parts) - 1)

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[1]).resolve()
        if not target.exists():
            sys.exit(f"{page.relative_to(ROOT)}: there is no {found[1]}")
        anchor = found[2] or ""
        if target.is_relative_to(ROOT / "docs"):
            return f"]({up}{target.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        kind = "tree" if target.is_dir() else "blob"
        return f"]({repository()}/{kind}/main/{target.relative_to(ROOT).as_posix()}{anchor})"

    parts = _FENCE.split(page.read_text())
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(link, part) for part in parts)


def build() -> Path:
    """Build the site, and return its folder.

    Raises:
        SystemExit: there was a warning.
    """
    shutil.rmtree(PAGES, ignore_errors=True)
    for file in (ROOT / "docs").rglob("*"):
        if file.is_file() and file.suffix != ".md":
            copy = PAGES / file.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    texts = {path.as_posix(): text for path, text in pages()}
    write(PAGES, texts)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
    print(done.stdout, end="")
    if done.returncode or "griffe: " in done.stdout:  # it warns of docstrings, and zensical does not count that
        sys.exit(f"The site has mistakes, see above. Its pages are in {PAGES.relative_to(ROOT)}.")
    # Agents read the pages as they are written, beside those for people.
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    write(BUILD / "site", {**texts, "llms.txt": llms_txt(settings, texts)})
    return BUILD / "site"


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder, each by its path there."""
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def main() -> None:
    """Build the site, and serve it where that is asked for."""
    options = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    options.add_argument("--serve", action="store_true", help=f"serve it on http://localhost:{PORT}")
    serve = options.parse_args().serve
    site = build()
    print(f"The site is in {site.relative_to(ROOT)}.")
    if serve:
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
        print(f"Serving it on http://localhost:{PORT}")
        http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler).serve_forever()


if __name__ == "__main__":
    main()
