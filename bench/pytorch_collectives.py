"""PyTorch's process beside one rank of `lockstep bench --pytorch`.

Runs collectives of torch.distributed over Gloo, on the same tensors as
`lockstep bench`. It reads one command per line from stdin and writes one line
for each to stdout:

    join HOST PORT                       rank 0 gives port 0, and gets "PORT"
    time COLLECTIVE COUNT DTYPE CALLS    seconds of one call
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def join(host, port, rank, size):
    """Joins the group of all ranks' processes, and returns the store's port."""
    store = dist.TCPStore(host, port, size, is_master=rank == 0,
                          wait_for_workers=False)
    if rank == 0:
        print(store.port, flush=True)
    dist.init_process_group('gloo', store=store, rank=rank, world_size=size)


def make_call(collective, count, dtype, size):
    """Returns a function that runs the collective once, in place where
    `lockstep bench` does."""
    whole = torch.zeros(count, dtype=dtype)
    part = torch.zeros(count // size, dtype=dtype)
    other = torch.zeros(count, dtype=dtype)
    return {
        'allreduce': lambda: dist.all_reduce(whole),
        'allgather': lambda: dist.all_gather_into_tensor(whole, part),
        'reduce-scatter': lambda: dist.reduce_scatter_tensor(part, whole),
        'broadcast': lambda: dist.broadcast(whole, 0),
        'alltoall': lambda: dist.all_to_all_single(other, whole),
    }[collective]


def main():
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    call, prepared = None, None
    for line in sys.stdin:
        command, *words = line.split()
        if command == 'join':
            join(words[0], int(words[1]), rank, size)
            print('joined', flush=True)
            continue
        work, calls = words[:3], int(words[3])
        if work != prepared:
            call = make_call(work[0], int(work[1]), getattr(torch, work[2]),
                             size)
            prepared = work
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        print((time.perf_counter() - begin) / calls, flush=True)


if __name__ == '__main__':
    main()
