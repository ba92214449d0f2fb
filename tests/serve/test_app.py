"""A server answers what the bundle says, and refuses everything else."""

import asyncio
import json
import random
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flax_linattn import inference
from flax_linattn.inference.linattn_runtime import Bundle, BundleError
from flax_linattn.serve import Batcher, Limits, OverloadError, Sealer, SessionStore, make_app
from flax_linattn.serve.app import get_address
from flax_linattn.serve.messages import decode_state, encode
from flax_linattn.serve.seal import SealError
from tests.inference.cases import CHANNELS, classifier
from tests.inference.test_bundle import DECISION, EVENT, raw_session

SECRET = b"a secret of many bytes"
ROWS = np.random.default_rng(0).normal(size=(40, CHANNELS)).round(3).tolist()


@pytest.fixture(scope="module")
def bundle(path: Path) -> Bundle:
    return Bundle(path)


@pytest.fixture(scope="module")
def predicted(bundle: Bundle) -> list[dict[str, Any]]:
    session = bundle.session()
    return [session.step(row) for row in ROWS]


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Any:
    app = make_app(bundle, sealer=Sealer(SECRET), limits=Limits(max_rows=4, max_observations=30))
    with TestClient(app) as client:
        yield client


def close(answer: Any, want: Any) -> bool:
    """Whether predictions are equal to rounding: rows are stepped with others."""
    return bool(
        answer["prediction"] == want["prediction"]
        and all(answer[k] == pytest.approx(v, abs=1e-5) for k, v in want.items() if k[:2] == "p(")
    )


