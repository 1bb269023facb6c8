"""PyTorch's own DistributedDataParallel, for ddp_test.cc to compare with.

    python pytorch_ddp.py FOLDER SCENARIO...

Trains each scenario in two processes over Gloo, once with SGD and once with
AdamW, and writes to FOLDER, as safetensors:

    batches                     x [rank, batch, sample, feature] and y
    SCENARIO.initial            the state_dict that all ranks start from
    SCENARIO.OPTIMIZER.RANK     the state_dict at the end, and grad.NAME of
                                each parameter with a .grad that is not None

ddp_nets.h and ddp_scenarios.h define the same in C++.
"""

import sys

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    print('missing:', error)
    sys.exit()

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import time
from typing import Any, Callable, Optional

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState, powerSGD_hook)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

RANKS = 2
STEPS = 10
SAMPLES, FEATURES, CLASSES = 8, 48, 4
DEADLINE = datetime.timedelta(seconds=100)


class Mlp(nn.Module):
    """PowerSGD groups layers of the same shape. Here they are separated."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.second = nn.Linear(16, 16)
        self.third = nn.Linear(16, 24)
        self.fourth = nn.Linear(24, 16)
        self.fifth = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x, takes_detour):
        for layer in (self.first, self.second, self.third, self.fourth,
                      self.fifth):
            x = torch.tanh(layer(x))
        return self.last(x)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second_conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x, takes_detour):
        x = torch.relu(self.norm(self.conv(x.view(-1, 3, 4, 4))))
        x = torch.relu(self.second_norm(self.second_conv(x)))
        return self.last(x.mean((2, 3)))


class ChannelsLast(Conv):
    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)


class Branched(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.detour = nn.Linear(16, 16)
        self.never = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x, takes_detour):
        x = torch.tanh(self.first(x))
        if takes_detour:
            x = x + torch.tanh(self.detour(x))
        return self.last(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.inner = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x, takes_detour):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        return self.last(F.linear(x, self.inner.weight.t()))


class Checkpointed(nn.Module):
    """A part of it is computed again in the backward, and used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.inner = nn.Linear(16, 16)
        self.more = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)

    def part(self, x):
        return torch.tanh(self.more(torch.tanh(self.inner(x))))

    def forward(self, x, takes_detour):
        x = torch.tanh(self.first(x))
        for _ in range(2):
            if torch.is_grad_enabled():
                x = checkpoint(self.part, x, use_reentrant=True)
            else:
                x = self.part(x)
        return self.last(x)


@dataclasses.dataclass(frozen=True)
class Scenario:
    net: type = Mlp
    options: dict = dataclasses.field(default_factory=dict)
    hook: Optional[Callable[[], tuple[Any, Callable]]] = None
    micro_batches: int = 1  # per step; under no_sync(), except the last
    forwards: int = 1       # before one backward
    steps: tuple = (STEPS, STEPS)  # for each rank
    join: Optional[dict] = None
    loss_scale: float = 1
    detours: bool = False


def power_sgd(rank, **options):
    return lambda: (PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2,
        min_compression_rate=0.5, orthogonalization_epsilon=1e-8,
        random_seed=7, **options), powerSGD_hook)


SCENARIOS = {
    'mlp': Scenario(),
    'conv': Scenario(Conv),
    'channels_last': Scenario(ChannelsLast),
    'accumulated': Scenario(micro_batches=3),
    'unused': Scenario(Branched, {'find_unused_parameters': True},
                       detours=True),
    'static_unused': Scenario(Branched, {'static_graph': True}),
    'join': Scenario(steps=(10, 6), join={}),
    'join_rank_1_last': Scenario(steps=(6, 10), join={}),
    'join_by_active': Scenario(
        steps=(10, 6), join={'divide_by_initial_world_size': False}),
    'join_conv': Scenario(Conv, steps=(6, 10), join={}),
    'allreduce': Scenario(hook=lambda: (None, default_hooks.allreduce_hook)),
    'fp16': Scenario(hook=lambda: (None, default_hooks.fp16_compress_hook),
                     loss_scale=1024),
    'bf16': Scenario(hook=lambda: (None, default_hooks.bf16_compress_hook)),
    'power_sgd_1': Scenario(hook=power_sgd(1)),
    'power_sgd_4': Scenario(hook=power_sgd(4)),
    'power_sgd_forgetful': Scenario(
        hook=power_sgd(2, warm_start=False, use_error_feedback=False)),
    'power_sgd_conv': Scenario(Conv, hook=power_sgd(1)),
    'copies': Scenario(options={'gradient_as_bucket_view': False}),
    'views': Scenario(options={'gradient_as_bucket_view': True}),
    'small_buckets': Scenario(options={'bucket_cap_mb': 0.001}),
    'small_buckets_views': Scenario(options={
        'bucket_cap_mb': 0.001, 'gradient_as_bucket_view': True}),
    'two_forwards': Scenario(forwards=2),
    'tied': Scenario(Tied),
    'checkpointed': Scenario(Checkpointed, {'static_graph': True}),
}

