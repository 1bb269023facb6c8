#pragma once

#include <memory>

#include "lockstep/parallel/data_parallel.h"
#include "tests/differential/strategy.h"

namespace lockstep::differential {

/// DataParallel on some devices, alone or as a rank of a world.
class DataParallelStrategy : public Strategy {
 public:
  DataParallelStrategy(std::shared_ptr<InterpretedModule> module,
                       int64_t devices, const World& world = {});

  Step backward(const Batch& batch) override;
  bool updates() const override { return definition().mode == "train_step"; }
  Step train(const Batch& batch, double clip) override;
  c10::IValue forward(const Batch& batch) override;
  Batch own_part(const Batch& batch) const override;
  void make_optimizer() override;
  void set_rate(double rate) override;
  void load_buffers() override { model_->load_buffers(); }

 private:
  StepResult step(const Batch& batch, double clip, bool updates);

  World world_;
  DataParallel<InterpretedModule> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace lockstep::differential
