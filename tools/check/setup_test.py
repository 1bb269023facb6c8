#!/usr/bin/env python3
"""Tests what the set-up installs, configures and builds. Stand-ins replace the
programs that would do it.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP = ROOT / "tools/setup"
SYSTEMS = {"debian": "ID=debian\nVERSION_ID=12\n",
           "ubuntu": "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n",
           "mint": 'ID=linuxmint\nID_LIKE="ubuntu debian"\n',
           "fedora": "ID=fedora\n",
           "rocky": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n',
           "other": "ID=arch\n"}


class Host:
    """A working folder, and programs that replace those of the system. Each
    program records how it was called.
    """

    def __init__(self, folder, system="debian"):
        self.folder = pathlib.Path(folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("apt-get", "cmake"):
            self.stand_in(name)
        self.stand_in("dpkg-query", 'cat "$HOST/installed" 2>/dev/null || true')
        self.stand_in("rpm", 'grep -qx "$3" "$HOST/installed" 2>/dev/null')
        self.stand_in("id", "echo 0")
        # Hides the GPU driver of this machine.
        self.stand_in("ldconfig")
        (self.folder / "os-release").write_text(SYSTEMS[system])
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin", "HOST": str(self.folder),
            "HOME": str(self.folder / "home"), "LANG": "C.UTF-8",
            "LOCKSTEP_OS_RELEASE": str(self.folder / "os-release"),
            "LOCKSTEP_CUDA": "OFF" if os.path.exists("/dev/nvidiactl") else ""}

    def stand_in(self, name, does=""):
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"$HOST/calls"\n{does}\n')
        path.chmod(0o755)

    def install(self, packages):
        text = "".join(f"ii  {name}\n{name}\n" for name in packages)
        (self.folder / "installed").write_text(text)

    def run(self, *command):
        (self.folder / "calls").write_text("")
        return subprocess.run(command, cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=60)

    def calls(self, word):
        """Returns the calls that contain the word, as lists of words."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.split() for line in lines if word in line.split()]


