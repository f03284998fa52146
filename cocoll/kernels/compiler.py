"""The C++ compiler of this machine: where it is, what it is, and running it."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cocoll.errors import CompileError, CompilerNotFoundError

__all__ = ["Compiler", "find_compiler"]

_CANDIDATES = ("c++", "g++", "clang++")
_INSTALL_HINT = (
    "install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or name it in "
    "CXX; the kernels of cocoll.epilogues' catalogue need none"
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Parameters
    ----------
    command : tuple of str
        The program, by its full path, and the options that CXX gives it.
    """

    command: tuple[str, ...]

    def fingerprint(self) -> str:
        """Give a digest that changes when the program does; runs nothing."""
        program = Path(self.command[0]).resolve()
        facts = program.stat()
        text = "\0".join((*self.command, str(program), str(facts.st_size), str(facts.st_mtime_ns)))
        return hashlib.sha256(text.encode()).hexdigest()

    def version(self) -> str:
        """Give what the compiler says about itself.

        Raises
        ------
        CompileError
            It does not run.
        """
        try:
            ran = subprocess.run(
                [*self.command, "--version"], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise CompileError(f"{self.command[0]} does not run: {error}") from error
        if ran.returncode != 0:
            raise CompileError(
                f"{shlex.join(self.command)} --version exited with {ran.returncode}: {ran.stderr}"
            )
        return ran.stdout.strip()

    def compile(self, source: Path, library: Path, options: Sequence[str]) -> None:
        """Compile one source into a shared library.

        Parameters
        ----------
        source, library : Path
            What to read and what to make.
        options : sequence of str
            All options but the output.

        Raises
        ------
        CompileError
            The compiler refuses; carries the source and its path, the options and the log.
        """
        command = [*self.command, *options, "-shared", str(source), "-o", str(library), "-lm"]
        try:
            # Temporary files stay beside the output, which is removed with its folder.
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                errors="replace",
                env={**os.environ, "TMPDIR": str(library.parent.parent), "LC_ALL": "C"},
            )
        except OSError as error:
            raise CompileError(
                f"{self.command[0]} does not run: {error}",
                source_path=str(source),
                options=list(options),
                log=str(error),
            ) from error
        if ran.returncode != 0:
            raise CompileError(
                f"{shlex.join(command)} exited with {ran.returncode}:\n{ran.stderr}",
                source_path=str(source),
                source=source.read_text(encoding="utf-8"),
                options=list(options),
                log=ran.stderr,
            )


def find_compiler(environment: Mapping[str, str]) -> Compiler:
    """Give the compiler that CXX names, else the first of c++, g++ and clang++ in PATH.

    Parameters
    ----------
    environment : Mapping of str to str
        Where CXX and PATH are looked up.

    Returns
    -------
    Compiler
        A program that exists; it has not been run.

    Raises
    ------
    CompilerNotFoundError
        There is none.
    """
    path = environment.get("PATH")
    named = environment.get("CXX")
    if named:
        program, *options = shlex.split(named)
        found = shutil.which(program, path=path)
        if found is None:
            raise CompilerNotFoundError(
                f"CXX={named!r} names no program that exists; {_INSTALL_HINT}"
            )
        return Compiler((found, *options))
    for program in _CANDIDATES:
        found = shutil.which(program, path=path)
        if found is not None:
            return Compiler((found,))
    raise CompilerNotFoundError(
        f"no C++ compiler: looked for {', '.join(_CANDIDATES)} in PATH; {_INSTALL_HINT}"
    )
