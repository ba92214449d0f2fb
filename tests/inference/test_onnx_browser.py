"""ONNX of a streaming model in a browser, by the module of the guide."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import inference
from tests.inference.cases import CHANNELS, classifier
from tests.inference.exported_cases import QUICK, observations
from tests.serve.test_page import CHROMIUM, FLAGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "export.md"
RUN = """async ([url, rows]) => {
    const { openStream } = await import("./stream.mjs");
    const step = await openStream(url), outputs = [];
    const start = performance.now();
    for (const row of rows) outputs.push([...await step(Float32Array.from(row))]);
    return [outputs, 1000 * (performance.now() - start) / rows.length];
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and folder of a server of files with the module and its library."""
    folder = tmp_path_factory.mktemp("site")
    command = ["npm", "install", "--no-audit", "--no-fund", "onnxruntime-web"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-web: {done.stderr[-200:]}")
    (module,) = re.findall(r"```js\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (folder / "stream.mjs").write_text(module)
    (folder / "index.html").write_text("<!doctype html><title>stream</title>")
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()


@pytest.mark.parametrize("mechanism", QUICK)
def test_a_browser_steps_as_the_model(mechanism: str, site: tuple[str, Path]) -> None:
    url, folder = site
    model, x = classifier(mechanism), observations(1000)
    name = f"{mechanism}.onnx"
    inference.export_onnx(folder / name, model, jnp.ones((1, CHANNELS)), require_state=True)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        outputs, microseconds = page.evaluate(RUN, [name, x.tolist()])
        browser.close()
    print(json.dumps({"mechanism": mechanism, "microseconds of a step": microseconds}))
    own = np.asarray(inference.unroll(model, x[None])[0])
    np.testing.assert_allclose(outputs, own, rtol=0, atol=1e-5)