def ok(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()


def test_a_client_holds_its_state(client: Any, bundle: Bundle, predicted: Any) -> None:
    """Any server with the secret continues it; it may be used again."""
    answer = ok(client.post("/v1/step", json={"observation": ROWS[0]}))
    assert answer["steps"] == 1 and close(answer["predictions"][0], predicted[0])
    with TestClient(make_app(bundle, sealer=Sealer(SECRET), limits=Limits(max_rows=1))) as other:
        for _ in range(2):
            request = {"observations": ROWS[1:3], "state": answer["state"], "steps": 1}
            more = ok(other.post("/v1/step", json=request))
            assert more["steps"] == 3
            assert all(map(close, more["predictions"], predicted[1:3]))
    named = dict(zip("abc", ROWS[3], strict=True))
    last = ok(client.post("/v1/step", json={"observation": named, "state": more["state"]}))
    assert close(last["predictions"][0], predicted[3])
    stale = client.post(
        "/v1/step", json={"observation": ROWS[0], "state": more["state"], "steps": 1}
    )
    assert "got a session of 3" in ok(stale, 409)["error"]


def test_many_clients_at_once(client: Any, predicted: Any) -> None:
    """Batching with other clients does not change the predictions."""
    wrong = []

    def stream(number: int) -> None:
        state: dict[str, Any] = {}
        for place in range(number % 7, 20):
            own = {"observation": ROWS[place - number % 7], **state}
            answer = ok(client.post("/v1/step", json=own))
            state = {"state": answer["state"]}
            if not close(answer["predictions"][0], predicted[place - number % 7]):
                wrong.append((number, place))

    threads = [threading.Thread(target=stream, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_session_on_the_server(client: Any, predicted: Any) -> None:
    name = ok(client.post("/v1/sessions", json={}), 201)["session"]
    step = f"/v1/sessions/{name}/step"
    assert close(
        ok(client.post(step, json={"observation": ROWS[0]}))["predictions"][0], predicted[0]
    )
    fork = ok(client.post("/v1/sessions", json={"fork": name}), 201)
    assert fork["steps"] == 1
    sealed = ok(client.get(f"/v1/sessions/{name}"))
    for own in (name, fork["session"]):
        answer = ok(client.post(f"/v1/sessions/{own}/step", json={"observations": ROWS[1:4]}))
        assert all(map(close, answer["predictions"], predicted[1:4]))
    back = ok(client.post("/v1/sessions", json={"state": sealed["state"]}), 201)
    assert back["steps"] == 1  # as it was before
    bad = client.post(step, json={"observations": [ROWS[4], [1, 2], ROWS[5]]})
    assert "expected finite numbers for a, b, c" in ok(bad, 400)["error"]
    assert ok(client.get(f"/v1/sessions/{name}"))["steps"] == 4  # none of the request
    assert client.delete(f"/v1/sessions/{name}").status_code == 204
    assert (
        "there is no session" in ok(client.post(step, json={"observation": ROWS[0]}), 404)["error"]
    )


def test_a_websocket_is_a_stream(client: Any, predicted: Any) -> None:
    with client.websocket_connect("/v1/stream") as socket:
        for place, row in enumerate(ROWS[:5]):
            socket.send_json({"observation": row})
            assert close(socket.receive_json()["predictions"][0], predicted[place])
            socket.send_json({"observation": [1, 2]})
            assert "expected finite numbers" in socket.receive_json()["error"]
            socket.send_bytes(b"\xc1")
            assert b"invalid MessagePack" in socket.receive_bytes()
        socket.send_json({"observation": ROWS[5], "seal": True})
        state = socket.receive_json()["state"]
    name = ok(client.post("/v1/sessions", json={"state": state}), 201)["session"]
    with client.websocket_connect(f"/v1/stream?session={name}") as socket:
        socket.send_json({"observation": ROWS[6]})
        answer = socket.receive_json()
    assert answer["steps"] == 7 and close(answer["predictions"][0], predicted[6])


def test_messagepack_has_the_same_names(client: Any, predicted: Any) -> None:
    """In HTTP by the media type, in a WebSocket by the kind of frame; states are bytes."""
    kind = {"Content-Type": "application/msgpack"}
    state = None
    for place, row in enumerate(ROWS[:5]):
        request = msgpack.packb({"observation": row, "state": state})
        answer = client.post("/v1/step", content=request, headers=kind)
        assert answer.status_code == 200 and answer.headers["Content-Type"] == kind["Content-Type"]
        values = msgpack.unpackb(answer.content)
        state = values["state"]
        assert close(values["predictions"][0], predicted[place]) and isinstance(state, bytes)
    text = encode({"observation": ROWS[5], "state": state})  # as JSON
    assert close(ok(client.post("/v1/step", content=text))["predictions"][0], predicted[5])
    with client.websocket_connect("/v1/stream") as socket:
        socket.send_bytes(msgpack.packb({"observation": ROWS[5], "state": state, "seal": True}))
        answer = msgpack.unpackb(socket.receive_bytes())
        assert close(answer["predictions"][0], predicted[5]) and len(answer["state"]) == len(state)
    for content in (b"\xc1", b"\x91" * 2000, b"\xdd\xff\xff\xff\xff", b"\x81\xa1\xff\x01", b"\x01"):
        answer = client.post("/v1/step", content=content, headers=kind)
        assert "expected a MessagePack object" in ok(answer, 400)["error"]
    for values in ({"observation": msgpack.Timestamp(0)}, {b"\xff": 1}, {"observation": b"abc"}):
        answer = client.post("/v1/step", content=msgpack.packb(values), headers=kind)
        assert ok(answer, 400)["error"]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_answers_keep_their_digits(form: Any) -> None:
    """Forecasts are float64 in the units of the data, far beyond the digits of float32."""
    values = {"price": 1e6 + 0.03, "time": 1e39, "logits": np.ones(2, np.float32)}
    content = encode(values, form)
    found = msgpack.unpackb(content) if form == "msgpack" else json.loads(content)
    assert found == {**values, "logits": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::/64"), ("a:b", "a:b"), ("", "")],
)
def test_addresses_of_clients(host: str, address: str) -> None:
    """Of IPv6, a client may choose any address in its network."""
    assert get_address(HTTPConnection({"type": "http", "client": (host, 1)})) == address


def test_rates_are_limited(bundle: Bundle) -> None:
    """By the address of the client, and by observations rather than requests."""
    with TestClient(make_app(bundle, limits=Limits(max_rows=1, max_rate=20))) as client:
        ok(client.post("/v1/step", json={"observations": ROWS[:15]}))
        refused = client.post("/v1/step", json={"observations": ROWS[:15]})
        assert "at most 20 observations per second" in ok(refused, 429)["error"]
        assert refused.headers["Retry-After"] == "2"
        refused = client.post("/v1/step", json={"observations": ROWS[:21]})
        assert "at most 20 observations and new tokens in a request" in ok(refused, 413)["error"]
        with client.websocket_connect("/v1/stream") as socket:
            socket.send_json({"observations": ROWS[:15]})
            assert "at most 20 observations per second" in socket.receive_json()["error"]
            socket.send_json({"observation": ROWS[0]})
            assert socket.receive_json()["steps"] == 1


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 400, "invalid JSON"),
        (b"[" * 5000, 400, "invalid JSON"),
        (b"[]", 400, "expected a JSON object"),
        (b"{}", 400, "expected observation, or a list of observations"),
        (b'{"observation": [1, 2, 3], "observations": []}', 400, "expected observation, or"),
        (b'{"observations": []}', 400, "a list of 1 to 30 observations, got 0"),
        (b'{"observations": 3}', 400, "list of 1 to 30 observations"),
        (b'{"observations": [' + b"1," * 30 + b"1]}", 400, "of 1 to 30 observations, got 31"),
        (b'{"observations": [[1, 2, 3]], "times": []}', 400, "expected times as a list"),
        (b'{"observation": [1, 2, NaN]}', 200, ""),
        (b'{"observation": [1, 2, Infinity]}', 400, "expected finite numbers"),
        (b'{"observation": [1, 2, 1' + b"0" * 400 + b"]}", 400, "expected finite numbers"),
        (b'{"observation": [1, 2, 1e300]}', 400, "in the range of float32"),
        (b'{"observation": "' + b"a" * 10**6 + b'"}', 400, "aaa...aaa"),
        (b'{"\\ud800": 1}', 400, "unknown name"),
        (b'{"observation": {"a": 1, "q": 2}}', 400, "unknown channel 'q'"),
        (b'{"observation": [1, 2, 3], "stat": 1}', 400, "unknown name 'stat'"),
        (b'{"observation": [1, 2, 3], "fork": "a"}', 400, "unknown name 'fork'"),
        (b'{"observation": [1, 2, 3], "state": 7}', 400, "expected state as text"),
        (b'{"observation": [1, 2, 3], "state": ""}', 400, "was not sealed by this server"),
        (b'{"observation": [1, 2, 3], "state": "AAAA"}', 400, "was not sealed by this server"),
        (b'{"observation": [1, 2, 3], "steps": 5}', 409, "expected a session of 5 observations"),
        (b" " * 2**22 + b"{}", 413, "at most 4,194,304 bytes"),
    ],
)  # fmt: skip
def test_bad_requests(client: Any, content: bytes, status: int, message: str) -> None:
    answer = ok(client.post("/v1/step", content=content), status)
    assert message in answer.get("error", "")


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 63), st.booleans())
def test_a_changed_state_is_refused(client: Any, seed: int, change: int, cut: bool) -> None:
    state = sealed_state(client)
    at = random.Random(seed).randrange(len(state))
    letter = LETTERS[(LETTERS.index(state[at]) + change) % 64]
    changed = state[:at] + ("" if cut else letter + state[at + 1 :])
    try:
        content = Sealer(SECRET).open(decode_state(changed))
    except SealError:
        answer = ok(client.post("/v1/step", json={"observation": ROWS[0], "state": changed}), 400)
        assert "was not sealed by this server, or was changed" in answer["error"]
    else:  # the last letter has bits that are no part of a byte
        assert at == len(state) - 1 and content == Sealer(SECRET).open(decode_state(state))


