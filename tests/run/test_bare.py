"""`reaper run -- COMMAND` beside the bare COMMAND: what both print and how both end is
the same.

A guest changes nothing but what it closes. What it does change is left out by name:
PYTHONPATH and REAPER_* in the environment (`reaper.run.command` lists it).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.serving import ROOT
from tests.helpers.reaper_run import PATIENCE, REAPER

pytestmark = pytest.mark.slow

PYTHON = sys.executable
ALONE = [PYTHON, "-I", "-m", "reaper"]
"""As an installed `reaper` runs: without the working folder and the user's
PYTHONPATH.
"""
STATUS = "while read x; do case $x in {}:*) echo $x;; esac; done </proc/$$/status"
"""Of the shell itself: it blocks signals while it starts another program, and holds its
pipes.
"""

SHELL = {
    "status 0": "exit 0",
    "status 7": "exit 7",
    "output": "echo out; echo err >&2",
    "much output": "head -c 300000 /dev/zero | tr '\\0' x",
    "ended by SIGTERM": "kill -TERM $$",
    "ended by SIGKILL": "kill -KILL $$",
    "ended by SIGINT": "kill -INT $$",
    "ended by SIGPIPE": "kill -PIPE $$",
    "ended by SIGXFSZ": "kill -XFSZ $$",
    "a pipe whose reader has gone": "(yes; echo $? >&2) | head -1",
    "a file that grows too long": "ulimit -f 1; (head -c 9999 /dev/zero >long; echo $?)",
    "signals ignored": STATUS.format("SigIgn"),
    "signals blocked": STATUS.format("SigBlk"),
    "signals pending": STATUS.format("ShdPnd"),
    "umask": "umask",
    "user": STATUS.format("Uid"),
    "groups": STATUS.format("Groups"),
    "capabilities": STATUS.format("CapEff"),
    "new privileges": STATUS.format("NoNewPrivs"),
    "threads": STATUS.format("Threads"),
    "processors": STATUS.format("Cpus_allowed_list"),
    "limits": "cat /proc/$$/limits",
    "niceness": "cut -d' ' -f 19 /proc/$$/stat",
    "oom score": "cat /proc/$$/oom_score_adj",
    "namespaces": "readlink /proc/$$/ns/*",
    "control group": "cat /proc/$$/cgroup",
    "words": "tr '\\0' '\\n' </proc/$$/cmdline",
    "executable": "readlink /proc/$$/exe",
    "working folder": "readlink /proc/$$/cwd",
    "root folder": "readlink /proc/$$/root",
    "descriptors": "for x in /proc/$$/fd/*; do echo ${x##*/}; done",
    "children": 'read x </proc/$$/task/$$/children; echo "[$x]"',
    "own group and session": "set -- $(cut -d' ' -f 5,6 /proc/$$/stat); [ $1 = $$ ]; echo $? $#",
    "environment": "env | grep -v -e ^PYTHONPATH= -e ^REAPER_ -e ^_= | sort",
    "input": "cat",
    "closed input": "exec 0<&-; read x; echo $?",
    "a deleted working folder": "mkdir gone; cd gone; rmdir ../gone; exec 2>&1; pwd; exit 3",
}
CODE = {
    "no child to wait for": "import os; os.wait()",
    "modules of a Python": "import sys; print(sorted(sys.modules))",
    "path of a Python": "import sys; print(sys.path)",
    "flags of a Python": "import sys; print(sys.flags, sys.orig_argv)",
    "files that a Python has open": "import os; print(os.listdir('/proc/self/fd'))",
    "an error of a Python": "raise ValueError('odd')",
    "a status of a Python": "raise SystemExit(9)",
    "threads of a Python": "import threading; print(threading.enumerate().__len__())",
    "a module named reaper": "import reaper; print(reaper.__file__, reaper.mine)",
    "no module named reaper": "import sys; sys.path[:] = []; import reaper",
}


def both(
    command: Sequence[str],
    folder: Path,
    before: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> list[tuple[int, str, str]]:
    """How *command* ends and what it prints: bare, and below `reaper run`.

    Args:
        folder: Where it runs; what it makes there is removed between the two.
        before: Words that stand before both.
        environment: More variables.
    """
    given = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    given |= {"TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    found = []
    for words in ([], [*ALONE, "run", "--"]):
        work = folder / "work"
        shutil.copytree(folder / "given", work)
        with open(folder / "more", "w") as more:
            done = subprocess.run(
                [*before, *words, *command],
                cwd=work,
                env=given,
                input="line\n",
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                start_new_session=True,
                pass_fds=[more.fileno()],
            )
        shutil.rmtree(work)
        found.append((done.returncode, plain(done.stdout), plain(done.stderr)))
    return found


def plain(text: str) -> str:
    """*text* without what differs between two runs of the same command."""
    return re.sub(r"process \d+|0x[0-9a-f]+", "N", text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose `given` is where a command starts."""
    (tmp_path / "given").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_below_reaper_run_is_as_the_bare_one(name: str, folder: Path) -> None:
    bare, guarded = both(["sh", "-c", SHELL[name]], folder)
    assert guarded == bare


