"""Who may import whom: the arrows of the architecture, read from the source.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from reaper.servers.cards import rooms

ROOT = Path(__file__).resolve().parent.parent.parent

CORE = {"errors", "core"}
PARTS = CORE | {"journal", "config", "metrics", "testing"}
ADAPTER = PARTS - {"testing"} | {"foreign", "policy", "driver", "status", "stops"}
SERVER = ADAPTER | {"asyncio", "servers"}
ARROWS = {
    "errors": (),
    "_deprecated": (),
    "source": (),
    "foreign": {"errors", "source"},
    "html": {"errors"},
    "core": {"errors"},
    "journal": CORE | {"config"},
    "config": CORE,
    "metrics": CORE | {"journal"},
    "testing": CORE | {"config", "trio", "asyncio"},
    "logs": CORE,
    "deploy": (),
    "status": (),
    "stops": (),
    "policy": CORE | {"_deprecated", "config", "metrics"},
    "driver": ADAPTER - {"driver"},
    "keeper": ADAPTER,
    "trio": ADAPTER | {"keeper"},
    "asyncio": ADAPTER | {"keeper"},
    "threads": ADAPTER | {"keeper"},
    "servers": ADAPTER | {"asyncio", "trio"},
    **dict.fromkeys(["uvicorn", "gunicorn", "aiohttp", "websockets"], SERVER),
    "attach": PARTS - {"testing"} | {"policy"},
    "top": PARTS - {"testing"} | {"attach", "status"},
    "doctor": PARTS - {"testing"} | {"attach"},
    "run": ADAPTER | {"attach", "servers"},
    "__main__": PARTS - {"testing"}
    | {"_deprecated", "attach", "deploy", "doctor", "pipeline", "policy", "run", "servers", "top"},
    "pipeline": {"errors", "journal", "config", "html"},
}
"""The rooms of `reaper/`, and the rooms each may import."""

SHARED = {
    "abandoned",
    "abilities",
    "cards",
    "configured",
    "factories",
    "goodbye",
    "guest",
    "http2",
    "metrics",
    "pings",
    "plain",
    "streams",
    "turns",
    "workers",
}
SERVERS: dict[str, Collection[str]] = {
    **dict.fromkeys(["goodbye", "guest", "http2", "pings", "turns", "workers", "abilities"], ()),
    "readers": {"abilities"},
    "cards": {"guest", "readers"},
    "pages": {"cards", "guest", "readers"},
    "configured": {"cards"},
    "streams": {"goodbye", "pings", "turns"},
    "abandoned": {"streams"},
    "metrics": {"workers"},
    "factories": {"guest"},
    "plain": {"guest"},
    **dict.fromkeys(rooms(), SHARED),
}
"""The rooms of `reaper/servers/` likewise: no server's room knows another's."""

COMMON = {"places", "arguments", "engine"}
PIPELINE = {
    "engine": {"places"},
    "places": (),
    "arguments": {"places"},
    "read": COMMON,
    "audit": COMMON | {"read"},
    "advise": COMMON | {"read"},
    "live": COMMON | {"read"},
    "losses": COMMON | {"read", "advise"},
    "report": COMMON | {"read", "audit", "advise", "losses"},
    "whatif": COMMON | {"read", "audit", "advise", "report"},
    "cli": COMMON | {"read", "audit", "advise", "live", "losses", "report", "whatif"},
    "notebook": COMMON | {"read", "audit", "advise", "losses"},
    "doors": {"notebook"},
    "__main__": {"cli"},
}
"""The rooms of `reaper/pipeline/` likewise."""

JUDGED = {"units", "plan", "judge"}
LOADGEN = {
    "units": (),
    "plan": {"units"},
    "judge": {"units", "plan"},
    "drive": JUDGED,
    "playing": JUDGED | {"drive"},
    **dict.fromkeys(
        ["probe", "clients", "http2", "race", "backend", "vanish"],
        JUDGED | {"drive", "playing", "clients", "http2"},
    ),
    "conform": JUDGED | {"drive", "playing", "clients", "http2", "probe", "cli_options"},
    "simulate": JUDGED | {"drive"},
    "journals": JUDGED | {"simulate"},
    "cli_options": JUDGED | {"drive"},
    "cli": JUDGED
    | {
        "drive",
        "cli_options",
        "simulate",
        "journals",
        "clients",
        "http2",
        "probe",
        "race",
        "backend",
        "vanish",
        "conform",
    },
    "__main__": {"cli"},
}
"""The rooms of `loadgen/` likewise."""

TREE = {
    "reaper": (),
    "loadgen": {"reaper"},
    "server_example": {"reaper"},
    "examples": {"reaper"},
    "scripts": {"reaper", "loadgen", "server_example"},
    "benchmarks": {"reaper", "loadgen", "server_example", "scripts"},
}
"""The folders of the checkout, and the folders each may import. Tests may import them
all.
"""

CIRCLES = {"reaper.core", "reaper.driver"}
"""The rooms whose modules may know each other in a circle, if only for their types: one
thing told in several files.
"""

FRAMEWORKS = {
    *(
        "trio",
        "asyncio",
        "pyspark",
        "psutil",
        "pyarrow",
        "pandas",
        "numpy",
        "h11",
        "rich",
        "uvloop",
    ),
    *("starlette", "django", *rooms(), *(name for card in rooms().values() for name in card.below)),
}
ASYNCIO = {"asyncio", "uvloop"}
MAY = {
    "trio": {"trio"},
    "asyncio": ASYNCIO,
    "servers": ASYNCIO,
    **{
        name: {*ASYNCIO, room, *card.below}
        for room, card in rooms().items()
        for name in (f"servers.{room}", room)  # the room, and its door if it has one
    },
    "servers.hypercorn.trio": {"trio"},
    "servers.hypercorn.trio_overload": {"trio"},
    "servers.hypercorn.trio_application": {"trio"},
    "testing": {"trio", "asyncio"},
    "journal": {"pyarrow"},
    "policy": {"psutil"},
    "attach": {"psutil", "rich"},
    "top": {"rich"},
    "doctor": {"psutil", "rich"},
}
"""The rooms of `reaper/` that may import more than the standard library, and what; the
longest name holds. The pipeline may import anything.
"""

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
READS_NO_CLOCK = {"time", "datetime", "socket", "os", "select", "threading", "logging", "random"}


@cache
def tree(path: Path) -> ast.Module:
    """What *path* holds, parsed once for all tests."""
    return ast.parse(path.read_text())


@cache
def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(
    path: Path, known: Collection[str] = (), *, types: bool = True, calls: bool = True
) -> set[str]:
    """Absolute names of the modules that *path* imports, anywhere in it; submodules by
    name if *known*.

    Without *types* none that is imported for the type checker only, without *calls*
    none within a function.
    """
    found = set()
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(ROOT).parent.parts
            above = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [above, node.module]))
            for alias in node.names:
                found.add(inner if (inner := f"{module}.{alias.name}") in known else module)
        elif types or not (isinstance(node, ast.If) and "TYPE_" in ast.unparse(node.test)):
            todo += (
                each
                for each in ast.iter_child_nodes(node)
                if calls or not isinstance(each, FUNCTION)
            )
    return found


@cache
def graph(package: str, types: bool = True) -> dict[str, set[str]]:
    """What each module of *package* imports of it. A package's `__init__` is not in it:
    it is a door.
    """
    known = {name_of(path): path for path in sources(package)}
    inside = {name: path for name, path in known.items() if path.name != "__init__.py"}
    return {
        name: (imported(path, known, types=types) & set(known)) - {name}
        for name, path in inside.items()
    }


def circles(known: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules of which each imports each other, directly or not."""
    reached = {name: reachable(known, name) for name in known}
    found = []
    for name in known:
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def reachable(known: dict[str, set[str]], start: str) -> set[str]:
    """The modules that *start* imports, directly or not; itself only if it is in a
    circle.
    """
    found: set[str] = set()
    todo = [start]
    while todo:
        for other in known[todo.pop()] & known.keys():
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def allowed(circle: set[str]) -> bool:
    """Whether *circle* lies within one of `CIRCLES`."""
    return any(all(name.startswith(f"{room}.") for name in circle) for room in CIRCLES)


