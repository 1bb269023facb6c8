#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

/// The blocks of an optimizer's parameters, and the device that updates each of
/// them.
class Placement {
 public:
  /// Each block is updated where its parameter is.
  explicit Placement(const std::vector<torch::Tensor>& parameters);
  /// Returns the same blocks, divided equally between `devices`.
  Placement divided(const std::vector<Device>& devices) const;

  const std::vector<Block>& blocks() const { return blocks_; }
  size_t parameter_of(size_t block) const {
    return static_cast<size_t>(blocks_[block].tensor);
  }
  /// Returns the first block of parameter `p`, and the end of the blocks for
  /// the number of parameters.
  size_t first_block_of(size_t p) const { return first_blocks_[p]; }

  bool is_divided() const { return !devices_.empty(); }
  /// Returns the devices of divided(), or nothing.
  const std::vector<Device>& devices() const { return devices_; }
  /// Returns the index in devices() of the device that updates the block. The
  /// blocks must be divided.
  size_t owner_of(size_t block) const { return owners_[block]; }
  torch::Device device_of(size_t block) const;
  /// Returns whether all blocks of parameter `p` are updated where it is.
  bool is_at_home(size_t p) const;

 private:
  std::vector<torch::Device> homes_;  // by parameter
  std::vector<Block> blocks_;
  std::vector<size_t> first_blocks_;
  std::vector<Device> devices_;
  std::vector<size_t> owners_;  // by block
};

}  // namespace lockstep::optim
