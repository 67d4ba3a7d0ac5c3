"""What a class or a module of another package has, whether the program has imported it
or not.

The rule of this module: *a look-up runs nothing*. Whoever imports `h2` to see whether
it has a name runs the `h2.py` of the application's own folder, if there is one. So a
module that the program has not imported is found as the import would find it, and its
text is parsed. Packages are not imported on the way to their modules, either.

A class has what its body defines, what the code of its methods reads or sets of
objects, and what its bases have, wherever those are.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType
from typing import Any

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find(name: str) -> ModuleSpec | None:
    """Where the module *name* would be imported from; None: it is not there.

    As `importlib.util.find_spec`, which imports the packages above, and this does not.
    """
    above = name.rpartition(".")[0]
    where: list[str] | None = None
    if above:
        package = sys.modules.get(above)
        spec = None if package is not None else find(above)
        found = getattr(package, "__path__", None) or getattr(
            spec, "submodule_search_locations", None
        )
        if found is None:
            return None
        where = list(found)
    return PathFinder.find_spec(name, where)


class Text:
    """A module that is not imported, by its text.

    Args:
        name: Its full name.
        tree: The text, parsed.
        is_package: Whether it has modules below it.
    """

    def __init__(self, name: str, tree: ast.Module, *, is_package: bool) -> None:
        self.package: str = name if is_package else name.rpartition(".")[0]
        self.defined: dict[str, Definition | None] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        """By name in here: the module that it is imported from, and its name there;
        empty: it is that module.
        """
        self.stars: list[str] = []
        """The modules that all names are imported from."""
        for node in _outside_functions(tree.body):
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, Definition):
            self.defined[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imports[alias.asname or top] = (top, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(self._origin(node))
                else:
                    self.imports[alias.asname or alias.name] = (self._origin(node), alias.name)
        else:
            self.defined |= dict.fromkeys(_targets(node))

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, *filter(None, [node.module])])

    @property
    def names(self) -> set[str]:
        """What the module itself has."""
        return {*self.defined, *self.imports}


class Reader:
    """Reads the texts of modules, each once, and forgets them with itself."""

    def __init__(self) -> None:
        self._texts: dict[str, Text | None] = {}

    def text(self, name: str) -> Text | None:
        """The module *name*; None: it is not there, or has no text."""
        if name not in self._texts:
            self._texts[name] = self._read(name)
        return self._texts[name]

    def _read(self, name: str) -> Text | None:
        spec = find(name)
        loader = getattr(spec, "loader", None)
        try:
            source = loader.get_source(name)  # type: ignore[union-attr]
            tree = ast.parse(source)
        except (AttributeError, TypeError, ImportError, SyntaxError, ValueError):
            return None  # a folder alone, an extension, bytecode alone
        return Text(
            name, tree, is_package=getattr(spec, "submodule_search_locations", None) is not None
        )

    def has(self, module: str) -> bool:
        """Whether *module* is imported, or could be."""
        return sys.modules.get(module) is not None or self.text(module) is not None

    def known(self, module: str, path: str, wanted: set[str]) -> set[str] | None:
        """Which names of *wanted* the class *path* of *module* has, or its objects;
        None: there is no such class. An empty *path*: those that the module has.
        """
        live = sys.modules.get(module)
        found = getattr(live, path, None) if path else live
        if found is None:
            return self._in_text(module, path, wanted)
        known = known_of(found, wanted)
        if not path and _is_being_imported(found):
            known |= self._in_text(module, path, wanted) or set()
        return known

    def _in_text(self, module: str, path: str, wanted: set[str]) -> set[str] | None:
        live = sys.modules.get(module)
        if live is not None and not _is_being_imported(live):
            return None  # what it lacks now, it lacks
        if (text := self.text(module)) is None:
            return None
        if not path:
            return (wanted & text.names).union(
                *(self.known(each, "", wanted) or () for each in text.stars)
            )
        node = text.defined.get(path)
        if isinstance(node, ast.ClassDef):
            return self._of_class(node, text, wanted)
        if path in text.imports:
            return self.known(*text.imports[path], wanted)
        if path in text.defined:
            return set()
        found = (self.known(each, path, wanted) for each in text.stars)
        return next((each for each in found if each is not None), None)

    def _of_class(self, node: ast.ClassDef, text: Text, wanted: set[str]) -> set[str]:
        has = {*_defined_in(node), *_properties(node)}
        has |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        known = wanted & has
        for base in node.bases:
            known |= self._of_base(base, text, wanted)
        return known

    def _of_base(self, base: ast.expr, text: Text, wanted: set[str]) -> set[str]:
        if isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        root, *rest = ast.unparse(base).split(".")
        node = text.defined.get(root)
        if isinstance(node, ast.ClassDef) and not rest:
            return self._of_class(node, text, wanted)
        if root not in text.imports:
            return known_of(getattr(builtins, root, object), wanted)
        module, name = text.imports[root]
        if rest:  # `base.Worker`, where `base` is a module
            module, name = ".".join(filter(None, [module, name, *rest[:-1]])), rest[-1]
        return self.known(module, name, wanted) or set()


def known_of(found: Any, wanted: set[str]) -> set[str]:
    """Which of *wanted* are attributes of *found*, or, if it is a class, of its
    objects.
    """
    known = {name for name in wanted if "." in name and _leads(found, name)}
    known |= wanted.intersection(dir(found))
    kinds: tuple[type, ...] = found.__mro__ if isinstance(found, type) else ()
    # Most are set in the first method of a class, __init__: the rest is not gone
    # through then.
    values = (value for kind in kinds for value in vars(kind).values())
    for value in values:
        if known == wanted:
            break
        for code in _code_of(value):
            known |= wanted.intersection(_names_in(code))
    return known


def _leads(found: Any, path: str) -> bool:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def _code_of(value: Any) -> Iterator[CodeType]:
    """The code of a method, of a class method, or of a property, without what stands
    around it.
    """
    parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
    for part in parts:
        function: Any = getattr(part, "__func__", part)
        if callable(function) and inspect.isfunction(found := inspect.unwrap(function)):
            yield found.__code__


def _names_in(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _is_being_imported(module: Any) -> bool:
    """Whether the code of *module* may not have run to its end yet."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _properties(node: ast.ClassDef) -> Iterator[str]:
    """`name.fget` for each property that the body of *node* defines."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            marks = {ast.unparse(mark) for mark in each.decorator_list}
            if "property" in marks:
                yield f"{each.name}.fget"


def _outside_functions(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of *body*, and those that it runs under a condition."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            inner = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            handlers = [each.body for each in getattr(node, "handlers", [])]
            for each in (*inner, *handlers):
                yield from _outside_functions(each)


def _targets(node: ast.stmt) -> Iterator[str]:
    """The names that *node* assigns to."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        found = [node.target]
    for target in found:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                yield each.id


def _defined_in(node: ast.ClassDef) -> Iterator[str]:
    """The names that the body of *node* defines, and those of its `__slots__`."""
    for each in _outside_functions(node.body):
        if isinstance(each, Definition):
            yield each.name
        names = list(_targets(each))
        yield from names
        if "__slots__" in names and isinstance(each, ast.Assign | ast.AnnAssign) and each.value:
            words = (word for word in ast.walk(each.value) if isinstance(word, ast.Constant))
            yield from (str(word.value) for word in words)
