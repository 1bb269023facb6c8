"""Step time of PyTorch itself, on the work that `lockstep compare` measures.

`lockstep compare --pytorch` runs this script. You can also run it yourself. It
prints one line of JSON:

    python pytorch_step_time.py --mode single --model mlp --batch 64 --fused
    torchrun --standalone --nproc_per_node=2 pytorch_step_time.py \
        --mode ddp --model mlp --batch 64 --fused

Modes: `single` is one process with all cores, or with --device on a GPU. `ddp`
is DistributedDataParallel over Gloo, with one process per share of the cores.
`ideal` is like `ddp`, but its processes never communicate. No DDP can be faster.
`fsdp2` is fully_shard() of each block and of the model.

The work is float32 or, with --bf16, autocast; one fixed synthetic batch; SGD
(lr 1e-3, momentum 0.9) or, for language models, AdamW (lr 1e-3). The whole step
is timed: zero_grad, forward, cross entropy, backward, optimizer.

    cnn                 3 x (3x3 convolution to 32, 64, 128 channels, BatchNorm,
                        ReLU, 2x2 max-pool), mean, Linear 10;
                        inputs (N, 3, 32, 32)
    gpt-char            GPT-2 with 4 layers, 4 heads, width 128, 65 tokens;
                        inputs (N, 64); and gpt-nano, gpt2, gpt2-medium, ...
    gpt-wide            GPT-2 with 2 layers, 12 heads, width 768, 50,257 tokens;
                        inputs (N, 256)
    mlp                 6 x (Linear 1024, ReLU), Linear 10; inputs (N, 1024)
    resnet18, resnet34  3x3 stem without max-pool; inputs (N, 3, 32, 32)
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time


def die_with_parent():
    """Ends this process with its parent. torchrun's workers have their own
    sessions, so a launcher that is killed would leave them running.
    """
    PR_SET_PDEATHSIG = 1
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit('the launcher is gone')


die_with_parent()  # before the import of torch, which takes seconds

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CLASSES = 10
BLOCKS = {'resnet18': (2, 2, 2, 2), 'resnet34': (3, 4, 6, 3)}
# Layers, heads, width, context, vocabulary.
GPTS = {'gpt-nano': (3, 3, 48, 64, 65), 'gpt-char': (4, 4, 128, 64, 65),
        'gpt-wide': (2, 12, 768, 256, 50257),
        'gpt2': (12, 12, 768, 1024, 50257),
        'gpt2-medium': (24, 16, 1024, 1024, 50257),
        'gpt2-large': (36, 20, 1280, 1024, 50257),
        'gpt2-xl': (48, 25, 1600, 1024, 50257)}
MODELS = ['cnn', 'mlp', *BLOCKS, *GPTS]


def convolution(channels_in, channels_out, size, stride=1):
    return nn.Conv2d(channels_in, channels_out, size, stride,
                     padding=size // 2, bias=False)


class Residual(nn.Module):
    """ResNet's basic block: two 3x3 convolutions and a shortcut around them."""

    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.first = convolution(channels_in, channels_out, 3, stride)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = convolution(channels_out, channels_out, 3)
        self.second_norm = nn.BatchNorm2d(channels_out)
        self.skip = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.skip = nn.Sequential(
                convolution(channels_in, channels_out, 1, stride),
                nn.BatchNorm2d(channels_out))

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.skip(x))


def make_mlp(width=1024, depth=6):
    hidden = []
    for _ in range(depth):
        hidden += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def make_cnn():
    layers = []
    channels = 3
    for wider in (32, 64, 128):
        layers += [convolution(channels, wider, 3), nn.BatchNorm2d(wider),
                   nn.ReLU(), nn.MaxPool2d(2)]
        channels = wider
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


