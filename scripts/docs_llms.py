"""The file `llms.txt` of the site (<https://llmstxt.org>): for agents, each page as Markdown, with a line on it."""

import re
from collections.abc import Mapping
from typing import Any

_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SENTENCE_ENDS = re.compile(r"(?<=[.?!]) (?=[A-Z`])")

SHORT = 60
"""A sentence of fewer characters says too little of a page."""

OPTIONAL = "Project"
"""The part of the navigation that is for those who change the project itself."""


def llms_txt(site: Mapping[str, Any], pages: Mapping[str, str]) -> str:
    """Return the text of the file.

    Args:
        site: the settings of the site.
        pages: the text of each page, by its path on the site.
    """
    parts = [f"# {site['site_name']}\n\n> {site['site_description']}\n"]
    for group in site["nav"]:
        for title, paths in group.items():
            lines = "".join(f"- {_described(site['site_url'], path, pages[path])}\n" for path in paths)
            parts.append(f"## {'Optional' if title == OPTIONAL else title}\n\n{lines}")
    return "\n".join(parts)


def _described(url: str, path: str, text: str) -> str:
    title = text.partition("\n")[0].removeprefix("# ")
    return f"[{title}]({url}{path}): {_beginning(text)}"


def _beginning(text: str) -> str:
    """Return the first sentence of a page's prose, or two if it is short, without links and emphasis."""
    blocks = (block.strip() for block in re.split(r"\n\s*\n", _FENCE.sub("", text)))
    prose = next(block for block in blocks if block and block[0] not in "#|-!<:[>" and block[-1] in ".:")
    plain = _LINK.sub(r"\1", " ".join(prose.split())).replace("*", "").removeprefix("Decision. ")
    first, *others = _SENTENCE_ENDS.split(plain)
    return " ".join([first, *others[: len(first) < SHORT]]).removesuffix(":")