def sealed_state(client: Any) -> str:
    if not hasattr(client, "sealed"):
        client.sealed = ok(client.post("/v1/step", json={"observation": ROWS[0]}))["state"]
    return str(client.sealed)


def test_states_of_others(client: Any, bundle: Bundle, monkeypatch: Any) -> None:
    """Of another key, another bundle, and of long ago."""
    state = decode_state(sealed_state(client))
    with pytest.raises(SealError, match="was not sealed by this server"):
        Sealer().open(state)
    old = Sealer(SECRET, max_age=60.0)
    assert old.open(state)
    now = __import__("time").time()
    monkeypatch.setattr("flax_linattn.serve.seal.time.time", lambda: now + 90)
    with pytest.raises(SealError, match=r"is 9\d seconds old, and this server accepts at most 60"):
        old.open(state)
    other = bundle.session().to_bytes().replace(bundle.fingerprint.encode(), b"0" * 64)
    content = encode({"observation": ROWS[0], "state": Sealer(SECRET).seal(other)})
    assert "belongs to another bundle" in ok(client.post("/v1/step", content=content), 400)["error"]
    with pytest.raises(ValueError, match="a secret of at least 16 bytes, got 3"):
        Sealer(b"abc")


def test_health_metrics_and_description(client: Any, bundle: Bundle) -> None:
    assert ok(client.get("/healthz")) == {"status": "ok"} and ok(client.get("/readyz"))["ready"]
    assert ok(client.get("/v1/signature")) == bundle.signature
    ok(client.post("/v1/step", json={"observation": ROWS[0]}))
    text = client.get("/metrics").text
    for name in ("linattn_observations_total", "linattn_batch_rows_count", "linattn_sessions"):
        assert name in text
    api = ok(client.get("/openapi.json"))
    assert api["openapi"] == "3.1.0" and "a, b, c" in json.dumps(api)
    for path, methods in api["paths"].items():
        for method in methods.keys() & {"get", "post", "delete"}:
            called = client.request(method, path.format(session="none"), content="{}")
            assert called.status_code in (200, 201, 400, 404), (method, path)


