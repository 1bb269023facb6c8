#pragma once

#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

namespace lockstep::train {

/// Prints "Inside model on device cpu:1, shape [32, 3, 32, 32]" for each shard
/// in training, the first time and when its shape changes. This is what one
/// prints inside a model to see how a batch is cut. It is used as
/// DataParallelOptions::on_shard.
class ShardLines {
 public:
  ShardLines();
  /// May be called from any thread.
  void operator()(const std::vector<c10::IValue>& inputs) const;

 private:
  struct Seen;
  std::shared_ptr<Seen> seen_;
};

}  // namespace lockstep::train
