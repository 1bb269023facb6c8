#include "lockstep/tools/measurement/memory_plan.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/stopwatch.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/partition.h"
#include "lockstep/parallel/exchange/step_sum.h"
#include "lockstep/parallel/group/replica_group.h"

namespace lockstep::tools {
namespace {

using training::Strategy;
using training::TrainOptions;

Device whole_host() { return {.type = c10::kCPU, .index = 0, .slices = 1}; }

/// Memory that one shard takes on its device, in bytes.
struct ShardMemory {
  int64_t kept = 0;  ///< after the forward, for the backward
  int64_t peak = 0;
  double seconds = 0;  ///< that it took to run
};

/// A shard that would run for longer is not run. Two small shards tell almost
/// the same.
constexpr double kMaxSecondsOfShard = 10;

/// Measures shards of one model.
class ShardProbe {
 public:
  ShardProbe(TimedRun run, const PlanProgress& progress)
      : run_(std::move(run)), progress_(progress) {
    const bool is_for_cpu = run_.train.devices().front().is_cpu();
    run_.train.strategy(Strategy::kSingle);
    run_.train.zero(ZeroStage::kNone);
    run_.world = ProcessGroup();
    run_.train.devices({whole_host()});
    run_.train.accumulate(1);
    run_.train.shards(1);
    task_ = run_.work->make_task();
    plan_ = training::make_plan(run_.train);
    task_->begin(run_.train, plan_, {});
    module_ = task_->make_model(torch::kCPU);
    const ModuleHandle handle = module_.read();
    for (const auto& [name, parameter] : handle.parameters) {
      parameters_ += parameter.numel();
      const auto bytes = static_cast<int64_t>(parameter.nbytes());
      parameter_bytes_ += bytes;
      largest_bytes_ = std::max(largest_bytes_, bytes);
      if (!is_large(parameter)) small_bytes_ += bytes;
      planned_.push_back(is_for_cpu ? torch::Tensor(parameter)
                                    : parameter.detach().to(torch::kMeta));
    }
    optimizer_ = task_->make_optimizer([](const torch::Tensor& like) {
      return torch::zeros_like(like.detach());
    });
    optimizer_bytes_ = optimizer_->state_bytes();
    optimizer_.reset();
  }

  int64_t parameters() const { return parameters_; }
  int64_t parameter_bytes() const { return parameter_bytes_; }
  /// Returns the bytes of the parameters that are sent in buckets and that ZeRO
  /// does not split.
  int64_t small_bytes() const { return small_bytes_; }
  int64_t largest_bytes() const { return largest_bytes_; }
  /// Returns tensors like the parameters, for cut_parameters(). They are on the
  /// CPU if the planned devices are.
  const std::vector<torch::Tensor>& planned() const { return planned_; }
  int64_t optimizer_bytes() const { return optimizer_bytes_; }

  ShardMemory measure(int64_t samples) {
    if (progress_) progress_(samples);
    const Stopwatch watch;
    run_.train.batch_size(samples);
    const data::Batch batch = task_->prepare(random_batch(run_, plan_));
    const AutocastScope precision(
        torch::kCPU, training::autocast_type(run_.train.precision()));
    Engine engine(
        module_, run_.train.devices(),
        DataParallelOptions().shards(1).seed(0).verify(Verify::kNever));
    reset_peak_memory();
    const int64_t before = memory_stats(whole_host()).live_bytes;
    ShardMemory memory;
    engine.train_step(
        batch.arguments(), batch.any_target(),
        [&](const c10::IValue& output, const c10::IValue& target) {
          auto loss = task_->loss(output, target).loss;
          memory.kept = memory_stats(whole_host()).live_bytes - before;
          return loss;
        },
        /*optimizer=*/{}, TrainStepOptions().total_samples(samples));
    memory.peak = memory_stats(whole_host()).peak_bytes - before;
    for (auto& [name, parameter] : module_.read().parameters) {
      torch::Tensor(parameter).mutable_grad().reset();
    }
    memory.seconds = watch.seconds();
    return memory;
  }

