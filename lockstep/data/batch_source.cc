#include "lockstep/data/batch_source.h"

#include <map>
#include <utility>

namespace lockstep::data {

std::vector<c10::IValue> Batch::arguments() const {
  return inputs.empty() ? std::vector<c10::IValue>{data} : inputs;
}

c10::IValue Batch::any_target() const {
  return target.defined() ? c10::IValue(target) : nested_target;
}

Batch make_batch(std::vector<c10::IValue> arguments, c10::IValue target,
                 int64_t samples) {
  Batch batch{.samples = samples};
  if (arguments.size() == 1 && arguments.front().isTensor()) {
    batch.data = std::move(arguments.front()).toTensor();
  } else {
    batch.inputs = std::move(arguments);
  }
  if (target.isTensor() && target.toTensor().defined()) {
    batch.target = std::move(target).toTensor();
  } else {
    batch.nested_target = std::move(target);
  }
  return batch;
}

std::unique_lock<std::mutex> take_turn(const BatchSource& source) {
  const void* const object = source.object_of_one_thread();
  if (object == nullptr) return {};
  // One mutex for each object that was ever read.
  static std::mutex guard;
  static std::map<const void*, std::mutex> turns;
  std::unique_lock known(guard);
  std::mutex& turn = turns[object];
  known.unlock();
  return std::unique_lock(turn);
}

}  // namespace lockstep::data
