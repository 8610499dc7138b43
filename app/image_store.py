"""What is known of images: where a committed one is until it is pushed, and the calls that fetch and remove images on nodes."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.calls import Call, CallState, Claim, encode, fingerprint
from app.database import Client, Scripts, redis_faults
from app.keys import Keys
from app.references import canonical
from rock.errors import Forbidden

# Seconds for which the progress of a warmup can be read.
TASK_KEPT = 24 * 3600


@dataclass(frozen=True)
class Home:
    """A committed image: the node that made it, for which owner, and whether a registry has it, too."""

    node: str
    owner: str
    pushed: bool = False


class ImageStore:
    """The committed images, whose names are compared in their canonical form, and the calls about images."""

    def __init__(self, redis: Client, keys: Keys) -> None:
        self._redis, self._key, self._keys = redis, keys.images(), keys
        scripts = Scripts(redis)
        self._post, self._patch = scripts.load("post"), scripts.load("patch")

    def note(self, image: str, home: Home) -> None:
        """Note a committed image, instead of an earlier one of that name."""
        with redis_faults():
            self._redis.hset(self._key, canonical(image), json.dumps(asdict(home)))

    def forget(self, image: str) -> None:
        """Note that an image is no more."""
        with redis_faults():
            self._redis.hdel(self._key, canonical(image))

    def home(self, image: str) -> Home | None:
        """Return what is known of a committed image, None for any other."""
        with redis_faults():
            text = self._redis.hget(self._key, canonical(image))
        return Home(**json.loads(text)) if text else None

    def note_task(self, task_id: str, owner: str, call_ids: Sequence[str]) -> None:
        """Note what a warmup consists of."""
        with redis_faults():
            self._redis.set(self._keys.warmup(task_id), json.dumps([owner, list(call_ids)]), ex=TASK_KEPT)

    def task(self, task_id: str) -> tuple[str, list[str]] | None:
        """Return the owner and the calls of a warmup, None when it is unknown."""
        with redis_faults():
            text = self._redis.get(self._keys.warmup(task_id))
        if not text:
            return None
        owner, calls = json.loads(text)
        return owner, calls

    def only_node(self, image: str, owner: str) -> str:
        """Return the one node on which `owner` can start `image`, "" when any will do: only a commit that was not pushed is bound.

        Raises:
            Forbidden: it is another owner's; under a name that anybody might use it would pass for the real one.
        """
        home = self.home(image)
        if home is None or home.pushed:
            return ""
        if home.owner != owner:
            raise Forbidden(f"image {image} was committed by another owner, who has not pushed it to a registry")
        return home.node

    def post(self, call: Call, now: float) -> Claim:
        """Claim a call that is for `call.node` itself: NEW (to be sent), ATTACHED, DONE or CONFLICT."""
        body = encode(call.body)
        mark = fingerprint(call, body)
        args: list[Any] = [now, mark, call.call_id]
        for pair in call.to_hash(body, mark).items():
            args += pair
        with redis_faults():
            return Claim.from_reply(
                self._post([self._keys.call(call.call_id), self._keys.node_inflight(call.node)], args)
            )

    def tell(self, call_id: str, text: str) -> None:
        """Note in words how far a call is, for those who read its progress."""
        with redis_faults():
            self._patch([self._keys.call(call_id)], ["state", CallState.RUNNING.value, "progress", text])

    def progress(self, call_ids: list[str]) -> list[tuple[Call, str]]:
        """Return those of the calls that are known, each with what was last told of it, in one round trip."""
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for call_id in call_ids:
                pipe.hgetall(self._keys.call(call_id))
            rows = zip(call_ids, pipe.execute(), strict=True)
        return [(Call.from_hash(call_id, row), row.get("progress", "")) for call_id, row in rows if row]
