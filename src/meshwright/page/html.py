"""Makes one HTML file of a document: template, style and scripts in their own kinds of files, which
come with the package, and data that no browser takes for anything else.

The page may load nothing and run nothing but what stands in it: its policy has the hashes of its
style and of each of its scripts.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec

STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "script/inflate.js",
    "script/data.js",
    "script/dom.js",
    "script/summary.js",
    "script/axis.js",
    "script/track.js",
    "script/timeline.js",
    "script/control.js",
    "script/chart.js",
    "script/network.js",
    "script/strip.js",
    "script/main.js",
)
"""In the order in which they stand in the page."""
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def make_page(document: Mapping[str, Any], blobs: Sequence[str]) -> str:
    """The page as one file: data, scripts and styles inside it."""
    styles = [_read(name) for name in STYLES]
    scripts = [_read(name) for name in SCRIPTS]
    for each in scripts:
        assert "</script" not in each.lower()
    values = {
        "policy": _policy(styles, scripts),
        "styles": "\n".join(f"<style>{each}</style>" for each in styles),
        "data": escape_json(document),
        "blobs": "\n".join(
            f'<script type="text/plain" id="blob-{number}">{text}</script>'
            for number, text in enumerate(blobs)
        ),
        "scripts": "\n".join(f"<script>{each}</script>" for each in scripts),
    }
    page = _read("page.html")
    for name, text in values.items():
        mark = f"<!--{name}-->"
        assert page.count(mark) == 1, mark
        page = page.replace(mark, text)
    return page


def escape_json(document: Mapping[str, Any]) -> str:
    """JSON without any character that could end a script, begin a comment or break a line."""
    text = msgspec.json.encode(document).decode("utf-8", "replace")
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    hashes = {
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
    }
    rules = "; ".join(f"{name} {each}" for name, each in hashes.items())
    return f"default-src 'none'; {rules}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _read(name: str) -> str:
    place = files("meshwright.page").joinpath("static", *name.split("/"))
    return place.read_text(encoding="utf-8").replace("\r\n", "\n").strip("\n")
