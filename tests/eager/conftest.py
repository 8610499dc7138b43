"""The API in process: real routes, scripts and waits on a real Redis, Celery eager, a node without containers."""

import io
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.datastructures import FileStorage
from werkzeug.test import encode_multipart

from app import create_app
from app.blobs import BlobStore
from app.broker import make_celery
from app.config import Config, load
from app.database import connect
from app.keys import Keys
from app.stores import make_stores
from app.tally import Tally
from tests.eager.fake_node import FakeNode

PREFIX = "/apis/envs/sandbox/v1"


@dataclass
class Api:
    """One API process and its node."""

    client: FlaskClient
    node: FakeNode
    redis: Any
    prefix: str
    config: Config
    # What the node counts.
    tally: Tally

    def post(self, route: str, body: Any = None, headers: dict | None = None, **fields) -> dict:
        """Return the envelope of a POST; `fields` or `body` is the JSON object."""
        answer = self.client.post(PREFIX + route, data=json.dumps(fields if body is None else body), headers=headers)
        assert answer.status_code == 200, answer.data
        return envelope(answer)

    def get(self, path: str, headers: dict | None = None, **query) -> dict:
        """Return the envelope of a GET."""
        answer = self.client.get(PREFIX + path, query_string=query, headers=headers)
        assert answer.status_code == 200, answer.data
        return envelope(answer)

    def upload(self, parts: dict, headers: dict | None = None) -> Any:
        """Return the response to a multipart POST; a part that is a pair is a file: bytes and name."""
        values = {name: FileStorage(io.BytesIO(part[0]), part[1]) if isinstance(part, tuple) else part
                  for name, part in parts.items()}  # fmt: skip
        boundary, body = encode_multipart(values)
        kind = f"multipart/form-data; boundary={boundary}"
        return self.client.post(f"{PREFIX}/upload", data=body, content_type=kind, headers=headers)

    def start(self, headers: dict | None = None, **fields) -> str:
        """Start a small sandbox and return its id."""
        answer = self.post("/start", headers=headers, **{"image": "x", "memory": "1g", "cpus": 1, **fields})
        assert answer["status"] == "Success", answer
        return answer["result"]["sandbox_id"]

    def leftovers(self) -> set[str]:
        """Return the keys that belong to no record and expire at no time."""
        keys = {key.removeprefix(self.prefix) for key in self.redis.scan_iter(f"{self.prefix}*")}
        return {key for key in keys if self.redis.ttl(self.prefix + key) < 0} - {
            "nodes",
            "sandboxes",
            "node:n1",
            "node:n1:stopped",
            *("pools", "pool::cpus", "pool::memory", "turn"),
        }


def envelope(answer) -> dict:
    """Return an answer's envelope, checked for its form."""
    data = json.loads(answer.data.decode("utf-8"))
    assert set(data) == {"status", "message", "error", "result"}
    if data["status"] == "Failed":
        assert data["error"]
        assert {"code", "kind", "retryable", "exit_code", "failure_reason"} <= set(data["result"])
        assert "Traceback" not in data["error"]
    return data


@pytest.fixture
def make_api(redis_url) -> Callable[..., Api]:
    """A function that returns an API on a prefix of its own; keyword arguments are environment variables."""
    made = []

    def make(prefix: str | None = None, **environ: str) -> Api:
        prefix = prefix or f"e{uuid.uuid4().hex[:8]}:"
        config = load(
            environ={"ROCK_REDIS_URL": redis_url, "ROCK_REDIS__PREFIX": prefix, "ROCK_NODE_ID": "n1", **environ}
        )
        celery, client = make_celery(config, eager=True), connect(config.redis.url)
        raw = connect(config.redis.url, decode_responses=False)
        tally = Tally(client, Keys(prefix), enable=config.metrics.enable)
        node = FakeNode(make_stores(config, client, celery, tally), BlobStore(raw, Keys(prefix)), prefix=prefix)
        node.register(celery)
        app = create_app(config, celery, redis=client, raw_redis=raw)
        made.append((app, node, tally, client, raw))
        return Api(app.test_client(), node, client, prefix, config, tally)

    yield make
    for app, node, tally, client, raw in made:
        for thread in node.threads:
            thread.join(5)
        tally.close()
        app.extensions["rock"].close()
        client.close()
        raw.close()


@pytest.fixture
def api(make_api) -> Api:
    """An API with one node that is alive."""
    made = make_api()
    made.node.join()
    return made