def make_resnet(blocks):
    layers = [convolution(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for stage, count in enumerate(blocks):
        wider = 64 << stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Residual(channels, wider, stride))
            channels = wider
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """GPT-2's block: attention, and two layers that are four times as wide."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.inner, self.outer = (nn.Linear(width, 4 * width),
                                  nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(n, t, width))
        y = F.gelu(self.inner(self.ln_2(x)), approximate='tanh')
        return x + self.outer(y)


class Gpt(nn.Module):
    """GPT-2 with a last layer that shares the token embedding's weights.

    The weights begin as GPT-2's. With those of nn.Embedding, which are 50 times as
    large, most probabilities of a wide vocabulary underflow, and steps take 10
    times as long.
    """

    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads)
                                      for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            elif name.endswith('bias'):
                nn.init.zeros_(weight)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        x = self.norm(self.blocks(x))
        return F.linear(x, self.tokens.weight).flatten(0, 1)


def make_work(model, samples):
    """Returns the network, its inputs and its targets."""
    if model in GPTS:
        *_, context, vocabulary = GPTS[model]
        ids = torch.randint(0, vocabulary, (2, samples, context))
        return Gpt(*GPTS[model]), ids[0], ids[1].flatten()
    targets = torch.randint(0, CLASSES, (samples,))
    if model == 'mlp':
        return make_mlp(), torch.randn(samples, 1024), targets
    network = make_cnn() if model == 'cnn' else make_resnet(BLOCKS[model])
    return network, torch.randn(samples, 3, 32, 32), targets


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--mode', choices=['single', 'ddp', 'ideal', 'fsdp2'],
                        required=True)
    parser.add_argument('--model', choices=MODELS, required=True)
    parser.add_argument('--batch', type=int, required=True,
                        help='samples, over all processes')
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--warmup', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--threads', type=int,
                        help='intra-op threads of a process; '
                             'default: its share of the cores')
    parser.add_argument('--fused', action='store_true',
                        help='the fused optimizer')
    parser.add_argument('--bucket-view', action='store_true',
                        help="gradients are views of DDP's buckets")
    parser.add_argument('--channels-last', action='store_true')
    parser.add_argument('--bf16', action='store_true', help='autocast')
    parser.add_argument('--backend', default='gloo',
                        help='of ddp and fsdp2: gloo, or lockstep with its wheel '
                             '[gloo]')
    parser.add_argument('--device', default='cpu',
                        help='single: cpu, or a GPU such as cuda:0')
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.batch < 1:
        parser.error('--steps and --batch are at least 1')
    if arguments.device != 'cpu' and arguments.mode != 'single':
        parser.error('--device is for --mode single')
    return arguments


def take_cores(mode, threads, rank, world_size):
    """Sets the intra-op threads; pins a rank to its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    if mode == 'single':
        torch.set_num_threads(threads or len(cores))
        return
    share = max(1, len(cores) // world_size)
    torch.set_num_threads(threads or share)
    os.sched_setaffinity(0, cores[rank * share:(rank + 1) * share] or cores)


def measure(step, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def main():
    args = parse_arguments()
    rank = int(os.environ.get('RANK', 0))
    world_size = int(os.environ.get('WORLD_SIZE', 1))
    torch.manual_seed(args.seed)
    take_cores(args.mode, args.threads, rank, world_size)
    if args.mode != 'single':
        dist.init_process_group(args.backend)

    # If the batch can't be divided evenly, the first ranks take one sample
    # more.
    samples = args.batch // world_size + (rank < args.batch % world_size)
    network, inputs, targets = make_work(args.model, samples)
    device = torch.device(args.device)
    network = network.to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    if args.channels_last and inputs.dim() == 4:
        network = network.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    model = network
    if args.mode == 'ddp':
        model = nn.parallel.DistributedDataParallel(
            network, gradient_as_bucket_view=args.bucket_view)
    if args.mode == 'fsdp2':
        for block in getattr(network, 'blocks', []):
            fully_shard(block)
        fully_shard(network)
    if args.model in GPTS:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3,
                                      fused=args.fused)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9,
                                    fused=args.fused)

    def step():
        # Views of the buckets have to be kept.
        optimizer.zero_grad(set_to_none=not args.bucket_view)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    measure(step, args.warmup)
    if args.mode != 'single':
        dist.barrier()
    times = measure(step, args.steps)
    if rank == 0:
        ordered = sorted(times)
        print(json.dumps({
            **vars(args),
            'world_size': world_size,
            'intra_op_threads': torch.get_num_threads(),
            'torch': torch.__version__,
            'parameters': sum(p.numel() for p in network.parameters()),
            'peak_bytes': (torch.cuda.max_memory_allocated(device)
                           if device.type == 'cuda' else None),
            'median_ms': ordered[len(ordered) // 2] * 1e3,
            'min_ms': ordered[0] * 1e3,
            'step_times_s': times,
        }), flush=True)
    if args.mode != 'single':
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
