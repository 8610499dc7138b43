"""Which images were made here, by whom, and where they are: a committed image exists on one node until it is pushed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from app.database import Client, redis_faults
from app.keys import Keys
from app.records import NodeRecord
from app.references import canonical
from rock.errors import BadRequest, Forbidden


@dataclass(frozen=True)
class Home:
    """A committed image: the node that made it, for which owner, and whether a registry has it, too."""

    node: str
    owner: str
    pushed: bool = False


class ImageStore:
    """The committed images. Names are compared in their canonical form."""

    def __init__(self, redis: Client, keys: Keys) -> None:
        self._redis, self._key = redis, keys.images()

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

    def narrow(self, nodes: Sequence[NodeRecord], image: str, owner: str) -> Sequence[NodeRecord]:
        """Return those of the nodes on which `owner` can start `image`: all, but for what was committed and not pushed.

        Raises:
            Forbidden: it is another owner's; under a name that anybody might use it would pass for the real one.
            BadRequest: the node that has it is not among `nodes`.
        """
        home = self.home(image)
        if home is None or home.pushed:
            return nodes
        if home.owner != owner:
            raise Forbidden(f"image {image} was committed by another owner, who has not pushed it to a registry")
        there = [node for node in nodes if node.node_id == home.node]
        if not there:
            raise BadRequest(
                f"image {image} was committed on node {home.node}, which is lost, and was not pushed to a registry",
                field="image",
            )
        return there
