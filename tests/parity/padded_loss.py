"""The oracle for losses over padded batches: torch's cross_entropy over the
whole batch.

padded_loss.py DIR   trains the net in DIR/net.safetensors on the batch in
                     DIR/batch.safetensors, and prints the loss of each step
"""
import json
import pathlib
import sys

import safetensors.torch
import torch

STEPS = 10


def main(folder):
    net = safetensors.torch.load_file(folder / "net.safetensors")
    batch = safetensors.torch.load_file(folder / "batch.safetensors")
    for parameter in net.values():
        parameter.requires_grad_()
    sgd = torch.optim.SGD(net.values(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        x = torch.nn.functional.embedding(batch["ids"], net["table.weight"])
        x = torch.tanh(torch.nn.functional.linear(
            x, net["hidden.weight"], net["hidden.bias"]))
        logits = torch.nn.functional.linear(
            x, net["out.weight"], net["out.bias"])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["targets"].flatten(),
            weight=batch.get("class_weights"), ignore_index=-100)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    print(json.dumps(losses))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
