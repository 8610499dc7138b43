"""A test image of the shape of SWE-bench's, with a real task of its: marshmallow-code__marshmallow-1359, a fault of
marshmallow 3.0.0 that 3.0.1 mends. Both come from PyPI's source archives, and so do the fix, the failing test and the
task's patches: they are the differences between the two.

The shape: git repository at /testbed, whose history also holds the later release (as in the real images); `conda activate
testbed` after sourcing /opt/miniconda3/etc/profile.d/conda.sh. Ours is a shell function that activates a virtual
environment at /opt/miniconda3/envs/testbed; what a rollout sees of it is the same: PATH, CONDA_DEFAULT_ENV, `python`.
"""

import difflib
import io
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import docker

from rock.rollout.swe import get_swe_bench_image
from rock.rollout.swe_task import SweTask
from scripts.steps import StepFailed, run

INSTANCE = "marshmallow-code__marshmallow-1359"
FIXED_FILE, TEST_FILE = "src/marshmallow/fields.py", "tests/test_fields.py"
FAIL_TO_PASS = "tests/test_fields.py::TestParentAndName::test_datetime_list_inner_format"
PASS_TO_PASS = (
    "tests/test_fields.py::TestParentAndName::test_list_field_inner_root",
    "tests/test_fields.py::TestField::test_repr",
)
BEFORE, AFTER = "3.0.0", "3.0.1"
TAG = get_swe_bench_image(INSTANCE)

_PACKAGES = ("pytest==7.4.4", "pytz", "simplejson")
_CONDA = """\
# Not conda: enough of it for `conda activate testbed`.
conda() {
    if [ "$1" != activate ] || [ ! -d "/opt/miniconda3/envs/$2" ]; then
        echo "conda: only 'conda activate testbed' is known here" >&2
        return 1
    fi
    export CONDA_DEFAULT_ENV="$2" CONDA_PREFIX="/opt/miniconda3/envs/$2" PATH="/opt/miniconda3/envs/$2/bin:$PATH"
}
"""
_SETUP = """\
set -e
site=/opt/miniconda3/envs/testbed
python3 -m venv --without-pip $site
cp -r /setup/site/. $site/lib/python3.11/site-packages/
echo /testbed/src > $site/lib/python3.11/site-packages/testbed.pth
mkdir /testbed
cd /testbed
git init --quiet --initial-branch main
git config user.name test
git config user.email test@localhost
for release in 3.0.0 3.0.1; do
    cp -r /setup/marshmallow-$release/. .
    git add --all
    git commit --quiet --message "Release $release"
    git tag $release
done
rm -rf /setup
"""


def make(client: docker.DockerClient, base: str, cache: Path) -> None:
    """Make the image TAG from the image `base`, which has Python 3.11 and git.

    Params:
        cache: folder for what is downloaded.
    Raises:
        StepFailed: a package cannot be had, or the set-up failed.
    """
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        setup = Path(folder) / "setup"
        (setup / "etc").mkdir(parents=True)
        _pip("install", "--target", str(setup / "site"), *_PACKAGES)
        for release in (BEFORE, AFTER):
            with tarfile.open(source(release, cache)) as tar:
                tar.extractall(setup, filter="data")
        (setup / "etc" / "conda.sh").write_text(_CONDA)
        container = client.containers.create(base, ["bash", "-c", _SETUP], network_mode="none")
        try:
            container.put_archive(
                "/", _tar({"setup": setup, "opt/miniconda3/etc/profile.d/conda.sh": setup / "etc/conda.sh"})
            )
            container.start()
            if container.wait()["StatusCode"] != 0:
                raise StepFailed(f"setting up {TAG} failed: {container.logs().decode(errors='replace')[-2000:]}")
            repository, tag = TAG.split(":")
            container.commit(repository, tag, changes='CMD ["bash"]')
        finally:
            container.remove(force=True)


def source(release: str, cache: Path) -> Path:
    """Return the source archive of a release, downloaded once."""
    archives = cache / "sources"
    found = archives / f"marshmallow-{release}.tar.gz"
    if not found.exists():
        archives.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _pip("download", "--no-deps", "--no-binary", "marshmallow", "--dest", folder, f"marshmallow=={release}")
            shutil.move(Path(folder) / found.name, found)
    return found


def text_of(release: str, file: str, cache: Path) -> str:
    """Return a file of a release."""
    with tarfile.open(source(release, cache)) as tar:
        member = tar.extractfile(f"marshmallow-{release}/{file}")
        assert member is not None, f"{file} is a file"
        return member.read().decode()


def difference(file: str, cache: Path) -> str:
    """Return what the later release changed in a file, as a diff."""
    before, after = (text_of(release, file, cache).splitlines(keepends=True) for release in (BEFORE, AFTER))
    return "".join(difflib.unified_diff(before, after, f"a/{file}", f"b/{file}"))


def task(cache: Path, **changes: Any) -> SweTask:
    """Return the task; keyword arguments are SweTask's."""
    record = {
        "instance_id": INSTANCE,
        "base_commit": BEFORE,
        "problem_statement": "fields.List(fields.DateTime()) in a schema raises AttributeError: "
        "'List' object has no attribute 'opts'.",
        "test_patch": difference(TEST_FILE, cache),
        "FAIL_TO_PASS": [FAIL_TO_PASS],
        "PASS_TO_PASS": list(PASS_TO_PASS),
    }
    return SweTask.from_record(record, **changes)


def _pip(*arguments: str) -> None:
    """Run pip, which says nothing unless it fails."""
    run([sys.executable, "-m", "pip", *arguments[:1], "--quiet", "--disable-pip-version-check", *arguments[1:]])


def _tar(paths: dict[str, Path]) -> bytes:
    """Return a tar of files and folders of ours under other names, owned by root."""

    def by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Return the member with root as its owner: git trusts no one else's folders."""
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, path in paths.items():
            tar.add(path, name, filter=by_root)
    return made.getvalue()
