"""Clients of a server that hold their states, as a load test by locust.

    pip install locust
    locust -f locustfile.py --host http://127.0.0.1:8000

Each user streams random observations, sends the state of the last answer, and checks that the
answer counts one observation more. A model of tokens or of channels is read from the server.
"""

import os
import random

from locust import FastHttpUser, task

TOKEN = os.environ.get("FLAX_LINATTN_TOKEN")
"""The token of the server's clients, as the server reads it."""


class StreamingUser(FastHttpUser):
    """A client with one stream, which waits for each answer."""

    default_headers = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}

    def on_start(self) -> None:
        inputs = self.client.get("/v1/signature").json()["task"]["inputs"]
        if unknown := {part["kind"] for part in inputs} - {"token", "values", "flags"}:
            print(f"This load test cannot make observations of: {', '.join(unknown)}.")
            self.environment.runner.quit()
        self.input, self.request = inputs[0], {"steps": 0}

    @task
    def step(self) -> None:
        if self.input["kind"] == "token":
            observation = random.randrange(self.input["count"])
        else:
            observation = [random.gauss() for _ in self.input["names"]]
        request = self.request | {"observation": observation}
        with self.client.post("/v1/step", json=request, catch_response=True) as response:
            if response.status_code != 200:
                return  # counted as a failure; the state stays as it was
            answer = response.json()
            if answer["steps"] != request["steps"] + 1:
                response.failure(f"{answer['steps']} steps after {request['steps']}")
            self.request = {"steps": answer["steps"], "state": answer["state"]}
