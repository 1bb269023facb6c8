"""Runs the backend's module for this Python, which is not the one of the build.

usage: other_python.py PACKAGES TORCH_LIBRARIES

PACKAGES is the folder with the package lockstep. If this Python has no torch that
fits, the module is only imported, with the libraries in TORCH_LIBRARIES. Then it finds
all its symbols, in Python and in LibTorch, but it can't make a group.
"""

import ctypes
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import sysconfig

packages, libraries = sys.argv[1:]
sys.path.insert(0, packages)
import lockstep  # noqa: E402

python = sysconfig.get_python_version()
try:
    torch = lockstep._minor(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    torch = "(none)"
modules = lockstep._modules()
if torch in modules:
    script = pathlib.Path(__file__).with_name("python_backend.py")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", "2", script],
        env={**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}, check=True)
else:
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(os.path.join(libraries, name), mode=ctypes.RTLD_GLOBAL)
    [(expected, name)] = modules.items()
    module = importlib.import_module(f"lockstep.{name}")
    assert callable(module.make_backend)
    # tools/run_tests.sh repeats the line after this word.
    print(f"{__file__}: Skipped\nPython {python} has torch {torch}, not {expected}: "
          f"its module was imported, but not run")
