"""What is known of images: where a committed one is until it is pushed, and the calls that fetch and remove images on nodes."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from app.calls import Call, CallState, Claim
from app.database import Client, Scripts, flat, redis_faults
from app.keys import Keys
from app.references import canonical, full_name
from rock.errors import Forbidden

# Seconds for which the progress of a warmup can be read.
TASK_KEPT = 24 * 3600


@dataclass(frozen=True)
class Home:
    """A committed image on a node: which made it, for which owner, when (epoch seconds), and whether a registry has it, too."""

    node: str
    owner: str
    made: float
    pushed: bool = False
    # The name that the engine has it under (references.commit_name), "" if that is the one which was given.
    name: str = ""

    @property
    def field(self) -> str:
        """What it is noted as: a node has one image of a name, and a private one of it for each owner."""
        return f"{self.node}\0{self.owner}" if self.name else self.node


class ImageStore:
    """The committed images, whose names are compared in their canonical form, and the calls about images."""

    def __init__(self, redis: Client, keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        scripts = Scripts(redis)
        self._post, self._patch = scripts.load("known", "post"), scripts.load("patch")
        self._forget = scripts.load("unnote")

    def note(self, image: str, home: Home) -> None:
        """Note a committed image, instead of an earlier one of that name (and owner, if it is private) on that node."""
        with redis_faults():
            self._redis.hset(self._keys.homes(canonical(image)), home.field, json.dumps(asdict(home)))

    def forget(self, image: str, home: Home) -> None:
        """Note that a committed image is gone from its node, unless another has been noted there since `home` was read."""
        with redis_faults():
            self._forget([self._keys.homes(canonical(image))], [home.field, json.dumps(asdict(home))])

    def home(self, image: str, node: str) -> Home | None:
        """Return the commit that a node's engine has under that very name, None for any other image."""
        return next((home for home in self.homes(image) if home.node == node and not home.name), None)

    def own(self, image: str, owner: str) -> list[Home]:
        """Return the commits that an owner has under a name and that no registry has; the latest last."""
        return [home for home in _bound(self.homes(image)) if home.owner == owner]

    def homes(self, image: str) -> list[Home]:
        """Return the commits that are known under a name, the latest last; none for any other image."""
        with redis_faults():
            texts = self._redis.hvals(self._keys.homes(canonical(image)))
        return sorted((Home(**json.loads(text)) for text in texts), key=lambda home: home.made)

    def note_use(self, node: str, image: str, now: float) -> None:
        """Note that a start or a warmup has used an image of a node at `now` (epoch seconds)."""
        with redis_faults():
            self._redis.zadd(self._keys.node_uses(node), {full_name(image): now})

    def forget_use(self, node: str, image: str) -> None:
        """Note that an image is gone from a node."""
        with redis_faults():
            self._redis.zrem(self._keys.node_uses(node), full_name(image))

    def unused(self, node: str, since: float) -> list[str]:
        """Return the images of a node that were used, but not after `since` (epoch seconds); those used longest ago first."""
        with redis_faults():
            found: list[str] = self._redis.zrangebyscore(self._keys.node_uses(node), "-inf", since)
        return found

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

        Of several of the owner's, that is the node of the latest.

        Raises:
            Forbidden: it is another's, made when the service had no API keys and so under that very name: it would pass for the real one.
        """
        bound = _bound(self.homes(image))
        own = [home.node for home in bound if home.owner == owner]
        if not own and any(not home.name for home in bound):
            raise Forbidden(f"image {image} was committed by another owner, who has not pushed it to a registry")
        return own[-1] if own else ""

    def post(self, call: Call, now: float) -> Claim:
        """Claim a call that is for `call.node` itself: NEW (to be sent), ATTACHED, DONE or CONFLICT."""
        fields = call.to_hash()
        args = [now, fields["fingerprint"], call.call_id, *flat(fields)]
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


def _bound(homes: Sequence[Home]) -> list[Home]:
    """Return those of an image's commits that no registry has; what its owner has pushed since is the registry's, wherever an older one is."""
    pushed = {home.owner: home.made for home in homes if home.pushed}
    return [home for home in homes if not home.pushed and home.made > pushed.get(home.owner, 0)]
