"""The web page of a server: ``page.html``, which shows predictions as observations arrive."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from starlette.responses import HTMLResponse


def make_page() -> HTMLResponse:
    """Makes the response to a request for the page.

    Its content security policy allows the style and the script of the page, by their hashes, and
    requests to the same server; nothing else is loaded or executed.

    Example:
        >>> make_page().headers["content-security-policy"].partition(";")[0]
        "default-src 'none'"
    """
    page = Path(__file__).with_name("page.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash(page, 'style')}'; "
        f"script-src '{_hash(page, 'script')}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return HTMLResponse(page, headers=headers)


def _hash(page: str, tag: str) -> str:
    """Hash of the content of an element, in the format of a content security policy."""
    content = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
