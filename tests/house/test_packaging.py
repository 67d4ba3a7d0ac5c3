"""What users install: the source distribution is the whole checkout, the wheel runs by
itself.

The wheel is built from the unpacked source distribution and installed into an empty
venv, without the network.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import reaper
from reaper.__main__ import main
from scripts.serving import free_port, serving

if TYPE_CHECKING:
    from tests.conftest import Ran

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
MADE = {
    ".git",
    ".venv",
    "out",
    "build",
    "dist",
    ".hypothesis",
    "spark-warehouse",
    "metastore_db",
    "derby.log",
    "site",
}


def test_the_version_is_the_same_everywhere(call: Ran) -> None:
    assert SETTINGS["project"]["version"] == reaper.__version__
    releases = [
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    ]
    releases = [line for line in releases if line != "## Unreleased"]
    assert all(re.fullmatch(r"## \d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", line) for line in releases)
    assert releases[0].split()[1] == reaper.__version__
    assert call(main, "--version")[:2] == (0, f"reaper {reaper.__version__}\n")


def test_what_is_installed_for_everything_is_what_the_single_extras_install() -> None:
    extras = SETTINGS["project"]["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found = set()
        for package in extras[extra]:
            inner = re.fullmatch(r"idle-reaper\[(.*)\]", package)
            found |= set().union(*map(packages, inner[1].split(","))) if inner else {package}
        return found

    assert packages("all") == set().union(
        *(packages(extra) for extra in extras if extra not in ("all", "dev", "docs"))
    )


def test_the_pinned_versions_agree_with_each_other() -> None:
    """pip refuses all of them otherwise: on a fresh machine `make` would install
    nothing.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines)
        if version
    }
    wrong = []
    for found in metadata.distributions():
        if canonicalize_name(found.metadata["Name"]) in pins:
            for needed in map(Requirement, found.requires or ()):
                pin = pins.get(canonicalize_name(needed.name))
                applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
                if pin and applies and not needed.specifier.contains(pin, prereleases=True):
                    wrong.append(f"{found.metadata['Name']} needs {needed}, pinned is {pin}")
    assert wrong == []


@pytest.mark.slow
def test_a_shell_completes_every_command(call: Ran) -> None:
    pytest.importorskip("shtab")
    _, script, _ = call(main, "completion", "bash")
    assert {"check", "attach", "top", "journal", "pipeline", "completion"} <= set(
        re.findall(r"[a-z]+", script)
    )
    assert "--min-in-rate" in script
    assert "--client" in script  # of `pipeline audit`
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


