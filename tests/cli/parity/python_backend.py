"""Compares Lockstep's backend for torch.distributed with Gloo, call by call.

Run by python_backend_test.cc on each rank. The values are small whole numbers, so every
sum is exact in every type and in every order, and the results must be equal.
"""

import datetime
import itertools
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import lockstep

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8,
         torch.uint8, torch.int32, torch.int64]
OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
SIZES = [0, 1, 3, 1000, 100_003]


class Check:
    """The two groups, and the comparison of what they compute."""

    def __init__(self):
        dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=60))
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")
        self.cases = 0

    def values(self, size, dtype, salt=0):
        """Returns 1, 2 or 3 by place, rank and salt."""
        places = torch.arange(size) + 7 * self.rank + 3 * salt
        return (places % 3 + 1).to(dtype)

    def same(self, what, call):
        """`call(group)` returns tensors, which must be equal over both groups."""
        ours, theirs = call(self.ours), call(self.gloo)
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype)
            differ = (a != b).nonzero().flatten().tolist()[:5]
            assert not differ, (what, self.rank, a.numel(), differ, a[differ], b[differ])
        self.cases += 1


def reductions(check):
    for dtype, op, size in itertools.product(TYPES, OPS, SIZES):
        def all_reduce(group):
            tensor = check.values(size, dtype)
            dist.all_reduce(tensor, op, group)
            return [tensor]

        def reduce(group):
            tensor = check.values(size, dtype)
            dist.reduce(tensor, check.size - 1, op, group)
            return [tensor] if check.rank == check.size - 1 else []

        check.same(("all_reduce", dtype, op, size), all_reduce)
        check.same(("reduce", dtype, op, size), reduce)
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        def bits(group):
            tensor = check.values(1000, torch.int32)
            dist.all_reduce(tensor, op, group)
            return [tensor]

        check.same(("all_reduce", op), bits)


def copies(check):
    n = check.size
    for dtype, size in itertools.product([*TYPES, torch.bool], SIZES[1:]):
        def broadcast(group):
            tensor = check.values(size, dtype)
            dist.broadcast(tensor, n - 1, group)
            return [tensor]

        def all_gather(group):
            outputs = [torch.zeros(size, dtype=dtype) for _ in range(n)]
            dist.all_gather(outputs, check.values(size, dtype), group)
            return outputs

        def gather(group):
            outputs = [torch.zeros(size, dtype=dtype) for _ in range(n)]
            root = check.rank == 0
            dist.gather(check.values(size, dtype), outputs if root else None, 0, group)
            return outputs

        def scatter(group):
            output = torch.zeros(size, dtype=dtype)
            inputs = [check.values(size, dtype, salt) for salt in range(n)]
            dist.scatter(output, inputs if check.rank == 0 else None, 0, group)
            return [output]

        for call in (broadcast, all_gather, gather, scatter):
            check.same((call.__name__, dtype, size), call)


def single_tensors(check):
    n = check.size
    for dtype, size in itertools.product([torch.float32, torch.int64], SIZES[1:]):
        def all_gather_into_tensor(group):
            output = torch.zeros(n * size, dtype=dtype)
            dist.all_gather_into_tensor(output, check.values(size, dtype), group)
            return [output]

        def reduce_scatter_tensor(group):
            output = torch.zeros(size, dtype=dtype)
            dist.reduce_scatter_tensor(output, check.values(n * size, dtype),
                                       group=group)
            return [output]

        def all_to_all_single(group):
            output = torch.zeros(n * size, dtype=dtype)
            dist.all_to_all_single(output, check.values(n * size, dtype), group=group)
            return [output]

        for call in (all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single):
            check.same((call.__name__, dtype, size), call)


def uneven_all_to_all(check):
    n, rank = check.size, check.rank

    def call(group):
        sent = [(rank + peer) % 3 + 1 for peer in range(n)]
        received = [(peer + rank) % 3 + 1 for peer in range(n)]
        output = torch.zeros(sum(received))
        dist.all_to_all_single(output, check.values(sum(sent), torch.float32),
                               received, sent, group=group)
        return [output]

    check.same("uneven all_to_all_single", call)


