"""C12: the wheel and what it declares are enough for the whole service; nothing of the working copy or of the tests' environment is there."""

import importlib.metadata
import subprocess
import sys
import venv
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.service_stack import ROOT
from tests.wire import Api


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel, its extra `server`, and what those need: as `pip install` would leave it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    venv.create(folder / "env", symlinks=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    _link_requirements(site)
    return folder / "env" / "bin" / "python"


def _link_requirements(site):
    """Put what the wheel needs into a folder of packages, and what that needs, and nothing that merely happens to be here."""
    (own,) = importlib.metadata.distributions(path=[str(site)])
    wanted, seen = [(own, ("server",))], {own.name}
    while wanted:
        found, extras = wanted.pop()
        for text in found.requires or ():
            need = Requirement(text)
            name = canonicalize_name(need.name)
            here = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if not here or (name, tuple(need.extras)) in seen:
                continue
            seen.add((name, tuple(need.extras)))
            wanted.append((importlib.metadata.distribution(name), tuple(need.extras)))
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))


def test_C12_the_service_starts_from_its_wheel_alone(python, make_stack, tmp_path):
    stack = make_stack()
    # The files in conf/ are the working copy's, so there is only the environment that needs none.
    environment = {name: value for name, value in stack.environment().items() if name != "ROCK_ADMIN_ENV"}

    def rock(*arguments):
        return subprocess.run(
            [str(python), "-m", "rock.cli", *arguments], cwd=tmp_path, env=environment, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
        )  # fmt: skip

    begun = rock("admin", "start", "--detach")
    assert begun.returncode == 0, begun.stderr
    try:
        box = Api(stack.url).start(memory="64m", cpus=0.05)
        assert box.open().output("echo from the wheel") == "from the wheel"
        box.stop()
    finally:
        ended = rock("admin", "stop")
    assert ended.returncode == 0, ended.stderr
