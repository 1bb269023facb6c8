"""Lockstep for Python: a backend for torch.distributed.

`import torch` registers it, so it needs no import:

    torch.distributed.init_process_group("lockstep")
    torch.distributed.init_process_group("cpu:lockstep,cuda:nccl")
"""

import importlib
import os
import pathlib
import sysconfig

__version__ = "0.1.0"


class UnsupportedTorch(ImportError):
    """There is no module for the installed torch."""


def _minor(version):
    """Returns "2.15" for "2.15.0+cpu"."""
    return ".".join(version.split(".")[:2])


def _modules():
    """Returns the versions of torch, as "2.15", and their modules for this Python."""
    folder = pathlib.Path(__file__).parent
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    names = sorted(path.name.removesuffix(suffix)
                   for path in folder.glob(f"_c10d_*{suffix}"))
    return {name.removeprefix("_c10d_").replace("_", "."): name for name in names}


def _module():
    """Imports the module for the installed torch."""
    import torch

    version = _minor(torch.__version__)
    modules = _modules()
    if version not in modules:
        release = torch.__version__.split("+")[0]
        python = sysconfig.get_python_version()
        raise UnsupportedTorch(
            f"[lockstep] this wheel has no backend for the installed torch in Python "
            f"{python}; expected torch {' or '.join(modules) or '(none)'}, got "
            f"{release}; install a torch that it has one for, or build a wheel for "
            f"yours: make wheel TORCH={release}"
        )
    return importlib.import_module(f"lockstep.{modules[version]}")


def _share_buckets():
    """Makes DDP allocate its buckets with the backend, in memory that ranks share.

    torch does this only if the variable is set. With a GPU we leave it alone, because
    it is also about the buckets of NCCL.
    """
    import torch

    if torch.cuda.device_count() == 0:
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


def _create(options, backend_options=None):
    """Makes the backend of one rank: a function for register_backend()."""
    del backend_options
    _share_buckets()
    return _module().make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
    )


def register():
    """Registers the backend, once. `import torch` calls it.

    Call it yourself only if TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set. It never throws,
    because that would break `import torch` for everybody.
    """
    try:
        from torch.distributed import Backend

        if "LOCKSTEP" not in Backend._plugins:
            Backend.register_backend(
                "lockstep", _create, extended_api=True, devices=["cpu"]
            )
    except Exception:  # a torch without torch.distributed
        pass
