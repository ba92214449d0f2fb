"""The page of a server: its headers, and what a browser shows."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2")
pytest.importorskip("starlette")
from starlette.testclient import TestClient

from flax_linattn.inference.linattn_runtime import Bundle
from flax_linattn.serve import Limits, make_app
from tests.serve.test_app import ROWS
from tests.serve.test_process import Served

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def test_the_page_loads_nothing_else(path: Path) -> None:
    """It needs no token, and its policy allows its own style and script alone."""
    app = make_app(Bundle(path), token="open", limits=Limits(max_rows=1))
    with TestClient(app) as client:
        answer = client.get("/")
        assert answer.status_code == 200 and "text/html" in answer.headers["Content-Type"]
        policy = answer.headers["Content-Security-Policy"]
        assert re.search(r"default-src 'none'; style-src 'sha256-\S{44}'; script-src", policy)
        assert "unsafe" not in policy
        assert not re.search(r"(src|href)=\"?https?:", answer.text)
        assert client.get("/v1/signature").status_code == 401


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_streams(path: Path, tmp_path: Path) -> None:
    """Rows of a table become probabilities; the state is saved, loaded and continued."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    session = Bundle(path).session()
    want = [session.step(row) for row in ROWS[:6]]
    server = Served(path, FLAX_LINATTN_TOKEN="open")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        errors: list[Any] = []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(server.url)
        for token in ("shut", "open"):
            page.fill("#token", token)
            page.click("#login button")
        page.wait_for_selector("#work:not([hidden])")

        def run(text: str) -> str:
            page.fill("#input", text)
            page.select_option("#speed", "0")
            page.click("#run")
            page.wait_for_selector("#run:text-is('Run')")
            return str(page.inner_text("#error"))

        def show() -> dict[str, str]:
            names, numbers = (
                page.locator(f".bars .{kind}").all_inner_texts() for kind in ("name", "number")
            )
            return dict(zip(names, numbers, strict=True))

        def expect(index: int) -> dict[str, str]:
            return {n: f"{100 * want[index][f'p({n})']:.1f} %" for n in "wxyz"}

        assert run("c,a,b\n1,2,x") == 'Line 2, b: expected a number, got "x".'
        assert run("1,2") == "Line 1 has 2 cells; expected 3."
        table = ["c,a,b", *(f"{row[2]},{row[0]},{row[1]}" for row in ROWS[:3])]
        assert run("\n".join(table)) == "" and show() == expect(2)
        assert "after 3 observations" in page.inner_text("#state")
        with page.expect_download() as download:
            page.click("#save")
        download.value.save_as(tmp_path / "three.state")
        for _ in range(2):
            page.click("#reset")
            assert "after 0 observations" in page.inner_text("#state")
            page.set_input_files("#load", tmp_path / "three.state")
            page.wait_for_selector("#state:text('after 3 observations')")
            assert run("\n".join(",".join(map(str, row)) for row in ROWS[3:6])) == ""
            assert show() == expect(5)
        browser.close()
    assert errors == [] and server.process.poll() is None
    server.process.kill()
    server.process.communicate()