def test_a_token_is_needed(bundle: Bundle) -> None:
    with TestClient(make_app(bundle, token="open", limits=Limits(max_rows=1))) as client:
        assert ok(client.get("/healthz")) and ok(client.get("/readyz"))
        for headers in ({}, {"Authorization": "Bearer shut"}):
            assert (
                "Authorization: Bearer" in ok(client.get("/metrics", headers=headers), 401)["error"]
            )
        assert client.get("/metrics").headers["WWW-Authenticate"] == "Bearer"
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/stream"):
            pass
        assert ok(client.get("/v1/signature", headers={"Authorization": "Bearer open"}))


def test_requests_to_one_session_wait_for_each_other(bundle: Bundle, monkeypatch: Any) -> None:
    """A session is not written again after its removal; the event loop is free meanwhile."""
    store, begun, end = SessionStore(None, bundle.fingerprint), threading.Event(), threading.Event()
    write, answers = store.write, {}

    def slow_write(sessions: Any) -> None:
        begun.set()
        end.wait(10)
        write(sessions)

    with TestClient(make_app(bundle, store=store, limits=Limits(max_rows=1))) as client:
        name = ok(client.post("/v1/sessions", json={}), 201)["session"]
        monkeypatch.setattr(store, "write", slow_write)
        step = {"observation": ROWS[0]}

        def call(key: str, method: str, url: str, **request: Any) -> threading.Thread:
            def run() -> None:
                answers[key] = client.request(method, url, **request).status_code

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        threads = [call("step", "POST", f"/v1/sessions/{name}/step", json=step)]
        assert begun.wait(10)
        threads.append(call("delete", "DELETE", f"/v1/sessions/{name}"))
        assert ok(client.post("/v1/step", json=step))["steps"] == 1  # others do not wait
        end.set()
        for thread in threads:
            thread.join()
        assert answers == {"step": 200, "delete": 204} and store.count() == 0


