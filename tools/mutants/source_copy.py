"""Copies the user's sources, with changes, and builds the copy."""

import os
import shutil
import subprocess


class Failure(Exception):
    """A problem that ends the tool."""


def write_if_changed(path, data):
    """Keeps the time of a file that does not change, so that Ninja does not
    build it again."""
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class SourceCopy:
    """A copy of the sources in `folder`/source, built in `folder`/build."""

    def __init__(self, root, folder):
        self.root = root
        self.folder = folder
        self.source = folder / "source"
        self.build_folder = folder / "build"
        self.log = folder / "build.log"

    def write(self, changed):
        """Copies the user's tree, including what is not committed. `changed`
        has the texts of files that differ from the user's, or are new."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=self.root, check=True, capture_output=True, text=True).stdout
        names = {name for name in listed.split("\0")
                 if name and (self.root / name).is_file()}
        for name in names | changed.keys():
            data = (changed[name].encode("utf-8") if name in changed
                    else (self.root / name).read_bytes())
            write_if_changed(self.source / name, data)
            if name in names:
                shutil.copymode(self.root / name, self.source / name)
        for path in self.source.rglob("*"):
            name = path.relative_to(self.source).as_posix()
            if path.is_file() and name not in names | changed.keys():
                path.unlink()

    def build(self, options, targets, jobs):
        """Builds `targets` without CUDA. Raises Failure if that fails."""
        # Make exports variables that are not set as empty ones.
        python = os.environ.get("LOCKSTEP_PYTHON") or (
            self.root / ".venv/bin/python")
        torch = (f"-DTorch_DIR={os.environ['Torch_DIR']}"
                 if os.environ.get("Torch_DIR")
                 else f"-DLOCKSTEP_PYTHON={python}")
        commands = [
            ["cmake", "--preset", "release", "-S", str(self.source),
             "-B", str(self.build_folder), torch, "-DLOCKSTEP_CUDA=OFF",
             "-DLOCKSTEP_BUILD_BENCH=OFF", "-DLOCKSTEP_INSTALL=OFF", *options],
            ["ninja", "-C", str(self.build_folder), "-j", str(jobs), *targets]]
        if (self.build_folder / "build.ninja").exists():
            commands = commands[1:]  # Ninja runs CMake when it has to
        with self.log.open("w", encoding="utf-8") as output:
            for command in commands:
                done = subprocess.run(command, cwd=self.source, check=False,
                                      stdout=output, stderr=subprocess.STDOUT)
                if done.returncode != 0:
                    raise Failure(f"the mutants do not build; see {self.log}")
