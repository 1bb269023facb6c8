"""PyTorch's DDP in a script that survives restarts by torchrun.

It has the model, batch and optimizer of `lockstep train --model mlp`. It saves
a checkpoint every --checkpoint-every steps, and resumes from the newest one.
With --fault-folder, rank 1 once waits for a fault from outside.
"""

import argparse
import datetime
import hashlib
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

RECORD = 1 + 3 * 32 * 32


def load(folder):
    """Returns images in [0, 1], and labels."""
    if folder is None:
        torch.manual_seed(1)
        return torch.rand(5000, RECORD - 1), torch.randint(0, 10, (5000,))
    records = torch.cat([
        torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        for path in sorted(folder.glob("data_batch_*.bin"))]).view(-1, RECORD)
    return records[:, 1:].float().div_(255), records[:, 0].long()


def make_mlp(inputs, width=1024, depth=6):
    sizes = [inputs] + depth * [width]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def save(state, path):
    """Saves `state` so that the file is either complete or missing."""
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def wait_for_fault(folder):
    """Writes the time to DIR/fired, and waits for DIR/done. Does nothing if
    there was a fault before.
    """
    try:
        with open(folder / "fired", "x", encoding="ascii") as file:
            file.write(f"{time.monotonic_ns()} {os.getpid()}\n")
    except FileExistsError:
        return
    while not (folder / "done").exists():
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--checkpoint-every", type=int)
    parser.add_argument("--out-dir", type=pathlib.Path)
    parser.add_argument("--data-dir", type=pathlib.Path)
    # Restarted ranks may wait for each other without success, by default for
    # half an hour.
    parser.add_argument("--timeout", type=int, default=20)
    parser.add_argument("--fault-folder", type=pathlib.Path)
    parser.add_argument("--fault-after", type=int, help="steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", timeout=datetime.timedelta(seconds=options.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = load(options.data_dir)
    torch.manual_seed(0)
    model = DistributedDataParallel(make_mlp(RECORD - 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9,
                                weight_decay=5e-4)
    options.out_dir.mkdir(parents=True, exist_ok=True)
    path = options.out_dir / "checkpoint.pt"
    first = 0
    if path.exists():
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        if rank == 0:
            print(f"resumed from step {first}", flush=True)
    share = options.batch_size // world
    for step in range(first, options.max_steps):
        order = torch.Generator().manual_seed(step)
        chosen = torch.randint(0, len(labels), (options.batch_size,),
                               generator=order)[rank * share:][:share]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        if options.fault_folder and step == options.fault_after:
            dist.barrier()  # The lines of all steps before are printed.
            if rank == 1:
                # Rank 0 waits in the all-reduce meanwhile.
                wait_for_fault(options.fault_folder)
        loss.backward()
        optimizer.step()
        done = step + 1
        if rank == 0:
            print(f"step {done}/{options.max_steps} | loss {loss.item():.4f}",
                  flush=True)
            if done % options.checkpoint_every == 0:
                save({"model": model.module.state_dict(), "step": done,
                      "optimizer": optimizer.state_dict()}, path)
    if rank == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("parameter_sha256", digest.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