def messages(check):
    n, rank = check.size, check.rank
    if n == 1:
        return

    def batch(group):
        tensor, received = check.values(1000, torch.float32), torch.zeros(1000)
        calls = [dist.P2POp(dist.isend, tensor, (rank + 1) % n, group),
                 dist.P2POp(dist.irecv, received, (rank - 1) % n, group)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return [received]

    def from_any(group):
        if rank != 0:
            dist.send(check.values(10, torch.float32), 0, group, tag=5)
            return []
        seen = {}
        for _ in range(n - 1):
            tensor = torch.zeros(10)
            seen[dist.recv(tensor, None, group, tag=5)] = tensor
        return [seen[source] for source in sorted(seen)]

    check.same("batch_isend_irecv", batch)
    check.same("recv from any", from_any)


def asynchronous(check):
    def call(group):
        tensors = [check.values(100, torch.float32, salt) for salt in range(20)]
        works = [dist.all_reduce(tensor, group=group, async_op=True)
                 for tensor in tensors]
        for work in works:
            work.wait()
        return tensors

    check.same("20 asynchronous all_reduce", call)

    tensor = check.values(100, torch.float32)
    future = dist.all_reduce(tensor, group=check.ours, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert torch.equal(doubled, tensor * 2)


def uneven_reduce_scatter(check):
    n, rank = check.size, check.rank
    for dtype, is_async in itertools.product([torch.float32, torch.int64], [False, True]):
        def call(group):
            output = torch.zeros(3 * rank, dtype=dtype)
            inputs = [check.values(3 * peer, dtype, peer) for peer in range(n)]
            work = dist.reduce_scatter(output, inputs, group=group, async_op=is_async)
            if is_async:
                work.wait()
            return [output, *inputs]

        check.same(("uneven reduce_scatter", dtype, is_async), call)


def coalesced(check):
    def call(group):
        tensors = [check.values(50, torch.float32, salt) for salt in range(5)]
        with dist._coalescing_manager(group=group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        return tensors

    ours = call(check.ours)
    for salt, tensor in enumerate(ours):
        expected = check.values(50, torch.float32, salt)
        dist.all_reduce(expected, group=check.gloo)
        assert torch.equal(tensor, expected)


def sparse(check):
    def call(group):
        indices = torch.tensor([[check.rank, check.rank + 1]])
        values = check.values(2, torch.float32)
        tensor = torch.sparse_coo_tensor(indices, values, (check.size + 2,))
        dist.all_reduce(tensor, group=group)
        return [tensor.to_dense()]

    check.same("sparse all_reduce", call)


def objects(check):
    n, rank = check.size, check.rank
    everything = [None] * n
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert [item["rank"] for item in everything] == list(range(n))
    first = [("root", 1) if rank == 0 else None]
    dist.broadcast_object_list(first, 0)
    assert first == [("root", 1)]
    mine = [None]
    dist.scatter_object_list(mine, list(range(n)) if rank == 0 else None, 0)
    assert mine == [rank]


def groups(check):
    n, rank = check.size, check.rank
    odd = list(range(1, n, 2))
    group = dist.new_group(odd, backend="lockstep") if odd else None
    if rank in odd:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(odd)
    both = dist.new_group(backend="cpu:lockstep")
    dist.barrier(both)
    # dist.monitored_barrier() of torch 2.11 takes Gloo's groups only.
    check.ours.monitored_barrier(datetime.timedelta(seconds=60), wait_all_ranks=True)
    for _ in range(10):
        group = dist.new_group(backend="lockstep")
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            # The other rank may still connect its Gloo group of the detail mode.
            dist.barrier(group)
        dist.destroy_process_group(group)


def split_groups(check):
    """The halves of the world, in the order of their lists, and rank 0 without others."""
    n, rank = check.size, check.rank
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < (2, 15) or dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return
    backwards = [list(reversed(range(n // 2, n))), list(range(n // 2))]
    for split in ([part for part in backwards if part], [[0]]):
        def call(parent):
            part = dist.split_group(parent, split)
            if part is None or part == dist.GroupMember.NON_GROUP_MEMBER:
                return []
            summed, first = check.values(1000, torch.float32), torch.tensor([rank])
            dist.all_reduce(summed, group=part)
            dist.broadcast(first, group=part, group_src=0)
            where = torch.tensor([part.rank(), part.size()])
            dist.destroy_process_group(part)
            return [summed, first, where]

        check.same(("split_group", split), call)


def gradients_of_each_type(check):
    """Each type of parameter, in buckets that ranks share."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return  # as in ddp_losses()
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16,
             torch.complex64, torch.complex128]

    def train(group):
        torch.manual_seed(1)
        model = torch.nn.Module()
        model.all = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randint(1, 4, (1003,)).to(dtype)) for dtype in types)
        model.forward = lambda x: sum(
            torch.view_as_real(p * p).sum() * x if p.is_complex() else (p * x).sum()
            for p in model.parameters())
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        for step in range(2):
            ddp.zero_grad()
            # The average is exact, too.
            ddp(torch.tensor(float(check.size * (check.rank + step)))).backward()
        return [parameter.grad for parameter in model.parameters()]

    check.same("gradients of each type", train)


def forked_children(check):
    """A child of fork() drops its copy of a group and zeroes its copy of gradients."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return  # as in ddp_losses()

    def call(group):
        world = dist.new_group(backend=dist.get_backend(group))
        torch.manual_seed(1)
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 30),
                                                        process_group=world)
        ddp(torch.ones(4, 20)).sum().backward()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            ddp.zero_grad(set_to_none=False)
            del ddp
            dist.destroy_process_group(world)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status == 0, status
        ones = torch.ones(3)
        dist.all_reduce(ones, group=world)
        grads = [parameter.grad.clone() for parameter in ddp.parameters()]
        dist.barrier(world)
        del ddp
        dist.destroy_process_group(world)
        return [ones, *grads]

    check.same("after a fork", call)


def ddp_losses(check):
    """DDP over both backends has the same losses, but for the order of the sums.

    Each of 10 steps has an error of about 1e-7 in the gradients.
    """
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return  # torch 2.15 crashes when it makes DDP, over Gloo, too

    def train(group):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(),
                                    torch.nn.Linear(300, 5))
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
        torch.manual_seed(check.rank)
        losses = []
        for _ in range(10):
            loss = ddp(torch.randn(8, 20)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    ours, theirs = train(check.ours), train(check.gloo)
    assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)


def refusals(check):
    if check.size == 1:
        return
    for call, words in [
        (lambda: dist.all_reduce(torch.ones(2), group=check.ours, op=ReduceOp.BAND),
         ["band", "Float"]),
        (lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2)),
         ["all_gather_into_tensor"]),
    ]:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError("no error")


def main():
    lockstep.register()
    check = Check()
    for part in (reductions, copies, single_tensors, uneven_all_to_all, messages,
                 asynchronous, uneven_reduce_scatter, coalesced, sparse, objects,
                 groups, split_groups, gradients_of_each_type, forked_children,
                 ddp_losses, refusals):
        part(check)
        dist.barrier()
    assert dist.get_backend(check.ours) == "lockstep"
    if check.rank == 0:
        print(f"{check.cases} calls are those of Gloo", flush=True)
    if os.environ.get("WITHOUT_DESTROY") != "1":
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