 private:
  TimedRun run_;
  const PlanProgress& progress_;
  std::unique_ptr<training::Task> task_;
  training::Plan plan_;
  ModuleSource module_;
  std::unique_ptr<training::RunOptimizer> optimizer_;
  int64_t parameters_ = 0;
  int64_t parameter_bytes_ = 0;
  std::vector<torch::Tensor> planned_;
  int64_t small_bytes_ = 0;
  int64_t largest_bytes_ = 0;  // size of the largest parameter
  int64_t optimizer_bytes_ = 0;
};

/// Estimates the memory of shards of any size from shards of one and of two
/// samples. Each further sample adds the same amount of kept memory. Runs a
/// shard only when its figures are needed, because one of a large model takes
/// seconds.
class ShardModel {
 public:
  explicit ShardModel(ShardProbe& probe) : probe_(probe) {}

  ShardMemory estimate(int64_t samples) {
    if (samples == 1) return one();
    if (!two_) two_ = probe_.measure(2);
    if (samples == 2) return *two_;
    const int64_t more = (samples - 2) * (two_->kept - one().kept);
    return {.kept = two_->kept + more,
            .peak = two_->peak + more,
            .seconds = two_->seconds * static_cast<double>(samples) / 2};
  }
  /// Runs a shard and returns its memory. Returns nullopt if there is not
  /// enough room to run it, or if it would take long.
  std::optional<ShardMemory> measure(int64_t samples, int64_t room) {
    if (samples <= 2) return estimate(samples);
    const ShardMemory expected = estimate(samples);
    if (expected.peak > room / 2 || expected.seconds > kMaxSecondsOfShard) {
      return std::nullopt;
    }
    return probe_.measure(samples);
  }

 private:
  const ShardMemory& one() {
    if (!one_) one_ = probe_.measure(1);
    return *one_;
  }

