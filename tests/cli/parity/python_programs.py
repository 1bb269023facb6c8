"""Runs programs as users of PyTorch write them, over Gloo and over Lockstep.

usage: python_programs.py PROGRAM...

Runs on the ranks of a launcher. A program returns what it computed, such as its losses.
Over both backends, that must be the same.
"""

import os
import pickle
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn

import lockstep

warnings.filterwarnings("ignore")
lockstep.register()  # without an installed package, nothing else does
RANK = int(os.environ["RANK"])
STEPS = 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    inputs = torch.randn(8, 16, generator=generator)
    return inputs, torch.randint(0, 4, (8,), generator=generator)


def train(model, optimizer, batches=None):
    losses = []
    for inputs, targets in batches or map(batch, range(STEPS)):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def wrapped():
    return nn.parallel.DistributedDataParallel(net())


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    return losses, [p.full_tensor().sum().item() for p in model.parameters()]


def zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = wrapped()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return losses


def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder)
    saved, loaded = fully_shard(net()), fully_shard(net())
    losses = train(saved, torch.optim.SGD(saved.parameters(), lr=0.1))
    dcp.save({"model": saved.state_dict()}, checkpoint_id=folder[0])
    state = {"model": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    for name, value in saved.state_dict().items():
        assert torch.equal(value.full_tensor(), state["model"][name].full_tensor())
    return losses


def compiled():
    model = torch.compile(wrapped(), backend="aot_eager")
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def forked_workers():
    samples = [batch(step) for step in range(STEPS)]
    loader = torch.utils.data.DataLoader(
        samples, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [train(model, optimizer, loader) for _ in range(2)]


def sparse_gradients():
    torch.manual_seed(0)
    table = nn.Embedding(50, 8, sparse=True)
    model = nn.parallel.DistributedDataParallel(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + RANK)
        ids = torch.randint(0, 50, (6,), generator=generator)
        optimizer.zero_grad()
        model(ids).square().sum().backward()
        optimizer.step()
    return table.weight.detach().sum(dim=0).tolist()


def many_groups():
    """Makes and drops groups, and returns whether they leave nothing behind."""

    def used():
        maps = open("/proc/self/maps").read().count("\n")
        threads = len(os.listdir("/proc/self/task"))
        return len(os.listdir("/proc/self/fd")), threads, maps

    def make_and_drop(count):
        for _ in range(count):
            group = dist.new_group()
            dist.all_reduce(torch.ones(3), group=group)
            dist.destroy_process_group(group)

    make_and_drop(20)
    before = used()
    make_and_drop(int(os.environ.get("GROUPS", "100")))
    files, threads, maps = (now - then for now, then in zip(used(), before))
    # The allocator may keep some memory, in a few mappings.
    # A thread of an earlier program may end in the meantime.
    assert files == 0 and threads <= 0 and maps < 20, (files, threads, maps)


def two_plugins():
    """A group of another plug-in beside this one."""

    def create(store, rank, size, timeout):
        # The store has the addresses of the group that was made over Gloo.
        store = dist.PrefixStore(dist.get_backend(), store)
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    if "OTHER" not in dist.Backend._plugins:
        dist.Backend.register_backend("other", create, devices=["cpu"])
    other = dist.new_group(backend="other")
    sums = []
    for group in (None, other, None):
        tensor = torch.full((3,), RANK + 1.0)
        dist.all_reduce(tensor, group=group)
        sums += tensor.tolist()
    dist.destroy_process_group(other)
    return sums


def flight_recorder():
    """Returns the last collectives that PyTorch's flight recorder has noted."""
    if not hasattr(torch._C._distributed_c10d, "FlightRecorderHook"):
        return "this torch records its own backends only"
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(2, 3), 0)
    dist.barrier()
    dump = torch._C._distributed_c10d._dump_fr_trace(backend=dist.get_backend())
    entries = pickle.loads(dump)["entries"][-3:]
    return [
        (entry["profiling_name"].split(":")[1], entry["input_sizes"])
        for entry in entries[:2]
    ]


def groups_made_again():
    """The default group is destroyed and made again, with the same store."""
    if dist.get_backend() == "gloo":
        return None  # it may connect to the addresses of the old group
    sums = []
    for _ in range(10):
        dist.destroy_process_group()
        dist.init_process_group("lockstep")
        tensor = torch.full((3,), RANK + 1.0)
        dist.all_reduce(tensor)
        sums += tensor.tolist()
    assert set(sums) == {3.0}, sums
    return None


def is_shared(tensor):
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if begin <= tensor.data_ptr() < end:
                return "memfd:lockstep" in line
    return False


def buckets_in_shared_memory():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    is_ours = dist.get_backend() == "lockstep"
    default = os.environ.get("DDP_DISABLE_COMM_MEM")
    if is_ours and torch.cuda.device_count() == 0:
        assert default == "0", default
    losses = []
    for disabled in ("0", "1"):
        os.environ["DDP_DISABLE_COMM_MEM"] = disabled
        shared = set()

        def hook(state, bucket):
            shared.add(is_shared(bucket.buffer()))
            return default_hooks.allreduce_hook(state, bucket)

        model = wrapped()
        model.register_comm_hook(None, hook)
        losses += train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert shared == {is_ours and disabled == "0"}, shared
    if default is None:
        del os.environ["DDP_DISABLE_COMM_MEM"]
    else:
        os.environ["DDP_DISABLE_COMM_MEM"] = default
    return losses


def accelerate():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    # It uses the group that exists. It would make one over Gloo only.
    accelerator = Accelerator(cpu=True)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = [batch(step) for step in range(STEPS)]
    inputs = torch.cat([sample[0] for sample in samples])
    targets = torch.cat([sample[1] for sample in samples])
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=8
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()[None]).tolist())
    return losses


def trainer():
    from accelerate.state import AcceleratorState
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=40, n_positions=16,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(7)
    texts = torch.randint(0, 40, (32, 16), generator=generator)
    samples = [{"input_ids": text, "labels": text} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, use_cpu=True, max_steps=STEPS,
            per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True, seed=0,
        )
        trained = Trainer(model=model, args=arguments, train_dataset=samples)
        trained.train()
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def lightning(backend):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    losses = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, sample, index):
            loss = nn.functional.cross_entropy(self.net(sample[0]), sample[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_end(self):
            assert dist.get_backend() == backend

    samples = [batch(step) for step in range(STEPS)]
    loader = torch.utils.data.DataLoader(samples, batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_epochs=1,
            strategy=DDPStrategy(process_group_backend=backend), logger=False,
            enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False,
            default_root_dir=folder,
        ).fit(Module(), loader)
    return losses


def run_all(programs, backend):
    results = {}
    for program in programs:
        if program == "lightning":  # which makes the group itself
            results[program] = lightning(backend)
            continue
        if not dist.is_initialized():
            dist.init_process_group(backend)
        results[program] = globals()[program]()
    if dist.is_initialized():
        dist.destroy_process_group()
    return results


def main():
    programs = sys.argv[1:]
    expected, found = (run_all(programs, name) for name in ("gloo", "lockstep"))
    for program in programs:
        same = found[program] == expected[program]
        assert same, f"{program}: {found[program]}, over Gloo {expected[program]}"
    if RANK == 0:
        print(f"{len(programs)} programs compute what they compute over Gloo")


if __name__ == "__main__":
    main()
