"""PyTorch's side of distributed_checkpoint_test.cc.

distributed_checkpoint.py DIR starts two ranks over Gloo. They read the folders
that Lockstep wrote, and write others:

exported, files, step  are read into plain modules and into modules that
                       fully_shard() divides
changed                other weights, in one file
consolidated, parts,   the same weights, as torch.distributed.checkpoint writes
plain                  them from modules that are divided
"""
import pathlib
import sys

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

RANKS = 2


def make_module(tensors):
    """Returns a module with parameters of these names and shapes."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        module = root
        *path, last = name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(
            last, torch.nn.Parameter(torch.full_like(tensor, -7)))
    return root


def shard(module):
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    return module


def read(folder, tensors):
    for module in make_module(tensors), shard(make_module(tensors)):
        state = module.state_dict()
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder))
        for name, value in state.items():
            if hasattr(value, "full_tensor"):
                value = value.full_tensor()
            assert value.equal(tensors[name]), (folder, name)


def write(folder, tensors):
    if dist.get_rank() == 0:
        (folder / "changed").mkdir()
        safetensors.torch.save_file(tensors,
                                    folder / "changed/model.safetensors")
    module = shard(make_module(tensors))
    state = module.state_dict()
    for name, value in state.items():
        part = distribute_tensor(
            tensors[name], value.device_mesh, value.placements)
        value.to_local().copy_(part.to_local())
    files = {name: 1 + i % 2 for i, name in enumerate(state)}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(
        folder / "consolidated", save_distributed=True,
        enable_consolidation=True, fqn_to_index_mapping=files))
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(
        folder / "parts", save_distributed=True))
    dcp.save(state, checkpoint_id=folder / "plain")


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=RANKS)
    tensors = safetensors.torch.load_file(
        folder / "exported/model.safetensors")
    for name in "exported", "files", "step":
        read(folder / name, tensors)
    changed = {name: value + 1 for name, value in tensors.items()}
    # The state dict of a tied model in PyTorch has both.
    changed["lm_head.weight"] = changed["transformer.wte.weight"].clone()
    write(folder, changed)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(
        run_rank, (pathlib.Path(sys.argv[1]),), nprocs=RANKS,
        start_method="fork")