class Installed:
    """A venv with nothing but the wheel.

    Attributes:
        source, wheel: The distributions.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        tree = directory / "tree"
        shutil.copytree(ROOT, tree, ignore=_not_ours)
        _build("build_sdist", tree, directory)
        (self.source,) = directory.glob("*.tar.gz")
        with tarfile.open(self.source) as archive:
            archive.extractall(directory / "source", filter="data")
        (self.unpacked,) = (directory / "source").iterdir()
        _build("build_wheel", self.unpacked, directory)
        (self.wheel,) = directory.glob("*.whl")
        self.bin = directory / "venv" / "bin"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True
        )
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.bin / "python",
            "install",
            "--no-index",
            "--no-deps",
        ]
        subprocess.run([*pip, self.wheel], check=True, stdout=subprocess.DEVNULL)
        self.place = directory / "elsewhere"
        self.place.mkdir()
        self.environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.place)}

    def command(
        self, name: str, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the venv's programs, with no other package."""
        return subprocess.run(
            [self.bin / name, *arguments], cwd=cwd or self.place, env=self.environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip


def _not_ours(folder: str, names: list[str]) -> set[str]:
    return {
        name for name in names if name in MADE or name.endswith((".egg-info", "cache__", "_cache"))
    }


def _build(hook: str, tree: Path, into: Path) -> None:
    call = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", call, into], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "absent from" not in done.stderr  # setuptools would leave it out one day


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    pytest.importorskip("setuptools", minversion="77")
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.mark.slow
def test_the_source_distribution_is_the_whole_checkout(installed: Installed) -> None:
    tree = installed.directory / "tree"
    for made in ("idle_reaper.egg-info", "build"):
        shutil.rmtree(tree / made, ignore_errors=True)
    wanted = {path.relative_to(tree) for path in tree.rglob("*") if path.is_file()}
    packed = {
        path.relative_to(installed.unpacked)
        for path in installed.unpacked.rglob("*")
        if path.is_file()
    }
    assert {str(path) for path in wanted - packed} == set()
    assert {Path("Makefile"), Path("constraints.txt"), Path("tests/core/test_law.py")} <= packed


@pytest.mark.slow
def test_the_long_description_has_no_link_or_picture_of_the_checkout(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        described = message_from_bytes(archive.read(name))
    text = str(described.get_payload())
    assert described["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# reaper\n")
    assert re.findall(r"\]\((?!https?:)[^)]*\)|picture", text) == []
    assert "Files named here are in the source distribution." in text
    assert "mend what an error message names | symptoms (`docs/symptoms.md`)" in text


@pytest.mark.slow
def test_the_wheel_holds_the_library_the_load_generator_and_deploy_and_nothing_else(
    installed: Installed,
) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "reaper").rglob("*.py")}
    theirs = {
        f"reaper_{path.relative_to(ROOT)}"
        for path in (ROOT / "loadgen").rglob("*.*")
        if path.suffix != ".pyc"
    }
    assert {name for name in files if name.endswith(".py") and name.startswith("reaper/")} == ours
    assert {name for name in files if name.startswith("reaper_loadgen/")} == theirs
    deployed = {name for name in files if name.startswith("reaper_deploy/")}
    assert deployed == {
        f"reaper_{path.relative_to(ROOT)}"
        for path in (ROOT / "deploy").rglob("*")
        if path.is_file()
    }
    assert {name.partition("/")[0] for name in files} == {
        "reaper",
        "reaper_loadgen",
        "reaper_deploy",
    }
    assert "reaper/py.typed" in files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "command", "said"),
    [
        (0, "reaper --version", f"reaper {reaper.__version__}"),
        (0, "python -m reaper --version", f"reaper {reaper.__version__}"),
        (0, "reaper-loadgen --version", f"reaper-loadgen {reaper.__version__}"),
        (0, "reaper check", "verdict: pass"),
        (0, "reaper deploy systemd --for gunicorn", "-m gunicorn app:app"),
        (0, "reaper deploy prometheus", "alert: "),
        (
            0,
            'python -c "import reaper.asyncio, reaper.attach, reaper.config, reaper.metrics, reaper.policy"',
            "",
        ),
        (0, "reaper-loadgen behaviours", "reconnect-storm"),
        (0, "reaper-loadgen schema", "reaper-loadgen-report/1"),
        (0, "reaper-loadgen simulate --connections 50 --timeout 5s --duration 20s", "PASS"),
        (2, "reaper journal ship --journal . --to x", "pip install 'idle-reaper[journal]'"),
        (2, "reaper pipeline audit", "pip install 'idle-reaper[pipeline]'"),
        (2, "python -m reaper.pipeline audit", "pip install 'idle-reaper[pipeline]'"),
        (2, "reaper attach --pid 1 --idle 5m", "pip install 'idle-reaper[attach]'"),
        (2, "reaper completion bash", "pip install 'idle-reaper[completion]'"),
        (2, "reaper-loadgen completion bash", "pip install 'idle-reaper[completion]'"),
        (2, "reaper-loadgen run --target http://127.0.0.1:1 --timeout 1s", "idle-reaper[http]"),
        (2, "reaper-loadgen run --target 127.0.0.1:1 --timeout 1s --journal j", "[journal]'"),
        (2, 'python -c "from reaper.uvicorn import Auto"', "pip install 'idle-reaper[uvicorn]'"),
        (
            2,
            "python -m server_example echo",
            "server_example needs trio: pip install 'idle-reaper[http]'",
        ),
    ],
)
def test_without_any_other_package_each_command_works_or_says_what_it_needs(
    installed: Installed, status: int, command: str, said: str
) -> None:
    done = installed.command(
        *shlex.split(command), cwd=installed.unpacked if "server_example" in command else None
    )
    assert (done.returncode, done.stderr if status == 0 else done.stdout) == (status, "")
    assert said in done.stdout + done.stderr
    assert status == 0 or (done.stderr.count("\n"), "needs" in done.stderr) == (1, True)


DOORS = {
    "import reaper.trio": "'idle-reaper[trio]'",
    "import reaper.aiohttp": "'aiohttp'",
    "import reaper.websockets": "'websockets'",
    "from reaper.gunicorn import UvicornWorker": "'uvicorn-worker'",
    "import reaper.pipeline.cli": "'idle-reaper[pipeline]'",
    "import reaper.journal as j; j.Journal('j', tick=1)": "'idle-reaper[journal]'",
    "import reaper.metrics as m; m.ReaperCollector(None)": "'idle-reaper[prometheus]'",
    "import reaper.metrics as m; m.instrument(None, None)": "'idle-reaper[opentelemetry]'",
    "import reaper.policy.pressure as p; p.limits_here()": "'idle-reaper[pressure]'",
}


@pytest.mark.slow
def test_a_door_that_lacks_a_package_says_how_to_install_it(installed: Installed) -> None:
    for door, package in DOORS.items():
        line = installed.command("python", "-c", door).stderr.splitlines()[-1]
        assert line.startswith("reaper.errors.NotInstalled: "), door
        assert line.endswith(f"pip install {package}"), door


@pytest.mark.slow
def test_the_installed_load_generator_passes_the_asyncio_server_of_the_guide(
    installed: Installed, tmp_path: Path
) -> None:
    """With no other package, and a timeout of a second."""
    programs = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), re.DOTALL
    )
    (text,) = (text for text in programs if "reaper.asyncio.start_server" in text)
    port = free_port()
    (tmp_path / "server.py").write_text(
        text.replace("8080", str(port)).replace("idle=30", "idle=1")
    )
    command = [str(installed.bin / "python"), "server.py"]
    with serving(
        command, tmp_path / "log", port=port, cwd=tmp_path, environment=installed.environment
    ) as server:
        run = f"run --target {server.target} --timeout 1s --tick 1s --connections 30 --quiet --duration 3s"
        done = installed.command("reaper-loadgen", *run.split(), "--mix", "silent=50,chatty=50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