class SetUp(unittest.TestCase):

    def host(self, system="debian"):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Host(folder.name, system)

    def installed_by(self, system, *lists):
        """Returns the packages that apt-get was asked to install on an empty
        host.
        """
        host = self.host(system)
        done = host.run(SETUP / "packages.sh", *lists)
        self.assertEqual(done.returncode, 0, done.stderr)
        call = host.calls("install")[-1]
        return call[call.index("--no-install-recommends") + 1:]

    def test_build_needs_nothing_that_only_tests_need(self):
        packages = self.installed_by("debian", "build")
        self.assertIn("clang", packages)
        for name in ("chromium", "slurm-wlm", "openmpi-bin", "doxygen",
                     "libgtest-dev", "g++"):
            self.assertNotIn(name, packages)
            self.assertIn(name,
                          self.installed_by("debian", "build", "test", "tools"))

    def test_ubuntu_has_names_of_its_own(self):
        for system in ("ubuntu", "mint"):
            packages = self.installed_by(system, "build", "test", "tools")
            self.assertIn("libjpeg-turbo8-dev", packages)
            self.assertIn("clang-format-14", packages)
            # Ubuntu's package of Chromium only installs a snap.
            for name in ("chromium", "libjpeg62-turbo-dev", "-"):
                self.assertNotIn(name, packages)

    def test_fedora_is_told_what_to_install(self):
        for system in ("fedora", "rocky"):
            host = self.host(system)
            host.install(["clang", "cmake"])
            done = host.run(SETUP / "packages.sh", "build")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("dnf install boost-devel cli11-devel",
                          done.stderr)

    def test_another_system_is_told_which_program_is_missing(self):
        host = self.host("other")
        for name in ("dirname", "awk", "tr"):
            (host.bin / name).symlink_to(f"/usr/bin/{name}")
        host.environment["PATH"] = str(host.bin)
        done = host.run("/bin/bash", SETUP / "packages.sh", "build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("clang++ is missing", done.stderr)
        self.assertIn("arch", done.stderr)
        for name in ("clang++", "ninja"):
            host.stand_in(name)
        done = host.run("/bin/bash", SETUP / "packages.sh", "build")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_nothing_is_said_or_done_when_all_is_there(self):
        for system in ("debian", "ubuntu", "fedora"):
            host = self.host(system)
            host.install(word for line in
                         (SETUP / "packages.txt").read_text().splitlines()
                         if not line.startswith("#") for word in line.split())
            done = host.run(SETUP / "packages.sh", "build", "test", "tools")
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
            self.assertEqual(host.calls("apt-get"), [])

    def python_host(self):
        """Makes a host whose Python creates empty environments."""
        host = self.host()
        host.stand_in("python", """
case $1 in
-c) case $2 in *version*) echo 3.11 ;; esac ;;
-V) echo "Python 3.11" ;;
-m) if [ "$2" = venv ]; then
      mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "$3" >"$3/pyvenv.cfg"
    fi ;;
esac""")
        host.environment["PYTHON"] = str(host.bin / "python")
        return host

    def pip_installs(self, host, *arguments):
        done = host.run(SETUP / "python_env.sh", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [" ".join(call) for call in host.calls("install")]

    def test_toolkit_without_a_gpu_brings_no_cuda_packages(self):
        host = self.python_host()
        host.stand_in("nvcc")
        installs = self.pip_installs(host, "libtorch")
        self.assertEqual(len(installs), 1)
        self.assertIn("--no-deps torch==", installs[0])
        # Tests need torch for Python, which can't be imported without them.
        installs = self.pip_installs(host)
        self.assertEqual(len(installs), 1)
        self.assertNotIn("--no-deps", installs[0])
        self.assertEqual(self.pip_installs(host, "libtorch"), [])

    def test_gpu_or_a_wish_brings_cuda_packages(self):
        host = self.python_host()
        host.environment["LOCKSTEP_CUDA"] = ""
        host.stand_in("nvidia-smi")
        self.assertNotIn("--no-deps", self.pip_installs(host, "libtorch")[0])
        host = self.python_host()
        host.environment["LOCKSTEP_CUDA"] = "ON"
        self.assertNotIn("--no-deps", self.pip_installs(host, "libtorch")[0])

    def test_root_installs_with_the_environment_of_who_built(self):
        host = self.python_host()
        self.pip_installs(host, "libtorch")
        linked = os.readlink(host.folder / ".venv")
        host.environment["HOME"] = str(host.folder / "root")
        self.assertEqual(self.pip_installs(host, "libtorch"), [])
        self.assertEqual(os.readlink(host.folder / ".venv"), linked)
        # Different pins need a separate environment.
        (host.folder / ".venv").unlink()
        (host.folder / ".venv").symlink_to("/nowhere/py3.9-torch1.0")
        self.assertEqual(len(self.pip_installs(host, "libtorch")), 1)

    def test_tests_are_configured_when_they_are_wanted_and_then_stay(self):
        host = self.python_host()
        self.pip_installs(host)
        (host.folder / "CMakePresets.json").write_text("{}")
        build = host.folder / "build/release"

        def configure(*arguments):
            done = host.run(SETUP / "configure.sh", "release", "release",
                            *arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return [" ".join(call) for call in host.calls("cmake")]

        host.stand_in("cmake", 'mkdir -p build/release\n'
                      'touch build/release/build.ninja\necho "-- LibTorch"')
        self.assertIn("LOCKSTEP_BUILD_TESTS=OFF", configure("program")[0])
        self.assertEqual(configure("program"), [])
        self.assertIn("LOCKSTEP_BUILD_TESTS=ON", configure()[0])
        self.assertEqual(configure("program"), [])
        self.assertEqual(configure(), [])
        # After another choice CMake runs again, and the tests are still there.
        host.environment["LOCKSTEP_CUDA"] = "ON"
        again = configure("program")[0]
        self.assertIn("LOCKSTEP_BUILD_TESTS=ON", again)
        self.assertIn("LOCKSTEP_CUDA=ON", again)
        self.assertTrue(build.exists())
        # CMake refuses the build folder of a clone that was moved.
        cache = build / "CMakeCache.txt"
        cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={host.folder}\n")
        self.assertEqual(configure("program"), [])
        cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/before/it/was/moved\n")
        moved = configure("program")[0]
        self.assertIn("--fresh", moved)
        self.assertIn("LOCKSTEP_BUILD_TESTS=ON", moved)


class Make(unittest.TestCase):

    def steps(self, target):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, text=True,
                              capture_output=True, check=True, timeout=60)
        return done.stdout

    def test_demo_and_install_need_what_the_program_needs(self):
        for target in ("build", "demo", "install"):
            steps = self.steps(target)
            self.assertIn("packages.sh build\n", steps)
            self.assertIn("configure.sh release release program\n", steps)
            self.assertNotIn("ninja.sh release all", steps)
            self.assertNotIn("packages.sh build test", steps)
        self.assertIn("ninja.sh release lockstep/all", self.steps("install"))

    def test_test_needs_all(self):
        steps = self.steps("test")
        self.assertIn("packages.sh build test tools\n", steps)
        self.assertIn("ninja.sh release all\n", steps)


if __name__ == "__main__":
    unittest.main()