def room_of(module: str, depth: int = 1) -> str:
    return (module.split(".") + [""] * depth)[depth]


@pytest.mark.parametrize(
    ("package", "arrows"),
    [
        ("reaper", ARROWS),
        ("reaper.servers", SERVERS),
        ("reaper.pipeline", PIPELINE),
        ("loadgen", LOADGEN),
    ],
)
def test_imports_between_rooms_follow_the_arrows(
    package: str, arrows: dict[str, Collection[str]]
) -> None:
    depth = package.count(".") + 1
    wrong = [
        f"{module} imports {other}"
        for module, others in graph(package.replace(".", "/")).items()
        for other in others
        if (here := room_of(module, depth)) != (there := room_of(other, depth))
        and there not in arrows[here]
    ]
    assert not wrong


@pytest.mark.parametrize("folder", TREE)
def test_imports_between_folders_follow_the_arrows(folder: str) -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in sources(folder)
        for module in imported(path)
        if (there := module.partition(".")[0]) in {*TREE, "tests"} - {folder}
        and there not in TREE[folder]
    ]
    assert not wrong


def named(arrows: dict[str, Collection[str]]) -> set[str]:
    """The rooms at either end of an arrow."""
    return {*arrows, *(room for each in arrows.values() for room in each)}


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        (
            "reaper",
            {*named(ARROWS), *(name.partition(".")[0] for name in MAY if name not in rooms())},
        ),
        ("reaper.servers", named(SERVERS)),
        ("reaper.pipeline", named(PIPELINE)),
        ("loadgen", named(LOADGEN)),
        ("", named(TREE)),
    ],
    ids=["reaper", "servers", "pipeline", "loadgen", "checkout"],
)
def test_every_room_with_arrows_is_there(package: str, rooms: Collection[str]) -> None:
    folder = ROOT.joinpath(*package.split("."))
    assert not [
        name
        for name in rooms
        if not (folder / name).is_dir() and not (folder / f"{name}.py").exists()
    ]


