"""The documentation as a site: ``sphinx-build -W -c docs . FOLDER``, in an environment with the extra ``docs``."""

import re
from pathlib import Path

from sphinx.application import Sphinx

import bapo

project = "Buffer Matters: a reproduction suite for BAPO"
author = "The authors of this reproduction suite"
version = release = bapo.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
# The source is the whole checkout, so that pages may link to README.md, CONTRIBUTING.md and files of the code.
include_patterns = ["*.md", "docs/*.md", "evidence/README.md", "benchmarks/NOTES.md"]
html_title = "BAPO, reproduced"
html_theme = "furo"
html_copy_source = False

myst_enable_extensions = ["alert"]
myst_heading_anchors = 4  # as a forge makes them: engines.md#on-gpus

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False

#: a heading of docs/README.md, or a page that a row of its tables names
ENTRY = re.compile(r"^## (?P<heading>.+)$|^\| \[[^]]+\]\((?P<page>[^)]+)\.md\)", re.MULTILINE)


def contents() -> str:
    """Return the sidebar, a section a heading of docs/README.md, as MyST's directives."""
    found = "```{toctree}\n:hidden:\ndocs/README\n"
    for entry in ENTRY.finditer(Path(__file__).with_name("README.md").read_text(encoding="utf-8")):
        if heading := entry["heading"]:
            found += f"```\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n"
        else:
            page = entry["page"]
            found += f"{page.removeprefix('../') if page.startswith('../') else f'docs/{page}'}\n"
    return found + "```\n"


#: a picture and its dark copy, as a forge reads them
PICTURE = re.compile(r'<picture><source \S+ \S+ srcset="([^"]+)"><img\salt="([^"]+)" src="([^"]+)"></picture>')
#: the same for the theme
IMAGES = "```{image} \\3\n:class: only-light\n:alt: \\2\n```\n```{image} \\1\n:class: only-dark\n:alt: \\2\n```"


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the sidebar to the first page: a forge would show the directives as code."""
    source[0] = PICTURE.sub(IMAGES, source[0])
    if name == root_doc:
        source[0] += f"\n\n{contents()}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
