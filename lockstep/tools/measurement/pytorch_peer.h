#pragma once

#include <functional>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

/// Work that every run of a comparison does.
struct Work {
  std::string model = "mlp";
  int64_t batch_size = 64;
  int64_t steps = 30;
  int64_t warmup = 5;
  uint64_t seed = 0;
  bool channels_last = false;
  std::string precision = "fp32";  ///< fp32 or bf16
};

/// A Python that has torch, and Lockstep's script for it.
struct PyTorchPeer {
  std::string python;
  std::string script;
  /// Reason why it can't be used: "what; expected X, got Y; how to fix it".
  /// Empty if it can be used.
  std::string missing;
};

/// Finds the script and a Python for it. The script is in share/lockstep of the
/// installation or build folder whose bin or libexec/lockstep contains
/// `program`. Python is the one in LOCKSTEP_PYTHON, else the one that the file
/// `torch_python` next to the script names, if it still exists, else python3 of
/// PATH.
PyTorchPeer find_pytorch(const std::function<bool()>& stop = {},
                         const std::string& program = own_program());

/// `strategy` is "single" or "ddp". `processes` is the number of DDP processes,
/// and `cores` the number of cores of all of them together.
Command pytorch_command(const PyTorchPeer& peer, const Work& work,
                        const std::string& strategy, int processes, int cores);

/// Reads the output of the script. Throws IoError if it is something else.
Measurement pytorch_measurement(const std::string& output,
                                const std::string& strategy,
                                const Command& command);

}  // namespace lockstep::tools