CHOOSES = {
    "reaper.pipeline.engine.functions",  # between the two engines beside it
    "reaper.servers.cards",  # it finds the rooms beside it
}


def hidden(path: Path) -> Iterator[str]:
    """The calls in *path* that import by a string what is neither somebody else's nor
    of the same room.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            (module,) = node.args
            root = str(module.value).partition(".")[0] if isinstance(module, ast.Constant) else ""
            if root in {*TREE, "tests", ""}:
                yield f"{name_of(path)}: {ast.unparse(node)}"


def test_no_arrow_is_hidden_in_a_string() -> None:
    paths = [path for folder in TREE if folder != "benchmarks" for path in sources(folder)]
    assert not [call for path in paths if name_of(path) not in CHOOSES for call in hidden(path)]


@pytest.mark.parametrize("package", [folder for folder in TREE if folder != "examples"])
def test_no_modules_know_each_other_in_a_circle(package: str) -> None:
    known = graph(package)
    closed = [circle for circle in circles(known) if not allowed(circle)]
    assert not closed


def frameworks(path: Path) -> set[str]:
    """Those that the file *path* imports and may not."""
    name = name_of(path).partition(".")[2]
    while name and name not in MAY:
        name = name.rpartition(".")[0]
    roots = {module.split(".")[0] for module in imported(path, calls=False)}
    return roots & FRAMEWORKS - set(MAY.get(name, ()))


def test_a_framework_is_imported_only_by_its_adapter() -> None:
    paths = [path for path in sources("reaper") if room_of(name_of(path)) != "pipeline"]
    assert not {name_of(path): found for path in paths if (found := frameworks(path))}


def test_the_audit_does_not_know_the_core() -> None:
    others = set().union(*(imported(path) for path in sources("reaper/pipeline/audit")))
    ours = {
        name
        for name in others
        if name.startswith("reaper.") and not name.startswith("reaper.pipeline")
    }
    assert all(name.startswith(("reaper.journal.schema", "reaper.errors")) for name in ours)


WRITES = {"reaper.journal", "reaper.journal.schema"}
DRAWS = {"reaper.html.charts", "reaper.html.parts", "reaper.html.units"}
JUDGE_KNOWS = {
    "loadgen.drive.journal": WRITES,  # it writes files of it, and keeps no time by it
    "loadgen.journals": WRITES,
    "loadgen.judge.page": DRAWS,  # it draws what was judged
    "loadgen.conform.page": DRAWS,
}


def judged(path: Path) -> set[str]:
    """What the file *path* of the judge imports of the judged, and may not."""
    name = name_of(path)
    judged = {"reaper", "server_example"}
    if name.startswith("loadgen.simulate"):
        judged = {"server_example"}
    ours = {module for module in imported(path) if module.split(".")[0] in judged}
    return ours - JUDGE_KNOWS.get(name, set())


def test_the_judge_knows_nothing_of_the_judged() -> None:
    assert not {name_of(path): found for path in sources("loadgen") if (found := judged(path))}


def private(path: Path) -> Iterator[str]:
    """The private names that the file *path* imports, or uses of what is not its
    own.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            name = ast.unparse(node)
            own = name.rpartition(".")[0] in {"self", "cls"} or name == "os._exit"
            if not node.attr.startswith("__") and not own:
                yield name


def test_the_example_uses_public_names_only() -> None:
    paths = sources("server_example")
    assert not {name_of(path): found for path in paths if (found := [*private(path)])}


def test_the_core_reads_no_clock_and_does_no_io() -> None:
    for path in [*sources("reaper/core"), ROOT / "reaper" / "errors.py"]:
        roots = {module.split(".")[0] for module in imported(path)}
        assert not roots & READS_NO_CLOCK, path


def test_only_one_module_rounds() -> None:
    # lint, attach's display and pages estimate for people to read; the journal and the
    # pipeline look at time that is past.
    for path in sources("reaper"):
        name = name_of(path)
        if room_of(name) in {"html", "journal", "pipeline"} or name in {
            "reaper.core.ticks",
            "reaper.config.lint",
        }:
            continue
        calls = {
            ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)
        }
        assert not calls & {"math.floor", "math.ceil", "math.trunc", "floor", "ceil"}, name


@pytest.mark.parametrize(
    "package", ["reaper", "loadgen", "server_example", "benchmarks", "scripts"]
)
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    TopologicalSorter(graph(package, types=False)).prepare()  # CycleError names it


@pytest.mark.parametrize(
    "door",
    [
        *("", "trio", "config", "policy", "journal", "metrics", "testing", "asyncio"),
        *("attach", "keeper", "threads"),
    ],
)
def test_a_door_says_what_it_exports(door: str) -> None:
    (path,) = [
        path
        for path in sources("reaper")
        if name_of(path) == ".".join(filter(None, ["reaper", door]))
    ]
    body = tree(path).body
    assert "__all__" in {
        ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)
    }
