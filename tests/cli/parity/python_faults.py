"""What a rank sees when another one is killed in a collective, or is late.

usage: python_faults.py killed|late CALL

Run by python_backend_test.cc. The process forks, so there are two ranks and no
launcher, which would end the other rank.
"""

import datetime
import os
import signal
import socket
import sys
import time

CALLS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
         "barrier", "recv", "new_group"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(name, dist, torch):
    ones = torch.ones(1000)
    if name == "all_reduce":
        dist.all_reduce(ones)
    elif name == "broadcast":
        dist.broadcast(ones, 1)
    elif name == "all_gather":
        dist.all_gather([ones.clone(), ones.clone()], ones)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(torch.ones(500), ones)
    elif name == "all_to_all":
        dist.all_to_all_single(ones.clone(), ones)
    elif name == "barrier":
        dist.barrier()
    elif name == "recv":
        dist.recv(ones, 1)
    elif name == "new_group":
        dist.new_group(backend="lockstep", timeout=datetime.timedelta(seconds=3))


def main():
    how, name = sys.argv[1:]
    port = free_port()
    child = os.fork()
    rank = 0 if child else 1
    import torch
    import torch.distributed as dist

    import lockstep

    lockstep.register()
    timeout = datetime.timedelta(seconds=60 if how == "killed" else 1)
    # Rank 0 serves the store, so that it outlives the other.
    dist.init_process_group("lockstep", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=2, timeout=timeout)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(0.5)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    begin = time.monotonic()
    try:
        call(name, dist, torch)
        print("no error")
    except (RuntimeError, dist.DistError) as error:
        print(f"{name} failed after {time.monotonic() - begin:.2f} s: {error}")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
