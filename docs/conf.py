"""Settings of Sphinx: docs/ as a site that needs no network when it is built or read. `make docs` builds it.

Pages are Markdown that a code host shows as well: links lead to the files of the repository, which the site carries as
downloads where they are no pages.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "hpcrec"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
nitpicky = True

# Links to headings, as code hosts name them; directives of the API page.
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Types are in the docstrings, in words; signatures show names and defaults.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_validation_checks: set[str] = set()

html_theme = "furo"
html_title = f"hpcrec {release}"
html_static_path: list[str] = []
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
