"""Trains over Lockstep's backend, as a user of the wheel does."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("lockstep")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
losses = []
for _ in range(10):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
weights = [None] * dist.get_world_size()
dist.all_gather_object(weights, net.state_dict())
assert all(torch.equal(weights[0][name], other[name])
           for other in weights for name in other)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks over {dist.get_backend()}")
dist.destroy_process_group()
