"""`reaper run --explain`: what would be guarded of a command, and how; nothing of it is
started.

Which servers a command will import is known only once it runs. So its interpreter is
asked which package the command belongs to, and which of the servers that package, or
the modules that a script imports, require. What cannot be found out that way is said:
then every server that is installed is listed, each on the condition that it is
imported.

The interpreter that is asked imports nothing from the working folder: a `json.py` there
would run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..config.durations import format_duration
from ..config.effects import said, without_effect
from ..config.settings import ReaperConfig
from ..errors import one_line
from ..servers.cards import cards
from . import report
from .touched import lines as touched_lines
from .touched import packages, stranger_lines
from .watcher import asked, outside_text

ASK = """
import sys
here = [place for place in sys.path if not place or not place.startswith('/')]
import os
try: here.append(os.getcwd())
except OSError: pass
folders, sys.path = sys.path, [place for place in sys.path if place not in here]
import ast, json, re
from importlib.metadata import PackageNotFoundError, distribution, distributions
program, module, script, servers = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
libraries = {each[:-1] for each in servers if each[-1] == '?'}
others = [each[1:] for each in servers if each[0] == '+']
servers = [each.rstrip('?') for each in servers if each[0] != '+']

def norm(name): return re.sub('[-_.]+', '-', name).lower()

def needed(name, seen, extras):
    if norm(name) in seen: return
    try: found = distribution(name)
    except PackageNotFoundError: return
    seen.add(norm(name))
    for line in found.requires or ():
        match = re.match('[A-Za-z0-9._-]+', line)
        if match and (extras or 'extra ==' not in line): needed(match[0], seen, extras)

modules, owners = set(), set()
if module: modules.add(module.split('.')[0])
if script:
    try: tree = ast.parse(open(script, 'rb').read())
    except (OSError, SyntaxError, ValueError): tree = ast.parse('')
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): modules |= {a.name.split('.')[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module.split('.')[0])
for each in distributions():
    name = each.metadata['Name']
    if not name: continue
    if program and any(e.group == 'console_scripts' and e.name == program for e in each.entry_points):
        owners.add(name)
    tops = (each.read_text('top_level.txt') or '').split()
    if modules & {*tops, norm(name).replace('-', '_')}: owners.add(name)
def installed(names):
    found = {}
    for name in names:
        try: found[name] = distribution(name).version
        except PackageNotFoundError: pass
    return found
found = installed(servers)
named, standard = [], getattr(sys, 'stdlib_module_names', ())
for extras in (False, True):
    reach = set()
    for each in owners: needed(each, reach, extras)
    reach -= libraries - {norm(each) for each in owners}
    named = named or [name for name in found if norm(name) in reach]
known = bool(owners) or bool(modules) and all(name in standard for name in modules)
print(json.dumps([sys.version.split()[0], found, installed(others), named, known]))
"""
"""What the interpreter of a command is asked: its release, the servers that are
installed there, of the other packages those that are, those servers that the command's
package requires, and whether such a package was found. A name that ends in `?` is a
library's, which counts only if the command belongs to it or imports it: many packages
require it that do not serve by it. One that begins with `+` is another package's.
"""

_BY_SHELL = re.compile(r"""'''exec' "?([^"]*?python[^\s"/]*)"? "\$0" """)
"""The second line of a script that pip has made for an interpreter whose path has a
blank or is too long for the first: a shell reads it, and Python finds a string in it.
"""


def interpreter_of(program: str, command: Sequence[str]) -> list[str] | None:
    """The words that run *program*, if that is a Python; None if it is another
    program.
    """
    if Path(program).resolve().name.startswith(("python", "pypy")):
        return [program]
    try:
        with open(program, "rb") as file:
            first, second = file.readline(512), file.readline(4096)
    except OSError:
        return None
    if found := _BY_SHELL.match(second.decode(errors="replace")):
        return [found[1]]
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    words = words[1:] if words and words[0].endswith("/env") else words
    return words[:1] if words and "python" in Path(words[0]).name else None


def explain(
    program: str,
    command: Sequence[str],
    config: ReaperConfig,
    *,
    inside: bool,
    strict: bool = False,
    touched: bool = False,
) -> str:
    """What `reaper run` would do with *command*, for people.

    Args:
        program: The file that *command* names.
        inside: Whether `--inside` was given.
        strict: Whether `--strict` was.
        touched: Whether the names of others are listed that would be read or replaced.
    """
    outside = (
        "not guarded: --inside was given"
        if inside
        else f"guarded from outside: {outside_text(config)}"
    )
    python = interpreter_of(program, command)
    if python is None:
        return f"{command[0]} is no Python program\nwhat it listens on is {outside}"
    names = [card.name + "?" * card.library for card in cards()]
    names += sorted(f"+{name}" for name in packages(cards())) if touched else []
    try:
        done = subprocess.run(
            [*python, "-c", ASK, *meant(program, command), *names],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
        release, found, others, named, known = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{' '.join(python)}: cannot be asked: {one_line(error)}"
    lines = [f"{command[0]} runs on Python {release}"]
    if not found:
        lines.append("none of the servers that can be guarded from inside is installed there")
    elif not known:
        lines.append("which server it imports is not known; each of these, if it does:")
    elif not named:
        lines.append("it requires none of the servers that can be guarded from inside")
    for name in named if known else found:
        lines += inside_lines(name, found[name], config)
        if touched:
            (card,) = (card for card in cards() if card.name == name)
            lines += touched_lines(card, others, inside=inside)
    if inside and strict and touched:
        lines += stranger_lines()
    return "\n".join([*lines, f"what else it listens on is {outside}"])


def meant(program: str, command: Sequence[str]) -> tuple[str, str, str]:
    """The console script, the module and the script that *command* names; empty if it
    names none.
    """
    if not Path(program).resolve().name.startswith(("python", "pypy")):
        return Path(program).name, "", program
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            return "", words[0], ""
        if word.startswith("-m") and len(word) > 2:
            return "", word[2:], ""
        if word in ("-W", "-X"):
            del words[:1]
        elif word == "-c":
            break
        elif not word.startswith("-"):
            return "", "", word
    return "", "", ""


def streams_lines(config: ReaperConfig) -> Iterable[str]:
    """What becomes of event streams, where anything does."""
    shown = {
        "stream_ping": "quiet event streams get a comment after",
        "stream_age": "streams are ended after",
    }
    for key, text in shown.items():
        if seconds := getattr(config.timeouts, key):
            origin = config.origin(f"timeouts.{key}")
            yield f"  {text} {format_duration(seconds)} ({key}, by {origin})"


def inside_lines(name: str, release: str, config: ReaperConfig) -> Iterable[str]:
    """The lines of the server *name*: its *release*, and the limits that would hold."""
    (card,) = (card for card in cards() if card.name == name)
    own = {key: where for key, where in card.own.items() if not asked(config, f"timeouts.{key}")}
    holds = card.in_force(config)
    limits = {key: value for key, value in holds.items() if key not in own}
    text = report.limits_text(limits) + "".join(
        f", {key} as {name} has it ({where})" for key, where in own.items()
    )
    note = f" ({card.note})" if card.note else ""
    tested = card.needs[0].range
    yield f"{name} {release} (tested: {tested}) is guarded from inside{note}: {text}"
    if any("timeouts.stream_ping" in kind.acts for kind in card.kinds):
        yield from streams_lines(config)
    for kind in card.kinds:
        if vain := said(without_effect(config, kind)):
            yield f"  {kind.name}: {vain}"
