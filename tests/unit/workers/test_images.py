"""Having an image: references, progress, one fetch for all who wait, second tries, the cache folder."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.references import split_reference
from rock.errors import BadRequest, ImageAccess, ImageNotFound, PullFailed, StartTimeout, Unavailable
from tests.wire import until
from workers import images
from workers.deployments.abstract import Credentials, Pull
from workers.images import Images
from workers.pull_progress import PullProgress


class Registry:
    """An engine as far as `Images` sees one: what it has, what a pull does, what it was asked."""

    def __init__(self) -> None:
        self.architecture = "amd64"
        self.here: dict[str, dict] = {}
        self.outcomes: list[Exception | None] = []
        self.pulls: list[tuple[str, str, object]] = []
        self.loaded_as = ""
        self.open = threading.Event()
        self.open.set()
        self.removing = threading.Event()
        # By id, those whose last name another has been given.
        self.nameless: dict[str, dict] = {}
        # What was pushed under which name, and what a push raises.
        self.pushed: dict[str, str] = {}
        self.refusal: Exception | None = None

    def image(self, reference: str) -> dict | None:
        """An engine takes the beginning of an id for an image, too."""
        by_id = (found for found in self.here.values() if found["Id"].startswith(reference))
        found = self.here.get(reference) or next(by_id, None) or self.nameless.get(reference)
        if found is None:
            return None
        return {**found, "RepoTags": [name for name, one in self.here.items() if one["Id"] == found["Id"]]}

    def images(self) -> list[str]:
        return list(self.here)

    def push(self, repository: str, tag: str, login: object, tick: Callable[[], bool]) -> Iterator[dict]:
        yield {"status": "Preparing"}
        assert self.open.wait(10)
        if self.refusal:
            raise self.refusal
        self.pushed[f"{repository}:{tag}"] = self.here[f"{repository}:{tag}"]["Id"]

    def runs(self, image_id: str) -> int:
        return 0

    def remove_image(self, reference: str, *, force: bool = True) -> bool:
        self.removing.set()
        assert self.open.wait(10)
        return (self.here.pop(reference, None) or self.nameless.pop(reference, None)) is not None

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        found, before = self.image(image_id), self.here.get(f"{repository}:{tag}")
        assert found is not None
        if before is not None:
            self.nameless[before["Id"]] = before
        self.nameless.pop(found["Id"], None)
        self.here[f"{repository}:{tag}"] = found

    def pull(self, repository: str, tag: str, login: object, tick: Callable[[], bool]) -> Iterator[dict]:
        self.pulls.append((repository, tag, login))
        yield {"status": "Downloading", "id": "a", "progressDetail": {"current": 1 << 20, "total": 4 << 20}}
        assert self.open.wait(10)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome:
            raise outcome
        self.add(f"{repository}:{tag}")

    def load(self, file: Path, tick: Callable[[], bool]) -> Iterator[dict]:
        self.add(self.loaded_as)
        yield {"stream": f"Loaded image: {self.loaded_as}\n"}

    def add(self, reference: str) -> None:
        self.here[reference] = {
            "Id": f"id of {reference}",
            "Config": {"Env": ["A=1", "LANG=x"]},
            "Architecture": "arm64",
        }


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(images, "_TELL_EVERY", 0.01)


def store(registry: Registry, cache: Path | None = None, recent: float = images.JUST_ASKED) -> Images:
    return Images(registry, cache, recent)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python:3.11", ("python", "3.11")),
        ("python", ("python", "latest")),
        ("a/b/c", ("a/b/c", "latest")),
        ("localhost:5000/a", ("localhost:5000/a", "latest")),
        ("reg.example.com:5000/a/b:t_1", ("reg.example.com:5000/a/b", "t_1")),
        ("Reg.Example.com/a", ("Reg.Example.com/a", "latest")),
        ("a@sha256:" + "0" * 64, ("a", "sha256:" + "0" * 64)),
        ("a:t@sha256:" + "0" * 64, ("a", "sha256:" + "0" * 64)),
        ("swebench/sweb.eval.x86_64.django_1776_django-16911:latest",) * 1
        + (("swebench/sweb.eval.x86_64.django_1776_django-16911", "latest"),),
    ],
)
def test_a_reference_has_a_repository_and_a_tag(image, parts):
    assert split_reference(image) == parts


@pytest.mark.parametrize(
    "image",
    [
        "", "a b", "UPPER/x", "a:", ":t", "a:b:c", "a/", "x; id", "a@sha256:1", "-a", "a:-t", "a\n",
        f"sha256:{'0' * 64}", "sha256:0123456789ab", "docker.io/sha256:01", "../containers/x", "./a", "a./b", ".a/b", "a:/b", "/a",
    ],
)  # fmt: skip
def test_what_is_no_reference_is_the_callers_fault(image):
    with pytest.raises(BadRequest, match="image") as refused:
        split_reference(image)
    assert refused.value.details["field"] == "image"


def test_an_image_that_is_here_is_not_pulled(registry):
    registry.add("a:1")
    assert store(registry).prepare("a:1") == "id of a:1"
    assert registry.pulls == []


def test_a_missing_image_is_pulled_and_its_facts_are_known(registry):
    kept = store(registry)
    assert kept.prepare("a:1") == "id of a:1"
    assert registry.pulls == [("a", "1", None)]
    assert (kept.facts("a:1").env, kept.facts("a:1").architecture) == (("A", "LANG"), "arm64")


def test_never_means_never(registry):
    with pytest.raises(ImageNotFound, match="never"):
        store(registry).prepare("a:1", pull=Pull.NEVER)
    assert registry.pulls == []


def test_always_asks_the_registry_even_for_an_image_that_is_here(registry):
    registry.add("a:1")
    store(registry).prepare("a:1", pull=Pull.ALWAYS, credentials=Credentials("u", "secret"))
    assert registry.pulls == [("a", "1", {"username": "u", "password": "secret"})]


def test_a_login_shows_no_secret():
    assert "secret" not in repr(Credentials("u", "secret"))


def test_all_who_wait_share_one_pull(registry):
    registry.open.clear()
    kept, got = store(registry), []
    threads = [threading.Thread(target=lambda: got.append(kept.prepare("a:1"))) for _ in range(10)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    registry.open.set()
    for thread in threads:
        thread.join(5)
    assert got == ["id of a:1"] * 10
    assert len(registry.pulls) == 1


def test_callers_with_another_login_do_not_share_a_pull(registry):
    registry.open.clear()
    kept = store(registry)
    logins = [None, Credentials("u", "1"), Credentials("u", "2")]
    threads = [threading.Thread(target=lambda one=one: kept.prepare("a:1", credentials=one)) for one in logins]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    registry.open.set()
    for thread in threads:
        thread.join(5)
    assert len(registry.pulls) == 3


def test_a_disturbed_pull_is_tried_again_and_a_refused_one_is_not(registry):
    registry.outcomes = [PullFailed("i/o timeout"), PullFailed("connection reset by peer"), None]
    assert store(registry).prepare("a:1") == "id of a:1"
    registry.outcomes = [ImageAccess("denied")]
    with pytest.raises(ImageAccess):
        store(registry).prepare("b:1")
    assert len(registry.pulls) == 4


def test_the_third_failure_is_told(registry):
    registry.outcomes = [PullFailed("i/o timeout")] * 3
    with pytest.raises(PullFailed, match="i/o timeout"):
        store(registry).prepare("a:1")


def test_who_cannot_wait_longer_leaves_and_the_next_finds_the_image(registry):
    registry.open.clear()
    kept, told = store(registry), []
    with pytest.raises(StartTimeout, match="1 of 4 MB"):
        kept.prepare("a:1", deadline=time.monotonic() + 0.1, progress=told.append)
    assert told == ["pulling a:1: 0 of 1 layers, 1 of 4 MB"]
    registry.open.set()
    assert kept.prepare("a:1") == "id of a:1"
    assert len(registry.pulls) == 1


@pytest.mark.parametrize("name", ["r/a", "r_a", "r_a_latest"])
def test_a_saved_image_may_be_named_without_its_tag(registry, tmp_path, name):
    file = tmp_path / f"{name}.tar"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
    registry.loaded_as = "r/a:latest"
    assert store(registry, tmp_path).prepare("r/a") == "id of r/a:latest"
    assert registry.pulls == []


@pytest.mark.parametrize("name", ["r/a:1", "r_a:1", "r_a_1"])
def test_a_saved_image_is_loaded_before_any_pull(registry, tmp_path, name):
    file = tmp_path / f"{name}.tar"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
    registry.loaded_as = "r/a:1"
    assert store(registry, tmp_path).prepare("r/a:1") == "id of r/a:1"
    assert registry.pulls == []


def test_a_saved_image_of_another_name_gets_the_name_of_its_file(registry, tmp_path):
    (tmp_path / "a:1.tar").write_bytes(b"")
    registry.loaded_as = "other:2"
    assert store(registry, tmp_path).prepare("a:1") == "id of other:2"


def test_an_unknown_image_has_no_facts(registry):
    with pytest.raises(ImageNotFound):
        store(registry).facts("a:1")


def test_an_id_or_its_beginning_is_not_the_image(registry):
    registry.here["alice/secret:1"] = {"Id": "77c92853a504"}
    kept = store(registry)
    for beginning in ("77", "77c92853a504"):
        assert not kept.has(beginning) and not kept.remove(beginning)
        with pytest.raises(ImageNotFound):
            kept.prepare(beginning, pull=Pull.NEVER)
        with pytest.raises(ImageNotFound):
            kept.facts(beginning)
    assert "alice/secret:1" in registry.here and kept.has("alice/secret:1")


def test_a_name_without_a_tag_is_the_latest(registry):
    kept = store(registry)
    assert kept.prepare("a") == kept.prepare("a:latest") == "id of a:latest"
    assert len(registry.pulls) == 1 and kept.facts("a") is kept.facts("a:latest")
    assert kept.remove("a") and registry.here == {}


def test_progress_counts_layers_and_megabytes():
    progress = PullProgress("a:1")
    assert progress.text() == "pulling a:1"
    for layer, status, current in [
        ("a", "Downloading", 1),
        ("b", "Downloading", 2),
        ("c", "Already exists", 0),
        ("b", "Pull complete", 0),
    ]:
        progress.take({"id": layer, "status": status, "progressDetail": {"current": current << 20, "total": 4 << 20}})
    progress.take({"id": "1", "status": "Pulling from library/a"})
    progress.take({"status": "Digest: sha256:1"})
    assert progress.text() == "pulling a:1: 2 of 3 layers, 5 of 8 MB"


def test_an_image_that_was_just_asked_for_is_not_evicted(registry):
    have = store(registry)
    registry.add("a:1")
    have.prepare("a:1")
    assert not have.evict("a:1") and have.has("a:1")
    assert have.evict("a:1", asked_for=True) and not have.has("a:1")
    have = store(registry, recent=0.0)
    have.prepare("a:1")
    assert have.evict("a:1") and not have.evict("a:1"), "it was not there any more"


def test_an_image_that_is_being_pulled_is_not_evicted(registry):
    have = store(registry, recent=0.0)
    registry.open.clear()
    with ThreadPoolExecutor(1) as pool:
        pull = pool.submit(have.prepare, "a:1")
        until(lambda: registry.pulls, 10, "the pull")
        assert not have.evict("a:1")
        registry.open.set()
        pull.result(10)
    assert have.has("a:1")


def test_who_asks_for_an_image_on_its_way_out_waits_and_gets_it_again(registry):
    have = store(registry)
    registry.add("a:1")
    registry.open.clear()
    with ThreadPoolExecutor(2) as pool:
        gone = pool.submit(have.evict, "a:1")
        assert registry.removing.wait(10)
        asked, other = pool.submit(have.prepare, "a:1"), "b:1"
        registry.add(other)
        assert have.prepare(other), "nobody else waits for it"
        registry.open.set()
        assert gone.result(10) and asked.result(10)
    assert have.has("a:1") and len(registry.pulls) == 1


OWN = "rock-commit-0123456789ab:f00d"
LOGIN = Credentials("u", "p")


def id_of(registry: Registry, name: str) -> str | None:
    return registry.here[name]["Id"] if name in registry.here else None


@pytest.mark.parametrize("before", [True, False])
def test_a_private_image_has_the_name_that_it_is_pushed_under_only_from_then_on(registry, before):
    have = store(registry)
    registry.add(OWN)
    if before:
        registry.add("r.io/a:1")
        have.prepare("r.io/a:1")
    have.push("r.io/a:1", LOGIN, private=OWN)
    assert registry.pushed == {"r.io/a:1": f"id of {OWN}"}
    assert set(registry.here) == {"r.io/a:1"} and not registry.nameless, (
        "what had the name before has none now, and went"
    )
    assert have.facts("r.io/a:1").id == f"id of {OWN}"


@pytest.fixture(params=["id of r.io/a:1", None])
def before(request, registry):
    """A private image that is to be pushed, and what has the name for that already."""
    registry.add(OWN)
    if request.param:
        registry.add("r.io/a:1")
    return request.param


def test_a_push_that_is_refused_leaves_the_name_to_what_had_it(registry, before):
    have = store(registry)
    registry.refusal = ImageAccess("no")
    with pytest.raises(ImageAccess):
        have.push("r.io/a:1", LOGIN, private=OWN)
    assert (id_of(registry, "r.io/a:1"), id_of(registry, OWN)) == (before, f"id of {OWN}")


def test_a_name_that_cannot_be_taken_back_is_refused_until_it_is(registry, before):
    """The engine is restarted during a push: the name is still with the private image."""
    have = store(registry)
    gone = _raising(Unavailable("the engine is away"))

    def break_off(*_: object) -> Iterator[dict]:
        away.setattr(registry, "tag", gone)
        away.setattr(registry, "remove_image", gone)
        raise Unavailable("the engine broke off")

    with pytest.MonkeyPatch.context() as away:
        away.setattr(registry, "push", break_off)
        with pytest.raises(Unavailable, match="broke off"):
            have.push("r.io/a:1", LOGIN, private=OWN)
        assert id_of(registry, "r.io/a:1") == f"id of {OWN}"
        for use in (have.prepare, have.facts, lambda name: have.push(name, LOGIN, private=OWN)):
            with pytest.raises(Unavailable, match="is away"):
                use("r.io/a:1")
        with pytest.raises(Unavailable, match="is away"):
            have.reclaim()
        assert have.prepare(OWN) == f"id of {OWN}", "its owner may"
    have.reclaim()
    assert id_of(registry, "r.io/a:1") == before
    have.reclaim()
    assert have.prepare("r.io/a:1") == "id of r.io/a:1"


def test_who_asks_for_a_name_that_was_not_taken_back_has_it_taken_back(registry):
    have = store(registry)
    registry.add(OWN)
    registry.refusal = Unavailable("the engine broke off")
    registry.remove_image, remove = _raising(Unavailable("the engine is away")), registry.remove_image
    with pytest.raises(Unavailable, match="broke off"):
        have.push("r.io/a:1", LOGIN, private=OWN)
    registry.remove_image = remove
    with pytest.raises(ImageNotFound):
        have.prepare("r.io/a:1", pull=Pull.NEVER)
    assert set(registry.here) == {OWN}


def test_a_push_is_noted_while_the_image_has_both_names_and_stays_done(registry):
    have, names = store(registry), []
    registry.add(OWN)
    registry.remove_image = _raising(Unavailable("the engine is away"))
    have.push("r.io/a:1", LOGIN, private=OWN, pushed=lambda: names.extend(registry.here))
    assert set(names) == {OWN, "r.io/a:1"} and registry.pushed


def _raising(error: Exception) -> Callable[..., bool]:
    def call(*_: object, **__: object) -> bool:
        raise error

    return call


def test_nobody_starts_what_is_being_pushed_by_others(registry):
    have = store(registry)
    registry.add(OWN)
    registry.add("r.io/a:1")
    registry.refusal = ImageAccess("no")
    registry.open.clear()
    with ThreadPoolExecutor(2) as pool:
        pushed = pool.submit(have.push, "r.io/a:1", LOGIN, private=OWN)
        until(lambda: id_of(registry, "r.io/a:1") == f"id of {OWN}", 10, "the push")
        with pytest.raises(StartTimeout, match="pushed"):
            have.prepare("r.io/a:1", deadline=time.monotonic())
        assert have.prepare(OWN) == f"id of {OWN}", "its owner need not wait"
        assert not have.evict("r.io/a:1", asked_for=True)
        waits = pool.submit(have.prepare, "r.io/a:1")
        registry.open.set()
        assert waits.result(10) == "id of r.io/a:1"
        with pytest.raises(ImageAccess):
            pushed.result(10)


@pytest.mark.parametrize("spelling", ["docker.io/team/a:1", "index.docker.io/team/a:1", "team/a:1"])
def test_nobody_starts_what_is_being_pushed_by_another_spelling_of_its_name(registry, monkeypatch, spelling):
    """To an engine they are one name."""
    have = store(registry)
    registry.add(OWN)
    registry.open.clear()
    with ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(have.push, "docker.io/team/a:1", LOGIN, private=OWN)
        until(lambda: id_of(registry, "docker.io/team/a:1") == f"id of {OWN}", 10, "the push")
        with pytest.raises(StartTimeout, match="pushed"):
            have.prepare(spelling, deadline=time.monotonic())
        assert not have.evict(spelling, asked_for=True)
        registry.refusal = ImageAccess("no")
        monkeypatch.setattr(registry, "remove_image", _raising(Unavailable("the engine is away")))
        registry.open.set()
        with pytest.raises(ImageAccess):
            pushed.result(10)
    with pytest.raises(Unavailable, match="is away"):
        have.prepare(spelling)


def test_a_push_waits_for_those_who_fetch_the_same_name(registry):
    have = store(registry)
    registry.add(OWN)
    registry.open.clear()
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(StartTimeout):
            have.prepare("r.io/a:1", deadline=time.monotonic())  # it goes on
        pushed = pool.submit(have.push, "r.io/a:1", LOGIN, private=OWN)
        assert have.prepare(OWN) and "r.io/a:1" not in registry.here
        registry.open.set()
        pushed.result(10)
    assert registry.pushed == {"r.io/a:1": f"id of {OWN}"}


def test_the_names_of_pushes_that_were_cut_off_are_taken_back(registry):
    have = store(registry)
    for name in (OWN, "rock-commit-ffffffffffff:another-nodes", "a:1"):
        registry.add(name)
    registry.tag(f"id of {OWN}", "python", "3.11")
    have.take_back("rock-commit-0123456789ab")
    assert set(registry.here) == {OWN, "rock-commit-ffffffffffff:another-nodes", "a:1"}


def test_an_image_whose_last_sandbox_has_just_been_stopped_can_be_removed(registry, monkeypatch):
    """The engine sees a container's end a moment after the stop was answered."""
    monkeypatch.setattr("workers.images._LOOK_AGAIN", 0.0)
    kept, running = store(registry), [1, 1, 0]
    kept.prepare("a:1")
    monkeypatch.setattr(registry, "runs", lambda _: running.pop(0))
    assert kept.remove("a:1") and not running


def test_an_image_that_sandboxes_run_from_is_not_removed(registry, monkeypatch):
    monkeypatch.setattr("workers.images.END_SEEN", 0.0)
    kept = store(registry)
    kept.prepare("a:1")
    monkeypatch.setattr(registry, "runs", lambda _: 2)
    with pytest.raises(Unavailable, match="in use by 2 running"):
        kept.remove("a:1")