def test_a_locked_store_blocks_no_other_request(bundle: Bundle) -> None:
    """Sessions are read in a thread: the store is locked while it syncs the disk."""
    store = SessionStore(None, bundle.fingerprint)
    with TestClient(make_app(bundle, store=store, limits=Limits(max_rows=1))) as client:
        name = ok(client.post("/v1/sessions", json={}), 201)["session"]
        with store._lock:
            paths = (f"/v1/sessions/{name}", "/metrics")
            threads = [threading.Thread(target=client.get, args=(path,)) for path in paths]
            for thread in threads:
                thread.start()
            assert ok(client.post("/v1/step", json={"observation": ROWS[0]}))["steps"] == 1
        for thread in threads:
            thread.join()


def test_requests_that_wait_for_a_session_are_limited(bundle: Bundle) -> None:
    store, limits = SessionStore(None, bundle.fingerprint), Limits(max_rows=1, max_waiting=2)
    with TestClient(make_app(bundle, store=store, limits=limits)) as client:
        url = f"/v1/sessions/{ok(client.post('/v1/sessions', json={}), 201)['session']}/step"
        statuses: list[int] = []

        def step() -> None:
            statuses.append(client.post(url, json={"observation": ROWS[0]}).status_code)

        threads = [threading.Thread(target=step) for _ in range(5)]
        with store._lock:  # the first request reads the store
            for thread in threads:
                thread.start()
            while len(statuses) < 3:
                time.sleep(0.01)
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200, 200, 503, 503, 503]


def test_sessions_that_begin_together_are_counted(bundle: Bundle) -> None:
    with TestClient(make_app(bundle, limits=Limits(max_rows=1, max_sessions=3))) as client:
        with ThreadPoolExecutor(12) as pool:
            begins = [pool.submit(client.post, "/v1/sessions", json={}) for _ in range(12)]
            statuses = [one.result().status_code for one in begins]
        assert {*statuses} <= {201, 503} and statuses.count(201) <= 3
        while client.post("/v1/sessions", json={}).status_code == 201:
            pass
        assert "linattn_sessions 3.0" in client.get("/metrics").text


def test_connections_are_limited(bundle: Bundle) -> None:
    with TestClient(make_app(bundle, limits=Limits(max_rows=1, max_connections=1))) as client:
        for _ in range(2):
            with client.websocket_connect("/v1/stream") as first:
                with client.websocket_connect("/v1/stream") as second:
                    assert second.receive()["code"] == 1013
                first.send_json({"observation": ROWS[0]})
                assert first.receive_json()["steps"] == 1


def test_pages_of_other_sites_are_refused(client: Any) -> None:
    """A browser sends a request of any page, even to a server on the loopback."""
    step = {"observation": ROWS[0]}
    own, other = ({"Origin": f"http://{host}"} for host in ("testserver", "elsewhere.example"))
    assert ok(client.post("/v1/step", json=step, headers=own))
    refused = client.post("/v1/step", json=step, headers=other)
    assert "pages of other sites are refused" in ok(refused, 403)["error"]
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/v1/stream", headers=other),
    ):
        pass


