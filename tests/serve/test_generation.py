"""Tokens as server-sent events equal those that the bundle's own logits give."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
import httpx2
from flax import nnx
from starlette.testclient import TestClient

from flax_linattn import inference, models
from flax_linattn.inference.linattn_runtime import Bundle
from flax_linattn.serve import Limits, make_app
from tests.serve.test_app import ok
from tests.serve.test_process import Served

BEGIN = 256


@pytest.fixture(scope="module")
def text_bundle(tmp_path_factory: Any) -> Bundle:
    path = tmp_path_factory.mktemp("text") / "model.linattn"
    model = models.LanguageModel(
        257, features=16, num_layers=1, num_heads=2, mechanism="aaren", rngs=nnx.Rngs(0)
    )
    tokens = {"kind": "token", "count": 257, "tokenizer": "bytes", "begin": BEGIN}
    task = {"name": "text", "inputs": [tokens], "outputs": {"kind": "logits"}}
    inference.export(
        path, model, jnp.zeros(1, jnp.int32), chunk_sizes=(), platforms=("cpu",), task=task
    )
    return Bundle(path)


@pytest.fixture(scope="module")
def client(text_bundle: Bundle) -> Any:
    with TestClient(make_app(text_bundle, limits=Limits(max_rows=1, max_observations=50))) as own:
        yield own


def events(response: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and values of the events of an answer."""
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for event in response.text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in event.split("\n"))
        found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


def greedy(bundle: Bundle, given: Any, count: int) -> list[int]:
    session, tokens = bundle.session(), []
    for token in given:
        logits = session.step(int(token))["logits"]
    for _ in range(count):
        tokens.append(int(np.argmax(logits)))
        logits = session.step(tokens[-1])["logits"]
    return tokens


def test_greedy_tokens(client: Any, text_bundle: Bundle) -> None:
    """Of a prompt, then of the state and the last token; by a session, too."""
    want = greedy(text_bundle, [BEGIN, *b"ab"], 8)
    assert BEGIN not in want
    request = {"prompt": "ab", "max_tokens": 5, "temperature": 0}
    *first, (name, end) = events(client.post("/v1/generate", json=request))
    assert [values["token"] for _, values in first] == want[:5]
    assert {each for each, _ in first} == {""} and name == "end"
    assert end["finish_reason"] == "length" and end["steps"] == 3 + 4
    assert end["next"] == want[4]
    text = "".join(values.get("text", "") for _, values in [*first, (name, end)])
    assert text == bytes(want[:5]).decode(errors="replace")
    request = {"observation": want[4], "max_tokens": 3, "temperature": 0, "state": end["state"]}
    *more, (_, end) = events(client.post("/v1/generate", json=request))
    assert [values["token"] for _, values in more] == want[5:] and end["steps"] == 8 + 2
    session = ok(client.post("/v1/sessions", json={}), 201)["session"]
    url = f"/v1/sessions/{session}/generate"
    own = events(client.post(url, json={"prompt": "ab", "max_tokens": 8, "temperature": 0}))
    assert [values["token"] for _, values in own[:-1]] == want
    assert ok(client.get(f"/v1/sessions/{session}"))["steps"] == own[-1][1]["steps"] == 3 + 7


def test_samples_follow_the_options(client: Any) -> None:
    def sample(**options: Any) -> list[int]:
        request = {"prompt": "ab", "max_tokens": 20, **options}
        return [
            values.get("token") for _, values in events(client.post("/v1/generate", json=request))
        ]

    first = sample(seed=1)
    assert sample(seed=1) == first != sample(seed=2)
    likely = sample(temperature=0)
    assert sample(seed=1, top_k=1) == sample(seed=1, top_p=1e-6) == sample(min_p=1) == likely


def test_a_continuation_samples_what_one_request_does(client: Any) -> None:
    request = {"prompt": "ab", "max_tokens": 10, "seed": 3}
    *whole, _ = events(client.post("/v1/generate", json=request))
    *first, (_, end) = events(client.post("/v1/generate", json={**request, "max_tokens": 4}))
    more = {"observation": end["next"], "state": end["state"], "seed": 3, "max_tokens": 6}
    *rest, _ = events(client.post("/v1/generate", json=more))
    assert [values["token"] for _, values in (*first, *rest)] == [v["token"] for _, v in whole]


