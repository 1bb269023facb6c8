"""The console script `lockstep`, which becomes the program of the wheel."""

import importlib.metadata
import os
import pathlib
import sys

from lockstep import _minor

_CPP = pathlib.Path(__file__).parent / "cpp"
# The subcommands that work with any torch, or without one.
_WITHOUT_TORCH = {"run", "split", "top", "data", "--version", "-V"}


def _torch_problem():
    """Returns what is wrong with the installed torch, or ""."""
    built = (_CPP / "torch_version").read_text().strip()
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if _minor(found) == built:
        return ""
    return (
        f"[lockstep] the program and the C++ library of this wheel don't fit the "
        f"installed torch; expected torch {built}, got {found}; "
        f"run: pip install 'torch=={built}.*'"
    )


def main():
    """Runs the program, or prints the folder for CMAKE_PREFIX_PATH."""
    words = sys.argv[1:]
    if not words or words[0] not in _WITHOUT_TORCH:
        problem = _torch_problem()
        if problem:
            print(problem, file=sys.stderr)
            return 2
    if words == ["cmake-prefix"]:
        print(_CPP)
        return 0
    # `lockstep run` starts scripts with this Python, as torchrun does, and `lockstep
    # compare --pytorch` measures its torch.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.environ.setdefault("LOCKSTEP_PYTHON", sys.executable)
    program = _CPP / "bin" / "lockstep"
    os.execv(program, ["lockstep", *words])