@pytest.mark.parametrize("name", CODE)
def test_a_python_below_reaper_run_is_as_the_bare_one(name: str, folder: Path) -> None:
    if name == "a module named reaper":
        (folder / "given" / "reaper.py").write_text("mine = 1")
    # Without the site packages, where this library is installed for the tests.
    bare, guarded = both([PYTHON, "-c", CODE[name]], folder, environment={"PYTHONNOUSERSITE": "1"})
    assert guarded == bare


@pytest.mark.parametrize("form", ["a file", "bytecode", "in a zip", "that fails", "none"])
def test_the_sitecustomize_of_a_program_is_run_in_whatever_form(form: str, folder: Path) -> None:
    source = folder / "sitecustomize.py"
    source.write_text("raise ValueError('odd')" if form == "that fails" else "print('theirs')")
    theirs = folder / "theirs"
    theirs.mkdir()
    path = theirs
    if form == "bytecode":
        import py_compile

        py_compile.compile(str(source), cfile=str(theirs / "sitecustomize.pyc"), doraise=True)
    elif form == "in a zip":
        path = theirs / "all.zip"
        with ZipFile(path, "w") as file:
            file.write(source, "sitecustomize.py")
    elif form != "none":
        shutil.copy(source, theirs)
    source.unlink()
    code = "import sys; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    bare, guarded = both([PYTHON, "-c", code], folder, environment={"PYTHONPATH": str(path)})
    assert guarded == bare
    assert ("theirs" in bare[1].split()) == (form not in ("that fails", "none"))


def test_a_deleted_working_folder_disturbs_no_python(folder: Path) -> None:
    gone = ["sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh"]
    code = [PYTHON, "-c", "import os; print('runs')"]
    given = {"PYTHONPATH": str(ROOT)}  # `-m reaper` is found though there is no folder
    (bare, guarded) = both(code, folder, gone, given)
    assert guarded == bare


@pytest.mark.parametrize("mode", [0o755, 0o644])
@pytest.mark.parametrize("text", ["echo $0 $1; exit 4\n", "#!/no/such/interpreter\n", ""])
def test_a_script_is_run_as_a_shell_runs_it(text: str, mode: int, folder: Path) -> None:
    script = folder / "given" / "script"
    script.write_text(text)
    script.chmod(mode)
    # By a shell that stays, because the words of an error are not the command's.
    words = ["sh", "-c", '"$@" 2>/dev/null; echo $?', "sh"]
    bare, guarded = both(["./script", "word"], folder, words)
    if text.startswith("#!") and mode == 0o755:  # dash says 127, bash 126
        bare, guarded = ((status, "", "") for status, _, _ in (bare, guarded))
    assert guarded == bare


def test_a_command_that_is_not_there_has_the_status_of_a_shell(folder: Path) -> None:
    words = ["sh", "-c", '"$@" 2>/dev/null; echo $?', "sh"]
    bare, guarded = both(["./no-such-thing"], folder, words)
    assert guarded == bare


def test_a_terminal_is_the_commands(folder: Path) -> None:
    if shutil.which("script") is None:
        pytest.skip("script is not installed (apt-get install bsdutils)")
    asks = "test -t 0 && test -t 1 && test -t 2; echo $?; stty -a; ps -o tpgid= -p $$ | grep -c $$"
    reports = []
    for words in ("", shlex.join([*REAPER, "run", "--"])):
        (folder / "asks").write_text(asks)
        command = ["script", "-qec", f"{words} sh {folder}/asks", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
        reports.append((done.returncode, done.stdout))
    assert reports[0] == reports[1]
    assert reports[0][1].startswith("0")


NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
FIRST = {
    "its number": "import os; print(os.getpid())",
    "its children": "print(open('/proc/1/task/1/children').read().split())",
    "nobody to wait for": "import os\ntry: os.wait()\nexcept ChildProcessError as e: print(e)",
    "its orphans": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "count = 0\n"
        "try:\n"
        "    while True: os.wait(); count += 1\n"
        "except ChildProcessError: print(count)"
    ),
    "its status": "raise SystemExit(5)",
}


@pytest.mark.parametrize("name", FIRST)
def test_process_1_of_a_namespace_is_as_the_bare_one(name: str, folder: Path) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces of users and processes (unshare)")
    bare, guarded = both([PYTHON, "-c", FIRST[name]], folder, NAMESPACE)
    if name == "its children":  # the watcher is one, which wait(2) does not see
        assert bare[1] == "[]\n"
        return
    assert guarded == bare