def test_room_for_sessions_is_limited(bundle: Bundle) -> None:
    limits = Limits(max_rows=1, max_sessions=2, idle_seconds=1e-9)
    with TestClient(make_app(bundle, limits=limits)) as client:
        names = [ok(client.post("/v1/sessions", json={}), 201)["session"] for _ in range(3)]
        step = {"observation": ROWS[0]}  # the idle ones gave way
        assert client.post(f"/v1/sessions/{names[0]}/step", json=step).status_code == 404
        assert client.post(f"/v1/sessions/{names[2]}/step", json=step).status_code == 200
    with TestClient(make_app(bundle, limits=Limits(max_rows=1, max_sessions=1))) as client:
        ok(client.post("/v1/sessions", json={}), 201)
        both = client.post("/v1/sessions", json={"state": None, "fork": "a"})
        assert "expected state or fork, got both" in ok(both, 400)["error"]
        busy = client.post("/v1/sessions", json={})
        assert "has reached its maximum number of sessions" in ok(busy, 503)["error"]
        assert busy.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("part", "width", "task", "observations", "times"),
    [
        (EVENT, 7, {}, ["buy", "sell", "sell"], [1.0, 2.5, 4]),
        (DECISION, 6, {"context": 2}, [[None, 1, 2], [0.5, 1, 2], [1, 2, 3]], None),
    ],
    ids=["events", "decisions"],
)
def test_events_and_decisions(
    part: Any, width: int, task: Any, observations: Any, times: Any, tmp_path: Path
) -> None:
    """A client sends types and times, or rewards and observations; its state carries the rest."""
    path = tmp_path / "model.linattn"
    session = raw_session(part, 2, width, path, **task)
    given = zip(observations, times or [None] * 3, strict=True)
    want = [session.step(*each) for each in given]
    with TestClient(make_app(Bundle(path), limits=Limits(max_rows=4))) as client:
        state = None
        for place, observation in enumerate(observations):
            request = {"observation": observation, "state": state}
            request |= {} if times is None else {"time": times[place]}
            answer = ok(client.post("/v1/step", json=request))
            state = answer["state"]
            assert answer["predictions"] == [pytest.approx(want[place], abs=1e-5)]
        bad = ok(client.post("/v1/step", json={"observation": "hold", "state": state}), 400)
        assert bad["error"].startswith("expected")


def test_a_batcher_refuses_what_cannot_wait() -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(batch: Any) -> Any:
        begun.set()
        end.wait(10)
        if "bad" in batch:
            raise ValueError("bad")
        return [len(batch)] * len(batch)

    async def main() -> None:
        async with Batcher(handle, 2, 3) as batcher:
            first = asyncio.create_task(batcher.add("a"))
            await asyncio.to_thread(begun.wait, 10)
            others = [asyncio.create_task(batcher.add(n)) for n in ("b", "c", "bad")]
            await asyncio.sleep(0)
            with pytest.raises(OverloadError, match="the server is busy"):
                await batcher.add("e")
            end.set()
            assert await first == 1 and await others[0] == await others[1] == 2
            with pytest.raises(ValueError, match="bad"):
                await others[2]
        with pytest.raises(OverloadError, match="the server is stopping"):
            await batcher.add("late")

    asyncio.run(main())


def test_a_file_of_sessions(bundle: Bundle, tmp_path: Path, monkeypatch: Any) -> None:
    """It belongs to one bundle, and a row that cannot be written is not answered."""
    path = tmp_path / "folder" / "sessions.sqlite"
    SessionStore(path, bundle.fingerprint).close()
    with pytest.raises(ValueError, match="holds sessions of another bundle; choose another file"):
        SessionStore(path, "other")
    (tmp_path / "no.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="is no file of sessions, or is damaged"):
        SessionStore(tmp_path / "no.sqlite", "other")
    store = SessionStore(path, bundle.fingerprint)
    monkeypatch.setattr(
        "flax_linattn.serve.sessions.sqlite3.connect", partial(sqlite3.connect, timeout=0)
    )
    with pytest.raises(ValueError, match="is in use by another server; choose another file"):
        SessionStore(path, bundle.fingerprint)
    with TestClient(make_app(bundle, store=store, limits=Limits(max_rows=1))) as client:
        name = ok(client.post("/v1/sessions", json={}), 201)["session"]
        ok(client.post(f"/v1/sessions/{name}/step", json={"observation": ROWS[0]}))
        store._database.execute("PRAGMA max_page_count = 1")
        store._database.execute("PRAGMA query_only = 1")
        full = client.post(f"/v1/sessions/{name}/step", json={"observation": ROWS[1]})
        assert "sessions could not be written" in ok(full, 507)["error"]
        store._database.execute("PRAGMA query_only = 0")
        assert ok(client.get(f"/v1/sessions/{name}"))["steps"] == 1


def test_a_bundle_without_a_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.linattn"
    inference.export(
        path, classifier("aaren"), jnp.ones((1, CHANNELS)), chunk_sizes=(), platforms=("cpu",)
    )
    with pytest.raises(BundleError, match="does not describe raw observations"):
        make_app(Bundle(path))
