#!/usr/bin/env python3
"""Checks that a folder of lockstep/ includes only folders above it."""

import re

from sources import COMPONENTS, LAYERS, cpp_files, layer_of, lines_of, run

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
# These must build and run without LibTorch, also under sanitizers.
TORCH_FREE = ("lockstep/base/", "lockstep/control/", "lockstep/shm/",
              "lockstep/transport/",
              "lockstep/monitor/", "lockstep/store/", "lockstep/tcp/",
              "lockstep/launch/", "lockstep/cli/start/",
              "lockstep/tools/top/")
UMBRELLAS = ("lockstep/lockstep.h", "lockstep/core.h", "lockstep/lm.h")


def check_include(path, name, is_quoted):
    """Returns what is wrong with `path` including `name`, or None."""
    layer = layer_of(path.parts[1:])
    if TORCH.match(name) and path.as_posix().startswith(TORCH_FREE):
        return f"{path.parent} is free of torch, but this includes <{name}>"
    if not name.startswith("lockstep/"):
        if is_quoted:
            return f'"{name}" is no path from the root: "lockstep/..."'
        return None
    if name in UMBRELLAS:
        return "the umbrella headers are for users, not for a layer"
    included = layer_of(name.split("/")[1:])
    if included is None:
        return f'"{name}" is in no known layer'
    component = included.split("/")[0]
    if component in COMPONENTS and layer.split("/")[0] != component:
        return (f"{layer}/ includes {component}/, a component that a build can "
                "leave out")
    if LAYERS.index(included) > LAYERS.index(layer):
        return f"{layer}/ includes {included}/, which is below it"
    return None


def check(root):
    """Checks that a folder of lockstep/ includes only folders above it."""
    findings = []
    for path in cpp_files(root, ["lockstep"]):
        if path.as_posix() in UMBRELLAS:
            continue
        if layer_of(path.parts[1:]) is None:
            findings.append(f"{path}: is in no layer ({', '.join(LAYERS)})")
            continue
        for number, line in enumerate(lines_of(root, path), 1):
            match = INCLUDE.match(line)
            problem = match and check_include(
                path, match.group(2), match.group(1) == '"')
            if problem:
                findings.append(f"{path}:{number}: {problem}")
    return findings


if __name__ == "__main__":
    run(check, "layers")