def test_many_clients_generate_what_one_does(text_bundle: Bundle) -> None:
    """Rows of several clients are stepped together; options that are null are not given."""
    with TestClient(make_app(text_bundle, limits=Limits(max_rows=16))) as client:

        def tokens(seed: int) -> list[int]:
            request = {"prompt": "ab", "max_tokens": None, "seed": seed, "top_k": None}
            *found, _ = events(client.post("/v1/generate", json=request))
            return [values["token"] for _, values in found]

        alone = [tokens(seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(tokens, range(4))] == alone
        assert max(map(len, alone)) == 100


def test_new_tokens_count_for_the_rate(text_bundle: Bundle) -> None:
    limits = Limits(max_rows=1, max_rate=20)
    with TestClient(make_app(text_bundle, limits=limits)) as client:
        for request, status in [
            ({"prompt": "ab"}, 413),
            ({"prompt": "\u00e9" * 10, "max_tokens": 1}, 413),
            ({"prompt": "ab", "max_tokens": 15}, 200),
            ({"prompt": "ab", "max_tokens": 15}, 429),
        ]:
            assert client.post("/v1/generate", json=request).status_code == status, request


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_session(text_bundle: Bundle) -> None:
    """The session is as it was before the generation that nobody received."""
    server = Served(text_bundle.path)
    with httpx2.Client(base_url=server.url, timeout=30) as http:
        name = ok(http.post("/v1/sessions", json={}), 201)["session"]
        request = {"prompt": "ab", "max_tokens": 1000}
        with http.stream("POST", f"/v1/sessions/{name}/generate", json=request) as response:
            assert next(response.iter_lines()).startswith("data: ")
        begin = time.monotonic()
        assert ok(http.post(f"/v1/sessions/{name}/step", json={"observation": 97}))["steps"] == 1
        assert time.monotonic() < begin + 5
    server.process.kill()
    server.process.communicate()


def test_a_document_ends(tmp_path: Path, text_bundle: Bundle) -> None:
    """A model that would begin another document stops there."""
    signature = json.loads(json.dumps(text_bundle.signature))
    stop = greedy(text_bundle, b"ab", 3)
    signature["task"]["inputs"][0]["begin"] = stop[-1]
    bundle = Bundle(text_bundle.path)
    bundle.signature = signature
    with TestClient(make_app(bundle, limits=Limits(max_rows=1))) as client:
        request = {"observations": [*b"ab"], "temperature": 0}
        *tokens, (_, end) = events(client.post("/v1/generate", json=request))
        assert [values["token"] for _, values in tokens] == stop[: stop.index(stop[-1])]
        assert end["finish_reason"] == "stop" and end["next"] == stop[-1]
        assert end["steps"] == 2 + len(tokens)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "expected observation, or a list"),
        ({"prompt": 3}, "expected prompt as text"),
        ({"prompt": "a", "observations": [1]}, "expected prompt as text"),
        ({"observation": 999}, "expected an integer from 0 to 256"),
        ({"prompt": "a" * 60}, "a list of 1 to 50"),
        ({"prompt": "a", "max_tokens": 51}, "max_tokens as an integer from 1 to 50, got 51"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens as an integer from 1 to 50, got 0"),
        ({"prompt": "a", "max_tokens": "3"}, "max_tokens as an integer from 1 to 50, got '3'"),
        ({"prompt": "a", "temperature": -1}, "expected temperature as a number from 0 to 1000"),
        ({"prompt": "a", "temperature": 10**400}, "expected temperature as a number"),
        ({"prompt": "a", "top_p": "a"}, "expected top_p as a number from 0 to 1"),
        ({"prompt": "a", "top_p": 0}, "top_p must be greater than 0"),
        ({"prompt": "a", "top_k": 0}, "top_k must be at least 1"),
        ({"prompt": "a", "seed": True}, "seed must be an integer"),
        ({"prompt": "a", "stop": []}, "unknown name"),
        ({"prompt": "a", "state": "AAAA"}, "was not sealed by this server"),
        ({"prompt": "a", "steps": 3}, "expected a session of 3 observations"),
    ],
)  # fmt: skip
def test_bad_requests(client: Any, request_: Any, message: str) -> None:
    response = client.post("/v1/generate", json=request_)
    assert response.status_code in (400, 409) and message in response.json()["error"]


def test_other_models_generate_nothing(path: Path) -> None:
    with TestClient(make_app(Bundle(path), limits=Limits(max_rows=1))) as client:
        answer = ok(client.post("/v1/generate", json={"observation": [1, 2, 3]}), 400)
        assert "classify does not generate tokens" in answer["error"]