  ShardProbe& probe_;
  std::optional<ShardMemory> one_;
  std::optional<ShardMemory> two_;
};

/// Returns the largest number of sums that wait for others while `shards`
/// shards are computed. Before each shard, one sum waits for each bit that is
/// set in the number of finished shards (append_partial()).
int64_t waiting_sums(int64_t shards) {
  int most = 0;
  for (int64_t done = 0; done < shards; ++done) {
    most = std::max(most, std::popcount(static_cast<uint64_t>(done)));
  }
  return most;
}

/// One way to run a batch.
struct Way {
  int64_t accumulate = 1;
  bool recomputes = false;  ///< although it was not asked to
};

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Returns the most of `bytes` that a rank holds if ZeRO splits them over
/// `ranks` ranks as it splits the parameters.
int64_t most_of_a_rank(int64_t bytes, const ShardProbe& probe, int64_t ranks) {
  std::vector<int64_t> owned(static_cast<size_t>(ranks));
  const auto cuts = cut_parameters(probe.planned(), static_cast<int>(ranks));
  for (size_t p = 0; p < cuts.size(); ++p) {
    const torch::Tensor& parameter = probe.planned()[p];
    const ParameterCut& cut = cuts[p];
    const auto size = static_cast<int64_t>(parameter.element_size());
    for (int64_t& rank_bytes : owned) {
      rank_bytes += (cut.is_cut ? cut.piece : parameter.numel()) * size;
    }
    owned[static_cast<size_t>(cut.root)] += cut.is_cut ? cut.rest * size : 0;
  }
  const int64_t most = *std::max_element(owned.begin(), owned.end());
  return static_cast<int64_t>(static_cast<double>(bytes) *
                              static_cast<double>(most) /
                              static_cast<double>(probe.parameter_bytes()));
}

/// Returns the memory that a device holds while it computes `shard`.
DeviceMemory held_by_device(const TrainOptions& options,
                            const ShardProbe& probe, int64_t accumulate,
                            bool shares_memory, const ShardMemory& shard) {
  DeviceMemory memory;
  memory.gradients = waiting_sums(accumulate) * probe.parameter_bytes();
  memory.activations = shard.peak;
  const bool has_ranks = options.strategy() == Strategy::kDistributed;
  const bool is_host = options.devices().front().is_cpu();
  if (!has_ranks && is_host) return memory;
  if (!has_ranks) {
    // Resident replicas divide the optimizer's state (Engine::place_state()).
    const bool divides = options.strategy() != Strategy::kDataParallelClassic;
    memory.parameters = probe.parameter_bytes();
    memory.optimizer =
        ceil_of(probe.optimizer_bytes(),
                divides ? static_cast<int64_t>(options.devices().size()) : 1);
    return memory;
  }
  if (shares_memory && is_host) {
    // In the first step, gradients are copied to memory that the other ranks
    // read.
    memory.buckets = probe.parameter_bytes();
    return memory;
  }
  const auto ranks = static_cast<int64_t>(options.devices().size());
  memory.parameters = probe.parameter_bytes();
  memory.optimizer =
      options.zero() == ZeroStage::kNone
          ? probe.optimizer_bytes()
          : most_of_a_rank(probe.optimizer_bytes(), probe, ranks);
  memory.buckets = probe.small_bytes();
  if (options.zero() == ZeroStage::kGradients) {
    // At the beginning of the backward, the activations are in memory. At its
    // end, the gradients are: this rank's part, and the gradients that have not
    // been sent yet.
    const int64_t all = probe.parameter_bytes();
    const int64_t unsent =
        std::min(all, probe.largest_bytes() + StepSum::kMaxBytesToSend);
    memory.activations =
        std::max(shard.peak - all + most_of_a_rank(all, probe, ranks) + unsent,
                 shard.kept);
  }
  return memory;
}

std::string text_of(const Way& way, const Way& asked) {
  std::string text;
  if (way.accumulate != asked.accumulate) {
    text = fmt::format("--accumulate {}", way.accumulate);
  }
  if (way.recomputes) {
    text += (text.empty() ? "" : " ") + std::string("--recompute");
  }
  return text;
}

int64_t available_bytes() {
  return static_cast<int64_t>(::sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

/// Returns the memory of all devices. For slices, and for accelerators that
/// don't say how much they have, this is what is available on the host.
int64_t bytes_of(const std::vector<Device>& devices) {
  int64_t bytes = 0;
  for (const Device& device : devices) {
    const int64_t own =
        device.is_cpu() ? 0 : accelerator::properties(device).memory_bytes;
    if (own == 0) return available_bytes();
    bytes += own;
  }
  return bytes;
}

}  // namespace

MemoryPlan make_memory_plan(const TimedRun& run, int64_t limit,
                            bool shares_memory, const PlanProgress& progress) {
  install_accounting_allocator();
  const TrainOptions& options = run.train;
  const auto devices = static_cast<int64_t>(options.devices().size());
  const Way asked{.accumulate = options.accumulate()};
  MemoryPlan plan;
  plan.limit = limit > 0 ? limit : bytes_of(options.devices());
  plan.devices = devices;
  plan.shards = devices * asked.accumulate;
  plan.samples_of_shard = ceil_of(options.batch_size(), plan.shards);

  ShardProbe probe(run, progress);
  ShardModel model(probe);
  plan.model = run.work->model();
  plan.parameters = probe.parameters();
  const auto measured = model.measure(plan.samples_of_shard, available_bytes());
  plan.is_measured = measured.has_value();
  plan.device =
      held_by_device(options, probe, asked.accumulate, shares_memory,
                     measured.value_or(model.estimate(plan.samples_of_shard)));
  if (plan.device.parameters == 0) {
    plan.shared = probe.parameter_bytes() + probe.optimizer_bytes();
  }

  const auto add_choices = [&](ShardModel& shards, bool recomputes) {
    int64_t least = plan.total();
    for (int64_t accumulate = asked.accumulate;
         devices * accumulate <= options.batch_size(); accumulate *= 2) {
      const Way way{.accumulate = accumulate, .recomputes = recomputes};
      const std::string words = text_of(way, asked);
      if (words.empty() || options.batch_size() % (devices * accumulate) != 0) {
        continue;
      }
      const DeviceMemory device = held_by_device(
          options, probe, accumulate, shares_memory,
          shards.estimate(ceil_of(options.batch_size(), devices * accumulate)));
      const int64_t total = plan.shared + devices * device.total();
      // Sums of gradients that wait may take more memory than smaller shards
      // save.
      if (total >= least) continue;
      least = total;
      plan.choices.push_back(
          {.options = words, .total = total, .fits = total <= plan.limit});
    }
  };
  add_choices(model, false);
  const auto recomputing = run.work->recomputing();
  plan.can_recompute = recomputing != nullptr;
  if (recomputing != nullptr && plan.total() > plan.limit) {
    TimedRun other_run = run;
    other_run.work = recomputing;
    ShardProbe other(other_run, progress);
    ShardModel other_model(other);
    add_choices(other_model, true);
  }
  return plan;
}

}  // namespace lockstep::tools
