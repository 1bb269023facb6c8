"""PyTorch's side of bench/own_modules: the models of models.h in Python.

run.py runs this script. You can also run it yourself. It prints one line of JSON:

    python peer.py --model unet --mode single
    torchrun --standalone --nproc-per-node 2 peer.py --model unet --mode ddp

Modes: `single` is one process with all cores. `ddp` is DistributedDataParallel over
Gloo, with one process per share of the cores. `single-compile` and `ddp-compile` also
compile the model with torch.compile().
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from pytorch_step_time import measure, take_cores  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Transformer(nn.Module):
    """A classifier of sequences of words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.places = nn.Parameter(0.02 * torch.randn(64, 1, 128))
        layer = nn.TransformerEncoderLayer(128, 4, dim_feedforward=512, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, ids):
        return self.head(self.encoder(self.words(ids.t()) + self.places).mean(0))

    @staticmethod
    def batch():
        return torch.randint(1000, (32, 64)), torch.randint(10, (32,))


def twice(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out), nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out), nn.ReLU())


class UNet(nn.Module):
    """Finds the class of each pixel."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = twice(3, 16), twice(16, 32)
        self.bottom = twice(32, 64)
        self.up2 = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.join2 = twice(64, 32)
        self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.join1 = twice(32, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        third = self.bottom(F.max_pool2d(second, 2))
        x = self.join2(torch.cat([second, self.up2(third)], 1))
        x = self.join1(torch.cat([first, self.up1(x)], 1))
        return self.head(x)

    @staticmethod
    def batch():
        return torch.randn(16, 3, 64, 64), torch.randint(4, (16, 64, 64))


class Lstm(nn.Module):
    """A classifier of texts."""

    def __init__(self, sparse):
        super().__init__()
        self.words = nn.Embedding(20_000, 128, sparse=sparse)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids):
        outputs, _ = self.lstm(self.words(ids))
        return self.head(outputs[:, -1])

    @staticmethod
    def batch():
        return torch.randint(20_000, (64, 32)), torch.randint(10, (64,))


MODELS = {"transformer": Transformer, "unet": UNet,
          "lstm": lambda: Lstm(sparse=False), "lstm-sparse": lambda: Lstm(sparse=True)}
MODES = ("single", "single-compile", "ddp", "ddp-compile")


def make_optimizer(model, parameters, fused):
    """Returns the optimizer of a model. Sparse gradients allow no momentum."""
    if model == "transformer":
        return torch.optim.AdamW(parameters, lr=1e-3, fused=fused)
    return torch.optim.SGD(parameters, lr=0.01, fused=fused,
                           momentum=0 if model == "lstm-sparse" else 0.9)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fused", action="store_true", help="the fused optimizer")
    options = parser.parse_args()
    way, _, compiled = options.mode.partition("-")
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    take_cores(way, None, rank, world_size)
    torch.manual_seed(options.seed)
    network = MODELS[options.model]()
    inputs, targets = (part.chunk(world_size)[rank].clone()
                       for part in network.batch())
    model = network
    if way == "ddp":
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(network)
        torch.manual_seed(options.seed + rank)  # for dropout
    if compiled:
        model = torch.compile(model)
    optimizer = make_optimizer(options.model, network.parameters(),
                               options.fused or None)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step.loss = loss.item()

    measure(step, options.warmup)
    if way == "ddp":
        dist.barrier()
    times = measure(step, options.steps)
    if rank == 0:
        print(json.dumps({"model": options.model, "mode": options.mode,
                          "median_s": statistics.median_high(times),
                          "min_s": min(times), "loss": step.loss,
                          "torch": torch.__version__}), flush=True)
    if way == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
