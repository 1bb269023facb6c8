"""The files that pages assume, and the commands that don't run as written."""

import json
import pathlib
import random
import struct
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Reasons why a command does not run, or not as written.
BUILDS = "builds: what runs this test has done it"
SCREEN = "a screen at a terminal: tests/tools/cli/top_test.cc"
NETWORK = "a network"
NODES = "a second machine"
NO_TOOL = "a program that no package of ours brings"
MINUTES = "minutes"
A_GPU = "a GPU"
NO_COMMAND = "a line of output"


def text(path, _):
    """Writes a text with the letters of every prompt."""
    path.write_text((ROOT / "README.md").read_text(encoding="utf-8") * 8)


def program(name):
    """Returns a function that copies a program of examples/, as built for the
    tests.
    """
    return lambda path, programs: path.symlink_to(pathlib.Path(programs, name))


def png(path, _):
    """Writes an image of 16 x 16 pixels of noise."""
    def chunk(kind, content):
        return (struct.pack(">I", len(content)) + kind + content +
                struct.pack(">I", zlib.crc32(kind + content)))

    rows = b"".join(b"\0" + random.Random(row).randbytes(48) for row in range(16))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" +
                     chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def idx(*sizes):
    """Writes a file of MNIST: bytes below ten, which are valid labels."""
    def write(path, _):
        count = 1
        for size in sizes:
            count *= size
        path.write_bytes(struct.pack(f">I{len(sizes)}I", 0x800 + len(sizes), *sizes) +
                         bytes(i % 10 for i in range(count)))
    return write


def tokenizer(path, _):
    """Writes a tokenizer like GPT-2's, with a token for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    letters = {**{byte: chr(byte) for byte in plain},
               **{byte: chr(256 + i) for i, byte in enumerate(rest)}}
    path.write_text(json.dumps({
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                          "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {letters[byte]: byte
                                           for byte in range(256)},
                  "merges": []}}))


SH = "#!/bin/sh\nexit 0\n"
IMAGES = {f"photos/{split}/{name}/{number}.png": png
          for split in ("train", "val") for name in ("cat", "dog")
          for number in range(32)}

# The files in the folder in which a page's commands run: a text, or a function
# that gets the path and the folder of the programs.
FILES = {
    "README.md": {"program": SH},
    "docs/checkpoints.md": {"tinyshakespeare.txt": text},
    "docs/commands.md": {"book.txt": text, "program": SH},
    "docs/image-data.md": {
        **IMAGES,
        "data/mnist/train-images-idx3-ubyte": idx(256, 28, 28),
        "data/mnist/train-labels-idx1-ubyte": idx(256),
        "data/mnist/t10k-images-idx3-ubyte": idx(64, 28, 28),
        "data/mnist/t10k-labels-idx1-ubyte": idx(64)},
    "docs/language-models.md": {
        "tinyshakespeare.txt": text, "a.txt": text, "b.txt": text,
        "gpt2/tokenizer.json": tokenizer},
    "docs/launcher.md": {"train": SH, "train.py": "",
                         "package/__init__.py": "", "package/train.py": ""},
    "docs/own-model.md": {"own_model": program("own_model")},
}

# For every page: a part of a command, its replacement (None: the command is not
# run), and what the command would need.
ON_EVERY_PAGE = [("make ", None, BUILDS)]

# The same for individual pages.
SUBSTITUTIONS = {
    "README.md": [
        ("lockstep compare --model", "lockstep compare --rounds 2 --steps 5 --model",
         MINUTES),
    ],
    "docs/commands.md": [
        ("lockstep compare --model", "lockstep compare --rounds 2 --steps 5 --model",
         MINUTES),
        ("--max-steps 2000", "--max-steps 20", MINUTES),
        ("--sizes 4K:64M", "--sizes 4K:4M", MINUTES),
        ("lockstep data", None, NETWORK),
        ("lockstep top\n", None, SCREEN),
    ],
    "docs/checkpoints.md": [
        ("--max-steps 500", "--max-steps 3 --no-eval", MINUTES),
        ("--checkpoint-every 20", "--checkpoint-every 2", MINUTES),
        ("--max-steps 20", "--max-steps 2 --no-eval", MINUTES),
        ("--init-from saved", "--init-from hf",
         "PyTorch: tests/lm/cli/parity/distributed_checkpoint_test.cc"),
    ],
    "docs/collectives.md": [
        ("--sizes 4K:256M", "--sizes 4K:4M", MINUTES),
        ("bench/allreduce_vs_mpi.py", None, MINUTES),
    ],
    "docs/image-data.md": [
        ("lockstep data", None, NETWORK),
        ("--model resnet18", "--model resnet18 --max-steps 1", MINUTES),
    ],
    "docs/language-models.md": [
        ("--max-steps 2000", "--max-steps 20", MINUTES),
        ("--warmup-steps 100", "--warmup-steps 10", MINUTES),
        ("--init-from hf", "--init-from hf --max-steps 2", MINUTES),
        ("--model gpt2", "--model gpt-char", MINUTES),
    ],
    "docs/launcher.md": [
        ("--nproc-per-node gpu", "--nproc-per-node 2", A_GPU),
        ("--max-steps 500", "--max-steps 3 --no-eval", MINUTES),
        ("--node-rank", None, NODES),
        ("node1:29500", None, NODES),
        ("sbatch", None, "a cluster: tests/comm/slurm_test.cc"),
        ("mpirun -np 8", None, NODES),
        ("docker", None, NO_TOOL),
        ("kubectl", None, NO_TOOL),
    ],
    "docs/reports.md": [
        ("--model resnet18", "--model mlp --max-steps 3", MINUTES),
        ("lockstep top\n", None, SCREEN),
        ("lockstep top runs/first", None, SCREEN),
        ("lockstep top - ", None, NO_COMMAND),
        ("--metrics", None, "a command that serves until it is ended: "
                            "tests/tools/cli/top_test.cc"),
    ],
    "docs/testing.md": [
        ("cuda:0,cuda:0", "cpu:0,cpu:0 --max-steps 3 --no-eval", A_GPU),
    ],
}

# By page, commands that end with an exit code other than 0, as the page says.
EXIT_CODES = {
    "docs/links.md": {"lockstep check --devices 2xcpu": 1,
                      "--bad-links ignore": 70},
}
