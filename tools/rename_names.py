#!/usr/bin/env python3
"""Renames identifiers to the field's words, all over the sources and documents.

    tools/rename_names.py

Each rule is a whole identifier. A rule of a file goes before one of all files.
The script is run once, in the commit that contains it.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUFFIXES = {".h", ".cc", ".cu", ".py", ".md", ".dox", ".txt", ".cmake"}

# In all files.
EVERYWHERE = {
    # Limits: the largest and the smallest that is allowed.
    "kMost": "kMax",
    "kLeast": "kMin",
    "kFewest": "kMin",
    "kMostOfASize": "kMaxModelSize",
    "kMostOfARank": "kMaxConnectionsOfRank",
    "kMostOfAByte": "kMaxExpansion",
    "kLeastOfLane": "kMinLaneWidth",
    "kMostAnnounced": "kMaxAnnouncedBytes",
    "kMostReport": "kMaxReports",
    "kMostText": "kMaxText",
    "kMost16BitTokens": "kMax16BitTokens",
    # What belongs to one of many.
    "of_all_tests": "shared_images",
    "of_batch": "batch_tensors",
    "of_bias": "grad_bias",
    "of_weight": "grad_weight",
    "of_x": "grad_x",
    "of_bytes": "tensor_with_bytes",
    "of_caller": "caller_stream",
    "of_channels": "per_channel",
    "of_classes": "class_dim",
    "of_cnn": "cnn_plan",
    "of_mlp": "mlp_plan",
    "of_columns": "column_gradient",
    "of_core": "ranks_per_core",
    "of_cpu": "cpu_folder",
    "of_sim": "sim_folder",
    "of_delta": "delta_type",
    "of_normed": "normed_type",
    "of_device": "device_value",
    "of_dp": "dp_pairs",
    "of_each_class": "bytes_by_class",
    "of_file": "file_error",
    "of_system": "system_failure",
    "of_first": "first_bytes",
    "of_fraction": "fraction_json",
    "of_future": "future_error",
    "of_gradients": "gradient_mismatch",
    "of_images": "image_errors",
    "of_input": "input_strides",
    "of_target": "target_strides",
    "of_inputs": "input_lists",
    "of_ints": "int_tensors",
    "of_kib": "tensor_with_kib",
    "of_kind": "example",
    "of_last": "last_options",
    "of_libtorch": "libtorch_backward",
    "of_links": "by_link",
    "of_process": "process_paths",
    "of_step": "after_step",
    "of_local_step": "after_local_step",
    "of_logarithms": "ratio_from_logarithms",
    "of_model": "model_tokenizer",
    "of_mpi": "mpi_times",
    "of_newest": "newest_error",
    "of_node": "node_uses",
    "of_one": "from_one",
    "of_optimizer": "optimizer_parameters",
    "of_other": "from_other",
    "of_other_type": "with_wrong_type",
    "of_others": "others_median",
    "of_output": "output_scope",
    "of_page": "page_substitutions",
    "of_part": "part_loss",
    "of_parts": "part_gradients",
    "of_peer": "from_peer",
    "of_socket": "from_socket",
    "of_percent": "percentile_of",
    "of_place": "place_counts",
    "of_ranks": "per_rank",
    "of_ranks_": "rank_metrics_",
    "of_all_ranks": "gather_state",
    "of_rounds": "round_loads",
    "of_row": "row_step",
    "of_run": "run_json",
    "of_samples": "sample_values",
    "of_second": "second_sockets",
    "of_shard": "shard_values",
    "of_shards": "per_shard",
    "of_stage": "with_stage",
    "of_status": "add_status_metric",
    "of_step_or_job": "step_or_job_variable",
    "of_strategies": "with_strategies",
    "of_stream": "stream_loader",
    "of_text": "from_text",
    "of_this_machine": "for_this_machine",
    "of_this_run": "for_this_run",
    "of_thread": "from_thread",
    "of_three_columns": "three_columns",
    "of_torch": "torch_error",
    "of_worker": "per_worker",
    "of_workers": "per_worker",
    # Looks, cures, strangers, and what comes.
    "Stranger": "UnauthenticatedPeer",
    "stranger_at": "unauthenticated_peer_at",
    "kMostStrangers": "kMaxUnauthenticatedPeers",
    "kCure": "kFix",
    "cure_for_text": "fix_for_text",
    "look_rounds": "verdict_rounds",
    "confidence_of_look": "confidence_of_verdict",
    "tell_agent": "report_to_agent",
    "tell_watchdog": "write_to_watchdog",
    "tells_peers": "notifies_peers",
    "is_telling": "is_conclusive",
    "is_telling_": "is_conclusive_",
    "has_come": "has_arrived",
    "kLookS": "kIdleSampleS",
    "kLookEveryMs": "kPollEveryMs",
    "kLookForGroupEveryMs": "kPollForGroupEveryMs",
    "kLooksAtTheClock": "kMatchesPerClockCheck",
    "kLooksAtTotalSteps": "kDependsOnTotalSteps",
    "kFirstLook": "kFirstSample",
    "since_look": "since_sample",
    "looks_summed": "seems_summed",
    "unseen": "below_autograd",
    "add_newcomers": "add_new_nodes",
}

# In some files: (names of files, {identifier: new identifier}).
IN_FILES = (
    (r"product\.cc|convolution", {}),
    (r"cli/start/run\.cc|option_values", {"of_all": "for_all",
                                          "of_rank": "per_rank"}),
    (r"cast_weights\.cc", {"of_input": "input_uses"}),
    (r"device_copy\.cc", {"of_process": "process_paths"}),
    (r"process_group_impl\.cc", {"of_devices": "registered"}),
    (r"monitor/job\.cc", {"of_devices": "add_device_metric",
                          "of_ranks": "add_rank_metric"}),
    (r"loss_check\.cc", {"of_module": "module_check"}),
    (r"replicas/train_step", {"of_module": "module_extent"}),
    (r"following_test", {"of_module": "module_loss"}),
    (r"c10d_backend\.cc", {"of_rank": "rank_outputs"}),
    (r"examples/|practicals/|data/loader|loader_test|\.md$|docs/|tests/api|"
     r"tests/recipes|tests/consumers",
     {"of_rank": "for_rank"}),
    (r"job_screen\.cc", {"of_rank": "rank_cell"}),
    (r"common_state\.cc", {"of_rank": "rank_text"}),
    (r"memory_plan\.cc", {"of_rank": "rank_bytes"}),
    (r"accelerator/ddp_test", {"of_rank": "rank_tensors"}),
    (r"async_tasks", {"of_rank": "rank_data", "of_root": "root_data"}),
    (r"buckets_test|gradient_sync_test|shared_gradients_test",
     {"of_rank": "for_rank"}),
    (r"ddp/ranks\.h", {"of_rank": "run_rank"}),
    (r"shm/numbers\.h", {"of_rank": "rank_numbers"}),
    (r"check_trace\.py", {"of_rank": "rank_lanes"}),
    (r"spike_guard_test", {"of_rank": "rank_options"}),
    (r"sim/collectives", {"of_root": "root_tensors"}),
    (r"state_guard_test", {"of_first": "first_flip"}),
    (r"tests/tcp/listener_test", {"of_first": "first_sockets"}),
    (r"reduction/reduction\.cc|replica_group\.cc",
     {"of_worker": "worker_values"}),
    (r"cli/text_test", {"of_text": "text_run"}),
    (r"overlapped_sum\.cc", {"come": "pending"}),
    (r"cli/embed/ranks\.cc|run_training\.cc", {"around": "run_context"}),
    (r"pytorch_step_time\.py|compiled_limit", {"around": "skip"}),
    (r"job_screen|terminal_screen", {"Look": "Style", "look": "style",
                                     "look_of": "style_of"}),
    (r"cli/doctor\.cc", {"Look": "VerdictText", "look": "verdict_text",
                         "look_of": "text_of_verdict",
                         "kLooks": "kVerdictTexts"}),
    (r"ddp/trained_parameters", {"look_at": "observe"}),
    (r"speed_ratio|rounds\.(h|cc)|run_comparison\.cc",
     {"looks": "verdicts"}),
    (r"tcp/listener\.cc", {"stranger": "candidate", "strangers": "candidates"}),
    (r"bpe_tokenizer\.cc", {"looked_for_first": "matched_first",
                            "looked_for_second": "matched_second"}),
)

# Files whose names two layers shared: without the suffix, from the root.
MOVES = {
    "lockstep/train/step/agreement": "lockstep/train/step/step_agreement",
    "lockstep/store/connection": "lockstep/store/store_connection",
    "lockstep/train/report/environment":
        "lockstep/train/report/run_environment",
    "lockstep/train/options": "lockstep/train/train_options",
    "lockstep/train/plan": "lockstep/train/training_plan",
    "lockstep/train/run/run": "lockstep/train/run/training_run",
    "lockstep/cli/options": "lockstep/cli/command_options",
    "lockstep/cli/embed/run_options": "lockstep/cli/embed/run_flags",
    "lockstep/parallel/ddp/options": "lockstep/parallel/ddp/ddp_options",
    "lockstep/parallel/replicas/not_finite":
        "lockstep/parallel/replicas/not_finite_report",
    "lockstep/report/measurement/rounds":
        "lockstep/report/measurement/comparison_rounds",
    "lockstep/report/measurement/compare":
        "lockstep/report/measurement/run_comparison",
}

# base/terminal.h was two things: what a terminal is like, and how to write
# numbers for people.
FORMATS = ("format_bytes|format_durations?|format_count|counted|format_number")
TERMINAL = ("is_terminal|wants_colour|terminal_width|kMinColumns|locale_is_utf8"
            "|note_unfinished_line|erase_unfinished_line")
TERMINAL_HEADER = '#include "lockstep/base/terminal.h"\n'
FORMAT_HEADER = '#include "lockstep/base/format.h"\n'

LIMIT = re.compile(r"\bk(Most|Least|Fewest)(?=[A-Z])")
STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IDENTIFIER_LIKE = re.compile(r"_|[a-z][A-Z]")


def renamed(path, text):
    rules = dict(EVERYWHERE)
    for pattern, more in IN_FILES:
        if re.search(pattern, path):
            rules.update(more)
    is_source = not path.endswith((".md", ".txt", ".dox"))

    def new_name(match):
        word = match.group(0)
        # Documents and comments keep their ordinary words.
        if not is_source and not IDENTIFIER_LIKE.search(word):
            return word
        return rules.get(word, word)

    def likely_name(match):
        word = match.group(0)
        return new_name(match) if IDENTIFIER_LIKE.search(word) else word

    lines = []
    for line in text.split("\n"):
        code, mark, comment = line, "", ""
        if is_source and not path.endswith((".py", ".cmake")):
            at = line.find("//")
            if at >= 0:
                code, mark, comment = line[:at], line[at:at + 2], line[at + 2:]
        code = "".join(
            WORD.sub(likely_name if piece.startswith('"') else new_name, piece)
            for piece in STRING.split(code))
        comment = WORD.sub(likely_name, comment)
        lines.append(code + mark + comment)
    text = "\n".join(lines)
    text = LIMIT.sub(lambda m: "kMax" if m.group(1) == "Most" else "kMin",
                     text)
    for old, new in MOVES.items():
        text = re.sub(re.escape(old) + r"(?=\.(h|cc)\b)", new, text)
        short = [part.removeprefix("lockstep/") for part in (old, new)]
        if path.endswith((".md", ".txt", ".dox")):
            text = re.sub(r"(?<![\w/])" + re.escape(short[0])
                          + r"(?=\.(h|cc)\b)", short[1], text)
    return with_split_header(path, text)


def with_split_header(path, text):
    """Includes what the file uses of base/terminal.h and base/format.h."""
    if TERMINAL_HEADER not in text or path.endswith("base/terminal.cc"):
        return text
    formats = re.search(rf"\b({FORMATS})\(", text)
    terminal = re.search(rf"\b({TERMINAL})\b", text)
    if not formats:
        return text
    text = text.replace(TERMINAL_HEADER, TERMINAL_HEADER if terminal else "")
    headers = re.findall(r'#include "lockstep/[^"]*"\n', text)
    after = [h for h in headers if h > FORMAT_HEADER]
    if after:
        return text.replace(after[0], FORMAT_HEADER + after[0], 1)
    last = headers[-1] if headers else None
    return text.replace(last, last + FORMAT_HEADER, 1) if last else (
        FORMAT_HEADER + text)


def main():
    for old, new in MOVES.items():
        for suffix in (".h", ".cc"):
            if (ROOT / (old + suffix)).exists():
                subprocess.run(["git", "mv", old + suffix, new + suffix],
                               cwd=ROOT, check=True)
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\n")
    changed = 0
    for name in files:
        path = ROOT / name
        if (path.suffix not in SUFFIXES or path == pathlib.Path(__file__)
                or name.startswith("docs/decisions/")):
            continue
        old = path.read_text(encoding="utf-8", errors="surrogateescape")
        new = renamed(name, old)
        if new != old:
            path.write_text(new, encoding="utf-8", errors="surrogateescape")
            changed += 1
    print(f"{changed} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
