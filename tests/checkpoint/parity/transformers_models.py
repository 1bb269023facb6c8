"""The oracle of Hugging Face folders: transformers itself.

make DIR     writes a GPT-2 and Llamas with random weights, and for each the
             logits of some ids
check DIR    prints, by name, the greatest difference between the logits in
             DIR/<name>.safetensors and those of the model in DIR/<name>
train DIR    trains the GPT-2 in DIR/model on DIR/batches.safetensors as
             DIR/options.json says, and prints the loss of each step
"""
import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers

transformers.logging.set_verbosity_error()


def spread(model):
    """Makes the weights large enough that a wrong one is noticed."""
    for name, parameter in model.named_parameters():
        if "ln_" in name or "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1 if parameter.ndim == 1 and
                                  "bias" not in name else 0, 0.2)
        else:
            torch.nn.init.normal_(parameter, 0, 0.15)


def gpt2(**changes):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{
        "vocab_size": 83, "n_positions": 32, "n_embd": 48, "n_layer": 3,
        "n_head": 3, **changes}))


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        "vocab_size": 83, "max_position_embeddings": 32, "hidden_size": 48,
        "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, **changes}))


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits.contiguous()


def make(folder):
    torch.manual_seed(7)
    models = {
        "gpt2": gpt2(),
        "gpt2_untied": gpt2(tie_word_embeddings=False, n_inner=100),
        "llama": llama(),
        "llama_tied": llama(tie_word_embeddings=True, num_key_value_heads=6,
                            rms_norm_eps=1e-5),
    }
    for name, model in models.items():
        spread(model)
        # The last model is in several files.
        limit = "20KB" if name == "llama_tied" else "1GB"
        model.save_pretrained(folder / name, max_shard_size=limit)
        ids = torch.randint(83, (2, 32))
        safetensors.torch.save_file(
            {"ids": ids, "logits": logits_of(model, ids)},
            folder / f"{name}.safetensors")
    # The config says "tied", but the file has a head that differs from the
    # table.
    for name in ("gpt2", "llama"):
        own = name + "_own_head"
        if name == "gpt2":
            model = gpt2(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        else:
            model = llama(tie_word_embeddings=True)
        spread(model)
        model.save_pretrained(folder / own)
        path = folder / own / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        tensors["lm_head.weight"] = torch.randn(83, 48) * 0.15
        safetensors.torch.save_file(tensors, path, {"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / own, dtype=torch.float32)
        assert not model.lm_head.weight.equal(
            model.get_input_embeddings().weight)
        ids = torch.randint(83, (2, 32))
        safetensors.torch.save_file(
            {"ids": ids, "logits": logits_of(model, ids)},
            folder / f"{own}.safetensors")
    # The first GPT-2 files have no prefix for the model inside the head.
    base = {k.removeprefix("transformer."): v
            for k, v in models["gpt2"].transformer.state_dict().items()}
    base["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    (folder / "gpt2_base").mkdir()
    safetensors.torch.save_file(base, folder / "gpt2_base/model.safetensors")
    (folder / "gpt2_base/config.json").write_text(
        (folder / "gpt2/config.json").read_text())


def check(folder):
    differences = {}
    for path in folder.glob("*.safetensors"):
        expected = safetensors.torch.load_file(path)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.with_suffix(""), dtype=torch.float32)
        difference = logits_of(model, expected["ids"]) - expected["logits"]
        differences[path.stem] = difference.abs().max().item()
    print(json.dumps(differences))


def train(folder):
    options = json.loads((folder / "options.json").read_text())
    batches = safetensors.torch.load_file(folder / "batches.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float32).train()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1],
         "weight_decay": options["weight_decay"]},
        {"params": [p for p in model.parameters() if p.ndim == 1],
         "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options["lr"],
                                  betas=(0.9, options["beta2"]))
    for inputs, targets in zip(batches["inputs"], batches["targets"]):
        optimizer.zero_grad()
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                 targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        print(f"{loss.item():.8f}")


if __name__ == "__main__":
    globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
