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
  std::string missing;  ///< why it can't be used; empty: it can
};

/// Looks for Python in LOCKSTEP_PYTHON, then where the build had it, and for
/// the script beside the program's share/lockstep, then in the source tree.
PyTorchPeer find_pytorch(const std::function<bool()>& stop = {});

/// `strategy`: "single" or "ddp". `processes`: DDP's; `cores`: of them all.
Command pytorch_command(const PyTorchPeer& peer, const Work& work,
                        const std::string& strategy, int processes, int cores);

/// Reads what the script printed. Throws IoError if it is not that.
Measurement pytorch_measurement(const std::string& output,
                                const std::string& strategy,
                                const Command& command);

}  // namespace lockstep::report
