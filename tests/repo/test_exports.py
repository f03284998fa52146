"""What is public is listed, exists, stands once, and is documented."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import cocoll
from tests.repo.layout import PACKAGE, ROOT, module_files, module_name

# Optional dependencies: their modules are imported only where these are installed.
OPTIONAL_MODULES = {"cocoll.jax"}

MODULES = [
    name
    for name in (module_name(path) for path in module_files() if path.suffix != ".pxi")
    if name not in OPTIONAL_MODULES and not name.rpartition(".")[2].startswith("_")
]


def exports(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_real(name: str) -> None:
    module = importlib.import_module(name)
    names = exports(module)
    assert len(set(names)) == len(names)
    for public in names:
        assert hasattr(module, public), f"{name}.__all__ lists {public}, which is not there"


@pytest.mark.parametrize(
    "path",
    [path for path in module_files() if path.suffix == ".py" and path.name != "__init__.py"],
    ids=module_name,
)
def test_all_is_complete(path: Path) -> None:
    tree = ast.parse(path.read_text())
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    listed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
    assert defined <= listed, f"{path.relative_to(ROOT)}: not in __all__: {defined - listed}"


def test_each_object_has_one_public_name() -> None:
    seen: dict[int, str] = {}
    for name in exports(cocoll):
        value = getattr(cocoll, name)
        if isinstance(value, ModuleType | str | int | float):
            continue
        assert id(value) not in seen, f"cocoll.{name} is also cocoll.{seen[id(value)]}"
        seen[id(value)] = name


def documented(name: str, value: object) -> list[str]:
    """Give what is wrong with the docstrings of a public object."""
    wrong = []
    text = inspect.getdoc(value) or ""
    if inspect.isbuiltin(value) or type(value).__name__ == "cython_function_or_method":
        # Cython writes the signature into the first line.
        text = (
            text.split("\n", 1)[1].strip() if text.startswith(f"{name}(") and "\n" in text else text
        )
    first = text.split("\n\n", 1)[0].strip()
    if not first:
        wrong.append(f"{name}: no docstring")
    elif not (first[0].isupper() or first[0] in "`'\"") or not first.endswith("."):
        wrong.append(f"{name}: wanted a sentence, got {first!r}")
    if inspect.isclass(value):
        for member_name, member in vars(value).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if not member_name.startswith("_") and inspect.isroutine(plain):
                inherited = inspect.getdoc(getattr(value, member_name))
                if not inherited:
                    wrong.append(f"{name}.{member_name}: no docstring")
    return wrong


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    wrong = []
    for public in exports(module):
        value = getattr(module, public)
        if inspect.isroutine(value) or inspect.isclass(value):
            wrong += documented(public, value)
    assert not wrong, "\n".join(wrong)


def test_version_is_the_one_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{cocoll.__version__}"\n' in text


def test_typed_marker() -> None:
    assert (PACKAGE / "py.typed").exists()
