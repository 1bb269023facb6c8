#pragma once

#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Tensors packed into one message, because there may be hundreds of small
/// ones.
class PackedTensors {
 public:
  PackedTensors() = default;
  /// The message is on the first tensor's device.
  explicit PackedTensors(const ModuleHandle::Named& tensors);

  bool empty() const { return places_.empty(); }
  torch::Tensor& message() { return message_; }
  /// Copies the tensors into the message.
  void pack();
  /// Copies the message into the tensors without autograd noticing, so a graph
  /// that saved one of them stays valid.
  void unpack();

 private:
  struct Place {
    torch::Tensor tensor;
    torch::Tensor in_message;  // a view, shaped like the tensor
  };
  std::vector<Place> places_;
  torch::Tensor message_;  // bytes
};

/// Gives all ranks the values of rank `root`. Collective.
void broadcast(const ProcessGroup& world, const ModuleHandle::Named& tensors,
               int root);

}  // namespace lockstep
