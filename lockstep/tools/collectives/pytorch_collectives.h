#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/child_process.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tools/collectives/collective_case.h"

namespace lockstep::tools {

/// Times the collectives of PyTorch's torch.distributed over Gloo. Each rank
/// has a Python process (bench/pytorch_collectives.py), which waits for
/// commands while other things are timed.
class PyTorchCollectives {
 public:
  /// Starts the processes of all ranks of `group`, and waits until they are
  /// connected. Collective. Throws Error if there is no Python that has torch.
  explicit PyTorchCollectives(const ProcessGroup& group);
  PyTorchCollectives(const PyTorchCollectives&) = delete;
  PyTorchCollectives& operator=(const PyTorchCollectives&) = delete;

  /// Runs the collective `calls` times with `count` elements in all, and
  /// returns the seconds of one call on this rank. Collective.
  double time(Collective collective, int64_t count, at::ScalarType type,
              int64_t calls);

 private:
  void write(const std::string& line);
  /// Returns the next line that the process writes.
  std::string read();
  [[noreturn]] void give_up(const std::string& got);

  double timeout_s_;
  FileDescriptor python_;  // its stdin and stdout
  std::string received_;   // bytes after the last complete line
  std::optional<ChildProcess> process_;
};

}  // namespace lockstep::tools
