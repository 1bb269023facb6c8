#pragma once

#include <functional>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// The work that every run of a comparison does.
struct Work {
  std::string model = "mlp";
  int64_t batch_size = 64;
  int64_t steps = 30;
  int64_t warmup = 5;
  uint64_t seed = 0;
  bool channels_last = false;
  std::string precision = "fp32";  ///< fp32 or bf16
};

/// A Python that has torch, and our script for it.
struct PyTorchPeer {
  std::string python;
  std::string script;
  /// Why it can't be used: "what; expected X, got Y; how to fix it". Empty: it
  /// can.
  std::string missing;
};

/// The script is in the share/lockstep that belongs to `program`, which is in
/// bin or in libexec/lockstep of an installation or of a build folder. Python
/// is the one in LOCKSTEP_PYTHON, else the one that the file `torch_python`
/// beside the script names, if it is still there, else python3 of PATH.
PyTorchPeer find_pytorch(const std::function<bool()>& stop = {},
                         const std::string& program = own_program());

/// `strategy`: "single" or "ddp". `processes`: DDP's; `cores`: of them all.
Command pytorch_command(const PyTorchPeer& peer, const Work& work,
                        const std::string& strategy, int processes, int cores);

/// Reads what the script printed. Throws IoError if it is not that.
Measurement pytorch_measurement(const std::string& output,
                                const std::string& strategy,
                                const Command& command);

}  // namespace lockstep::report
