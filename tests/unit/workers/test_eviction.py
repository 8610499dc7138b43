"""R07: which images a node removes when its disk is full, and which never. Real Redis, an engine that is a table."""

import pytest

from app.config import load
from app.database import connect
from app.image_store import Home, ImageStore
from app.keys import Keys
from rock.errors import Unavailable
from workers.eviction import Eviction

HOUR = 3600.0
NOW = 100 * HOUR


class Engine:
    """Images, how much of the disk each takes (percent), and which are in use."""

    def __init__(self):
        self.here, self.in_use, self.stuck, self.evicted = {}, set(), set(), []

    @property
    def images(self):
        return self

    def has(self, image):
        return image in self.here

    def evict(self, image):
        if image in self.stuck:
            raise Unavailable("the engine does not answer")
        if image in self.in_use:
            return False
        self.evicted.append(image)
        return self.here.pop(image, None) is not None

    def disk_percent(self):
        return sum(self.here.values())


class World:
    def __init__(self, redis_url, request, **environ):
        self.redis, self.engine = connect(redis_url), Engine()
        self.keys = Keys(f"evict-{abs(hash(request.node.nodeid))}:")
        self.images = ImageStore(self.redis, self.keys)
        environ = {"ROCK_RUNTIME__IMAGE_EVICT_PERCENT": "90", "ROCK_WARMUP__IMAGES": "warm", **environ}
        self.config = load("test", {"ROCK_NODE_ID": "n1", **environ})

    def add(self, image, hours, percent=10):
        """An image that was used so many hours ago."""
        self.engine.here[image] = percent
        self.images.note_use("n1", image, NOW - hours * HOUR)

    def run(self):
        return Eviction(self.config, self.images, self.engine).run(NOW)


@pytest.fixture
def make_world(redis_url, request):
    made = []

    def make(**environ):
        made.append(World(redis_url, request, **environ))
        return made[-1]

    yield make
    for world in made:
        for key in world.redis.scan_iter(f"{world.keys.prefix}*"):
            world.redis.delete(key)
        world.redis.close()


@pytest.fixture
def world(make_world):
    return make_world()


def test_what_was_used_longest_ago_goes_first_and_no_more_than_need_be(world):
    for place, hours in enumerate((3, 9, 5, 7)):
        world.add(f"i{place}:1", hours, percent=25)
    assert world.run() == 1 and world.engine.evicted == ["i1:1"]
    assert world.run() == 0, "below the threshold now"
    world.engine.here["others:1"] = 40
    assert world.run() == 2 and world.engine.evicted == ["i1:1", "i3:1", "i2:1"]
    assert world.images.unused("n1", NOW) == ["i0:1"]


def test_what_never_goes(world):
    world.engine.here["others:1"] = 100  # not the service's: nobody here has used it
    world.add("recent:1", 0.5)
    world.add("warm:latest", 50)
    world.add("mine:1", 50)
    world.images.note("mine:1", Home("n1", "alice", 1.0))
    world.add("used:1", 50)
    world.engine.in_use.add("used:1")
    assert world.run() == 0 and world.engine.evicted == []


def test_an_image_that_a_container_has_counts_as_used_now(world):
    world.add("used:1", 50, percent=100)
    world.engine.in_use.add("used:1")
    assert world.run() == 0
    world.engine.in_use.clear()
    assert world.run() == 0, "its time began anew"
    assert world.images.unused("n1", NOW) == ["used:1"]


def test_a_commit_that_a_registry_has_goes_and_is_forgotten(world):
    world.add("mine:1", 50, percent=100)
    world.images.note("mine:1", Home("n1", "alice", 1.0, pushed=True))
    world.images.note("mine:1", Home("n2", "alice", 2.0))
    assert world.run() == 1
    assert [home.node for home in world.images.homes("mine:1")] == ["n2"]


def test_one_that_cannot_be_removed_keeps_no_other_from_it(world):
    world.add("stuck:1", 50, percent=50)
    world.engine.stuck.add("stuck:1")
    world.add("free:1", 40, percent=50)
    assert world.run() == 1 and world.engine.evicted == ["free:1"]


def test_what_somebody_else_removed_is_forgotten(world):
    world.add("gone:1", 50, percent=0)
    world.add("big:1", 40, percent=100)
    del world.engine.here["gone:1"]
    assert world.run() == 1 and world.images.unused("n1", NOW) == []


@pytest.mark.parametrize(("percent", "count"), [("0", 1), ("100.1", 0)])
def test_age_alone_or_never(make_world, percent, count):
    world = make_world(ROCK_RUNTIME__IMAGE_EVICT_PERCENT=percent)
    world.add("old:1", 2, percent=count or 100)
    world.add("new:1", 0.1, percent=0)
    assert world.run() == count


def test_a_disk_that_cannot_be_seen_is_not_full(world):
    world.add("old:1", 50, percent=100)
    world.engine.disk_percent = lambda: None
    assert world.run() == 0