OPTIMIZERS = {
    'sgd': lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    'adamw': lambda parameters: torch.optim.AdamW(
        parameters, lr=0.01, weight_decay=0.01),
}


def takes_detour(step, rank):
    """Returns true on rank 1 only, then on no rank, then on both, and so on."""
    return (step % 3 == 0 and rank == 1) or step % 3 == 2


def train(scenario, model, optimizer, rank, x, y):
    batch = 0
    for step in range(scenario.steps[rank]):
        detour = scenario.detours and takes_detour(step, rank)
        optimizer.zero_grad()
        for micro in range(1, scenario.micro_batches + 1):
            is_synced = micro == scenario.micro_batches
            with contextlib.nullcontext() if is_synced else model.no_sync():
                loss = 0
                for _ in range(scenario.forwards):
                    output = model(x[batch], detour)
                    loss = loss + F.cross_entropy(output, y[batch])
                    batch += 1
                (loss * scenario.loss_scale).backward()
        for group in optimizer.param_groups:
            for parameter in group['params']:
                if parameter.grad is not None:
                    parameter.grad /= scenario.loss_scale
        optimizer.step()


def run(folder, name, optimizer_name, rank, batches):
    scenario = SCENARIOS[name]
    torch.manual_seed(5)
    net = scenario.net()
    if rank == 0:
        save(folder / f'{name}.initial', net.state_dict())
    model = DistributedDataParallel(net, **scenario.options)
    if scenario.hook:
        model.register_comm_hook(*scenario.hook())
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    joining = contextlib.nullcontext()
    if scenario.join is not None:
        joining = model.join(**scenario.join)
    x, y = batches['x'][rank], batches['y'][rank]
    with joining:
        train(scenario, model, optimizer, rank, x, y)
    # Rank 0's buffers are copied before a forward, not after a step.
    model.eval()
    with torch.no_grad():
        model(x[0], False)
    gradients = {f'grad.{key}': parameter.grad
                 for key, parameter in net.named_parameters()
                 if parameter.grad is not None}
    save(folder / f'{name}.{optimizer_name}.{rank}',
         net.state_dict() | gradients)


def save(path, tensors):
    save_file({key: tensor.detach().clone(
        memory_format=torch.contiguous_format)
        for key, tensor in tensors.items()}, path)


def work(rank, folder, names, batches):
    torch.set_num_threads(1)
    # The name of this machine may not resolve.
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    dist.init_process_group('gloo', init_method=f'file://{folder}/init',
                            rank=rank, world_size=RANKS, timeout=DEADLINE)
    for name in names:
        for optimizer_name in OPTIMIZERS:
            run(folder, name, optimizer_name, rank, batches)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folder', type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument('scenarios', nargs='+', choices=SCENARIOS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    batches = {
        'x': torch.randn(RANKS, 3 * STEPS, SAMPLES, FEATURES),
        'y': torch.randint(CLASSES, (RANKS, 3 * STEPS, SAMPLES)),
    }
    save(arguments.folder / 'batches', batches)
    # A file of an earlier run would be taken for one of this run.
    (arguments.folder / 'init').unlink(missing_ok=True)
    # Forked, so that torch is imported only once.
    workers = mp.start_processes(
        work, (arguments.folder, arguments.scenarios, batches), RANKS,
        join=False, start_method='fork')
    until = time.monotonic() + DEADLINE.total_seconds()
    while not workers.join(max(0, until - time.monotonic())):
        if time.monotonic() >= until:
            for process in workers.processes:
                process.kill()
            sys.exit(f'not done after {DEADLINE}')


if __name__ == '__main__':
    main()
