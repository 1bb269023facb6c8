#include "lockstep/train/trainer.h"

#include <utility>

#include "lockstep/parallel/engine.h"
#include "lockstep/train/run/run_training.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {
namespace {

constexpr const char* kLoss = "loss";

using Numbers = c10::Dict<std::string, torch::Tensor>;

Numbers numbers_of(const c10::IValue& dict) {
  return c10::impl::toTypedDict<std::string, torch::Tensor>(
      dict.toGenericDict());
}

}  // namespace

namespace detail {

// Packs values into two dicts: the means by name, and the weights that were
// stated.
c10::IValue pack_values(const LossAndMetrics& values) {
  Numbers means, weights;
  const auto insert = [&](const std::string& name, const torch::Tensor& mean,
                          const torch::Tensor& weight) {
    means.insert(name, mean);
    if (weight.defined()) weights.insert(name, weight);
  };
  insert(kLoss, values.loss, values.weight);
  for (const Metric& metric : values.metrics) {
    insert(metric.name, metric.mean, metric.weight);
  }
  return c10::ivalue::Tuple::create(means, weights);
}

data::Batch batch_of(const std::vector<c10::IValue>& arguments) {
  return data::make_batch(
      std::vector<c10::IValue>(arguments.begin(), arguments.end() - 1),
      arguments.back(), /*samples=*/0);
}

}  // namespace detail

namespace {

LossAndMetrics unpack_values(const c10::IValue& values) {
  const auto& both = values.toTupleRef().elements();
  const Numbers means = numbers_of(both[0]), weights = numbers_of(both[1]);
  const auto weight_of = [&](const std::string& name) {
    return weights.contains(name) ? weights.at(name) : torch::Tensor();
  };
  LossAndMetrics unpacked(WeightedLoss(means.at(kLoss), weight_of(kLoss)));
  for (const auto& entry : means) {
    if (entry.key() == kLoss) continue;
    unpacked.metrics.emplace_back(entry.key(), entry.value(),
                                  weight_of(entry.key()));
  }
  return unpacked;
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw InvalidArgument(
      "train",
      {.code = ErrorCode::kMisuse, .what = what, .expected = expected});
}

}  // namespace

/// The task that a Trainer describes.
class TrainerTask : public Task {
 public:
  explicit TrainerTask(TrainerBase& trainer) : trainer_(trainer) {}

  void begin(const TrainOptions& options, const Plan&,
             const Settings&) override {
    check_complete();
    if (trainer_.has_step() &&
        options.strategy() == Strategy::kDataParallelClassic) {
      refuse("--strategy dp-classic can't run a step function",
             "a loss, or another strategy");
    }
  }
  std::shared_ptr<const data::BatchSource> training_data() override {
    return trainer_.training_data_;
  }
  std::shared_ptr<const data::BatchSource> evaluation_data() override {
    return trainer_.evaluation_data_;
  }
  Settings model() const override { return {{"name", trainer_.name_}}; }
  Settings settings() const override { return trainer_.settings_; }

  ModuleSource make_model(const torch::Device& device) override {
    return trainer_.make_module(device);
  }
  std::unique_ptr<RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override {
    return std::make_unique<RunOptimizer>(trainer_.make_optimizer(), make_state,
                                          trainer_.schedule_,
                                          trainer_.torch_schedule_);
  }

  void set_engine(Engine* engine) override { trainer_.engine_ = engine; }
  bool take_rebuild() override {
    return std::exchange(trainer_.wants_rebuild_, false);
  }
  std::vector<std::shared_ptr<Callback>> callbacks() override {
    return trainer_.callbacks_;
  }
  data::Batch prepare(data::Batch batch) const override {
    if (!trainer_.has_step()) return batch;
    // The step function gets both.
    std::vector<c10::IValue> arguments = batch.arguments();
    arguments.push_back(batch.any_target());
    return {.inputs = std::move(arguments),
            .samples = batch.samples,
            .total = batch.total};
  }
  LossAndMetrics loss(const c10::IValue& output,
                      const c10::IValue& target) const override {
    return trainer_.has_step() ? unpack_values(output)
                               : trainer_.loss_(output, target);
  }
  LossReduction loss_reduction() const override {
    return trainer_.loss_reduction_;
  }
  EmptyBatch empty_batch() const override { return trainer_.empty_batch_; }

 private:
  void check_complete() const {
    if (!trainer_.training_data_) {
      refuse("the Trainer has no data", "a call of data()");
    }
    if (!trainer_.loss_ && !trainer_.has_step()) {
      refuse("the Trainer has no loss", "a call of loss() or step()");
    }
    if (!trainer_.has_optimizer()) {
      refuse("the Trainer has no optimizer", "a call of optimizer()");
    }
    if (trainer_.evaluation_data_ &&
        trainer_.evaluation_data_->is_read_in_order() &&
        trainer_.evaluation_data_->object_of_one_thread() ==
            trainer_.training_data_->object_of_one_thread()) {
      refuse(
          "one stream is given to data() and test_data(), but is at one "
          "place at a time",
          "another object for test_data()");
    }
    if (trainer_.schedule_ && trainer_.torch_schedule_.make) {
      refuse("the Trainer has two schedules", "one of them");
    }
  }

  TrainerBase& trainer_;
};

void TrainerBase::unshare_parameters() {
  if (engine_ == nullptr) {
    refuse("unshare_parameters() is called outside of fit()",
           "a call from a callback");
  }
  engine_->unshare_parameters();
}

std::unique_ptr<Task> task_of(TrainerBase& trainer) {
  return std::make_unique<TrainerTask>(trainer);
}

RunReport TrainerBase::fit(const TrainOptions& options,
                           const ProcessGroup& group) {
  check_launched_ranks(options, group.size());
  return run_training(*task_of(*this), options, {.world = group});
}

}  // namespace lockstep::training
