#pragma once

#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

namespace lockstep::train {

/// Prints "Inside model on device cpu:1, shape [32, 3, 32, 32]" for each shard
/// that is trained, the first time and when its shape changes: what one prints
/// inside of a model to see how a batch is cut. DataParallelOptions::on_shard.
class ShardLines {
 public:
  ShardLines();
  /// Of any thread.
  void operator()(const std::vector<c10::IValue>& inputs) const;

 private:
  struct Seen;
  std::shared_ptr<Seen> seen_;
};

}  // namespace lockstep::train
