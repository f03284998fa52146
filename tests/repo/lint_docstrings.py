"""Check the docstrings of everything public with numpydoc; `make lint` runs it.

numpydoc's own command reads Python files only. This one asks the imported objects, so that the
functions of the compiled extension, which are the ones that users call, are read too.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator

from numpydoc.validate import validate

# Sections and their order; unknown, misordered or untyped parameters; undescribed returns.
FORM = ("GL06", "GL07", "GL08", "SS03", "PR02", "PR03", "PR04", "RT03")

# And that every parameter and every returned value is described.
COMPLETE = (*FORM, "PR01", "RT01")

CHECKS_OF = {
    "cocoll": COMPLETE,
    "cocoll.epilogues": COMPLETE,
    "cocoll.torch": COMPLETE,
    "cocoll.plan": FORM,
    "cocoll.topology": FORM,
    "cocoll.topology.cost": FORM,
    "cocoll.bootstrap": FORM,
    "cocoll.config": FORM,
}


def public_objects() -> Iterator[tuple[str, str, object]]:
    """Give module, dotted name and value of every public function, class and method."""
    seen: set[int] = set()
    for module_name in CHECKS_OF:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in seen or not (inspect.isroutine(value) or inspect.isclass(value)):
                continue
            seen.add(id(value))
            yield module_name, f"{module_name}.{name}", value
            if inspect.isclass(value):
                for member, plain in vars(value).items():
                    if not member.startswith("_") and inspect.isroutine(plain):
                        yield module_name, f"{module_name}.{name}.{member}", getattr(value, member)


def takes_nothing(value: object) -> bool:
    """Say whether a routine has no parameter but ``self``: its one sentence says what it gives."""
    try:
        names = list(inspect.signature(value).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return not set(names) - {"self"}


def documents_attributes(value: object) -> bool:
    """Say whether a class of plain fields lists them as attributes."""
    return dataclasses.is_dataclass(value) and "Attributes\n" in (value.__doc__ or "")


def main() -> int:
    """Print what is wrong and give the exit status."""
    wrong = []
    count = 0
    for module_name, name, value in public_objects():
        count += 1
        for code, message in validate(name)["errors"]:
            if code not in CHECKS_OF[module_name] or (code == "RT01" and takes_nothing(value)):
                continue
            if not (code == "PR01" and documents_attributes(value)):
                wrong.append(f"{name}: {code} {message}")
    print("\n".join([*wrong, f"{count} public docstrings, {len(wrong)} complaints"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
