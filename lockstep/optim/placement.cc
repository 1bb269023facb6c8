#include "lockstep/optim/placement.h"

namespace lockstep::optim {

Placement::Placement(const std::vector<torch::Tensor>& parameters)
    : blocks_(cut_into_blocks(parameters)) {
  size_t block = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    homes_.push_back(parameters[p].device());
    first_blocks_.push_back(block);
    while (block < blocks_.size() && parameter_of(block) == p) ++block;
  }
  first_blocks_.push_back(block);
}

Placement Placement::divided(const std::vector<Device>& devices) const {
  int64_t elements = 0;
  for (const Block& block : blocks_) elements += block.length;
  const auto count = static_cast<int64_t>(devices.size());
  Placement placement = *this;
  placement.devices_ = devices;
  placement.owners_.clear();
  int64_t before = 0;
  for (const Block& block : blocks_) {
    const int64_t middle = before + block.length / 2;
    placement.owners_.push_back(static_cast<size_t>(middle * count / elements));
    before += block.length;
  }
  return placement;
}

torch::Device Placement::device_of(size_t block) const {
  return is_divided() ? torch_device(devices_[owners_[block]])
                      : homes_[parameter_of(block)];
}

bool Placement::is_at_home(size_t p) const {
  for (size_t b = first_blocks_[p]; b < first_blocks_[p + 1]; ++b) {
    if (device_of(b) != homes_[p]) return false;
  }
  return true;
}

}  // namespace lockstep::optim
