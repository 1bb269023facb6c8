#include "lockstep/parallel/group/replica_group.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/device/random.h"
#include "lockstep/device/tensor_device.h"
#include "lockstep/parallel/group/balance.h"
#include "lockstep/parallel/group/parallel_apply.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/parameter_writes.h"
#include "lockstep/parallel/module/replicate.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

thread_local int64_t shard_of_thread = -1;
/// The group for which this thread computes a shard or makes a replica.
thread_local const ReplicaGroup* group_of_thread = nullptr;

const std::vector<Tensor> kNoParameters;

/// Marks the thread as working on `shard` of `group` during its lifetime. With
/// -1, the thread works on a replica.
class ShardScope {
 public:
  ShardScope(const ReplicaGroup* group, int64_t shard)
      : outer_group_(group_of_thread), outer_(shard_of_thread) {
    group_of_thread = group;
    shard_of_thread = shard;
  }
  ~ShardScope() {
    group_of_thread = outer_group_;
    shard_of_thread = outer_;
  }
  ShardScope(const ShardScope&) = delete;
  ShardScope& operator=(const ShardScope&) = delete;

 private:
  const ReplicaGroup* outer_group_;
  int64_t outer_;
};

int64_t check_shards(int64_t shards, size_t devices, int ranks) {
  const auto k = static_cast<int64_t>(devices) * ranks;
  if (shards == 0) return k;
  if (shards >= k) return shards;
  throw InvalidArgument(
      "parallel", {.code = ErrorCode::kBadOption,
                   .what = "there are fewer shards than devices",
                   .expected = fmt::format("at least {}, one a device",
                                           counted(k, "shard")),
                   .got = fmt::format("{}", shards),
                   .fix = "raise the number of shards or use fewer devices"});
}

void warn_of_uneven_shards(int64_t shards, int64_t devices) {
  if (shards % devices == 0) return;
  warn_once(fmt::format("uneven-{}-{}", shards, devices), "parallel",
            fmt::format("{} shards for {} devices: those with {} wait for "
                        "those with {}; a multiple of {} would be faster",
                        shards, devices, shards / devices, shards / devices + 1,
                        devices));
}

int intra_op_threads(const DataParallelOptions& options,
                     const std::vector<Device>& devices, int64_t shards) {
  if (options.intra_op_threads() > 0) return options.intra_op_threads();
  if (!devices[0].is_cpu()) return 0;
  return threads_of_shard(devices, shards, options.process_group().size(),
                          options.process_group().local_size());
}

/// Throws unless all parameters are dense, because ranks exchange their memory.
void check_dense(const ModuleHandle& module) {
  for (const auto& [name, parameter] : module.parameters) {
    if (parameter.is_non_overlapping_and_dense()) continue;
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadTensor,
                .what = fmt::format("parameter '{}' is not dense", name),
                .expected = "memory without holes and overlaps",
                .got = fmt::format("shape {} with strides {}",
                                   c10::str(parameter.sizes()),
                                   c10::str(parameter.strides())),
                .fix = "call parameter.set_data(parameter.contiguous())"});
  }
}

void check_world(const DataParallelOptions& options) {
  if (options.process_group().size() == 1) return;
  if (options.replication() == Replication::kResident &&
      options.buffers() == Buffers::kFirstShard) {
    return;
  }
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadOption,
       .what = "several ranks need resident replicas and the first shard's "
               "buffers",
       .fix = "leave replication() and buffers() as they are"});
}

}  // namespace

int64_t current_shard() { return shard_of_thread; }

ReplicaGroup::ReplicaGroup(ModuleSource module, std::vector<Device> devices,
                           DataParallelOptions options)
    : module_(std::move(module)),
      devices_(std::move(devices)),
      options_(std::move(options)) {
  if (devices_.empty()) {
    throw InvalidArgument("parallel", {.code = ErrorCode::kNoSuchDevice,
                                       .what = "DataParallel got no devices",
                                       .fix = "pass devices(\"auto\")"});
  }
  check_not_nested();
  output_device_ = options_.output_device().value_or(devices_[0]);
  shards_ = check_shards(options_.shards(), devices_.size(),
                         options_.process_group().size());
  check_world(options_);
  if (options_.process_group().rank() == 0) {
    warn_of_uneven_shards(shards_, static_cast<int64_t>(devices_.size()) *
                                       options_.process_group().size());
  }
  follow_seed();
  warn_of_imbalance(devices_);
  guard_links(devices_, options_.bad_links());
  // Tensors kept here outlive a c10::InferenceMode of the caller.
  const c10::InferenceMode normal(false);
  read_original();
  if (options_.process_group().size() > 1) check_dense(original_);

  clock_ = std::make_unique<StepClock>(devices_.size(), options_.on_phase());
  const int threads = intra_op_threads(options_, devices_, shards_);
  const auto count = static_cast<int64_t>(devices_.size());
  for (int64_t k = 0; k < count; ++k) {
    const Device& device = devices_[static_cast<size_t>(k)];
    workers_.push_back(std::make_unique<Worker>(device, threads));
    turns_.try_emplace(device.name());
    const ShardRange range = shards_of(static_cast<size_t>(k));
    shard_devices_.insert(shard_devices_.end(),
                          static_cast<size_t>(range.last - range.first),
                          device);
  }
  own_shards_ = {shards_of(0).first, shards_of(workers_.size() - 1).last};
  make_replicas();
}

ShardRange ReplicaGroup::shards_of(size_t worker) const {
  const auto own_devices = static_cast<int64_t>(devices_.size());
  return shards_of_worker(options_.process_group().rank() * own_devices +
                              static_cast<int64_t>(worker),
                          options_.process_group().size() * own_devices,
                          shards_);
}

void ReplicaGroup::make_replicas() {
  const bool is_resident = options_.replication() == Replication::kResident;
  const bool keeps_first = options_.buffers() == Buffers::kFirstShard;
  replicas_ = std::make_shared<Replicas>(workers_.size());
  for (size_t k = 0; k < workers_.size(); ++k) {
    const auto add = [&](Storage buffers) {
      const Storage parameters =
          is_resident || k == 0 ? Storage::kShared : Storage::kOwn;
      // Runs in the worker's thread, so that the replica's memory is charged to
      // its device.
      workers_[k]->start([&] {
        const ShardScope scope(this, -1);
        (*replicas_)[k].emplace_back(module_.replicate(), original_,
                                     devices_[k], parameters, buffers);
      });
      workers_[k]->wait();
    };
    if (k == 0 && keeps_first) add(Storage::kShared);
    const ShardRange range = shards_of(k);
    if ((*replicas_)[k].empty() ||
        (range.last - range.first > 1 && !original_.buffers.empty())) {
      add(Storage::kOwn);
    }
  }
}

std::vector<int64_t> ReplicaGroup::split(int64_t batch) const {
  std::vector<int64_t> samples;
  const auto devices =
      static_cast<int64_t>(devices_.size()) * options_.process_group().size();
  for (int64_t k = 0; k < devices; ++k) {
    const ShardRange range = shards_of_worker(k, devices, shards_);
    samples.push_back(samples_of(range, batch, shards_).count());
  }
  return samples;
}

std::string ReplicaGroup::damaged_copy() const {
  const torch::NoGradGuard no_grad;
  const auto bytes_of = [](const Tensor& tensor) {
    return tensor.detach().to(torch::kCPU).contiguous().view(torch::kUInt8);
  };
  for (const auto& worker_values : *replicas_) {
    for (const Replica& replica : worker_values) {
      const auto& copies = replica.module().parameters;
      for (size_t i = 0; i < copies.size(); ++i) {
        const auto& [name, original] = original_.parameters[i];
        const Tensor& copy = copies[i].second;
        // An update checks the copies of use_copies() itself.
        if (copy.scalar_type() != original.scalar_type() ||
            copy.is_alias_of(original) || copy.numel() == 0 ||
            torch::equal(bytes_of(copy), bytes_of(original))) {
          continue;
        }
        return fmt::format(
            "the copy of parameter '{}' on {} is not what {} "
            "has",
            name, replica.device().name(), devices_[0].name());
      }
    }
  }
  return "";
}

void ReplicaGroup::check_not_nested() const {
  const ReplicaGroup* outer = group_of_thread;
  // With one worker, the caller waits for the wrappers that it calls. Several
  // workers would call a wrapper at the same time.
  if (!outer || (outer != this && outer->devices_.size() == 1)) return;
  const std::string inner =
      original_.type.empty() ? "a module" : "the module " + original_.type;
  throw ParallelError(
      "parallel",
      {.code = ErrorCode::kMisuse,
       .what = fmt::format("{} is wrapped, and the wrapper is used in a shard "
                           "or a replica of another wrapped module, {}",
                           inner, outer->original_.type),
       .expected = "one wrapper, around the outermost module",
       .fix = "register the inner module as a submodule and call it itself; "
              "what a loss needs from another wrapped module, compute before "
              "train_step() and pass it as a part of the target"});
}

bool ReplicaGroup::is_at_work() const { return group_of_thread == this; }

void ReplicaGroup::check_inputs(const IValue& inputs) const {
  for (const auto& [tensor, path, is_shared] : tensors_in(inputs)) {
    const auto place = device_of(tensor);
    const bool is_here =
        place ? std::any_of(devices_.begin(), devices_.end(),
                            [&](const Device& device) {
                              return device.type == place->type &&
                                     device.index == place->index;
                            })
              : tensor.is_cpu();  // host memory can be copied to any device
    if (is_here) continue;
    throw InvalidArgument(
        "parallel",
        {.code = ErrorCode::kBadBatch,
         .what = fmt::format("input{} is on a device without a replica", path),
         .expected = join_names(devices_) + ", or memory of the host",
         .got = place ? place->name() : tensor.device().str(),
         .fix = "move the input there first: x.to(model->module()->"
                "parameters()[0].device())"});
  }
}

void ReplicaGroup::watch_batch(int64_t samples, int64_t chunks, bool trains) {
  // The samples of the other ranks are not known here.
  if (options_.process_group().size() > 1) return;
  const std::vector<int64_t> shares = split(samples);
  std::vector<Device> idle;
  for (size_t k = 0; k < devices_.size(); ++k) {
    if (shares[k] == 0) idle.push_back(devices_[k]);
  }
  if (!idle.empty()) {
    warn_once(
        fmt::format("idle-{}", samples), "parallel",
        fmt::format("a batch of {} makes {} for {}; idle: {}; use a "
                    "batch of at least {}",
                    samples, counted(chunks, "chunk"),
                    counted(shards_, "shard"), join_names(idle), shards_));
  }
  if (!trains) return;
  if (last_batch_ >= 0 && samples != last_batch_) {
    warn_once("batch-size-changed", "parallel",
              fmt::format("the batch size changed from {} to {} (a last, "
                          "smaller batch?); each device now gets {}; "
                          "train_step() weighs every shard by its samples",
                          last_batch_, samples, fmt::join(shares, "/")));
  }
  last_batch_ = samples;
}

std::vector<IValue> ReplicaGroup::cut(const IValue& inputs,
                                      const std::vector<int64_t>& sizes) const {
  check_inputs(inputs);
  return detail::cut(inputs, sizes, shard_devices_, options_.dim());
}

std::vector<IValue> ReplicaGroup::scatter_checked(const IValue& inputs,
                                                  bool trains) {
  check_not_nested();
  torch::NoGradGuard no_grad;
  check_inputs(inputs);
  auto parts = scatter(inputs, shard_devices_, options_.dim());
  if (const auto samples = batch_size_of(inputs, options_.dim())) {
    watch_batch(*samples, static_cast<int64_t>(parts.size()), trains);
  }
  return parts;
}

// The module may change after it was wrapped.

void ReplicaGroup::read_original() {
  original_ = module_.read();
  identity_ = original_.identity();
  members_.start(original_.object);
  detail::check_on_device(original_, devices_[0]);
  parameters_.clear();
  unique_.clear();
  std::unordered_map<const void*, size_t> places;
  for (const auto& [name, parameter] : original_.parameters) {
    const auto [place, is_new] =
        places.try_emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
    if (is_new) parameters_.push_back(parameter);
    unique_.push_back(place->second);
  }
  blocks_ = optim::cut_into_blocks(parameters_);
}

void ReplicaGroup::drop_gradients() const {
  for (const Tensor& parameter : parameters_) {
    parameter.mutable_grad().reset();
  }
}

void ReplicaGroup::rebuild() {
  const c10::InferenceMode normal(false);
  ++build_;
  buffer_snapshot_.clear();
  try {
    read_original();
    make_replicas();
  } catch (...) {
    // There may be no replicas now, so the next forward has to try again.
    identity_.clear();
    throw;
  }
}

void ReplicaGroup::remake_replicas() {
  const c10::InferenceMode normal(false);
  try {
    make_replicas();
  } catch (...) {
    // As in rebuild().
    identity_.clear();
    throw;
  }
  constexpr int64_t kOften = 20;
  if (++remade_ == kOften) {
    warn_once(
        "members-change-often", "parallel",
        fmt::format(
            "members of {} that are not registered changed {} times after "
            "it was wrapped; each time all replicas are made again and "
            "compared with it: pass such a value to forward(), or "
            "register it as a buffer and write to that",
            original_.type, kOften));
  }
}

void ReplicaGroup::follow_members_in_evaluation() {
  if (!members_.has_change()) return;
  std::vector<std::byte> members = members_.bytes();
  if (members == evaluated_members_) return;
  remake_replicas();
  evaluated_members_ = std::move(members);
}

void ReplicaGroup::follow_module() {
  if (original_.identity() == identity_) return;
  rebuild();
  if (build_ == 10) {
    warn_once("rebuilt-often", "parallel",
              "the module's members changed ten times after it was wrapped; "
              "each time all replicas are made again: keep what changes at "
              "every step outside of the module");
  }
}

bool ReplicaGroup::is_training() const {
  const std::vector<bool> modes = original_.modes();
  return std::find(modes.begin(), modes.end(), true) != modes.end();
}

std::vector<bool> ReplicaGroup::are_reached(
    const std::function<bool(const Tensor& leaf)>& is_reached) const {
  std::vector<bool> reached(parameters_.size());
  for (const auto& worker_values : *replicas_) {
    for (const Replica& replica : worker_values) {
      const auto& parameters = replica.module().parameters;
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (is_reached(parameters[i].second)) reached[unique_[i]] = true;
      }
    }
  }
  return reached;
}

// Running a forward or a step: the worker, buffers and random numbers of each
// shard.

void ReplicaGroup::follow_seed() {
  if (options_.seed()) {
    seed_ = *options_.seed();
    return;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  seed_ = generator.current_seed();
}

void ReplicaGroup::begin(int64_t chunks) {
  check_not_nested();
  follow_seed();
  copies_ = {};
  ++forwards_;
  // Tensors kept here outlive an evaluation under c10::InferenceMode.
  const c10::InferenceMode normal(false);
  follow_module();
  detail::check_on_device(original_, devices_[0]);
  if (original_.members) member_snapshot_ = original_.members();
  if (original_.buffers.empty()) return;
  const bool is_mean = averages_buffers();
  if (is_mean) shard_buffers_.assign(static_cast<size_t>(chunks), {});
  if (shards_ == 1 && !is_mean) return;
  torch::NoGradGuard no_grad;
  // Shard 0 changes the original's buffers while the other shards read them.
  buffer_snapshot_.resize(original_.buffers.size());
  for (size_t i = 0; i < buffer_snapshot_.size(); ++i) {
    const Tensor& buffer = original_.buffers[i].second;
    Tensor& copy = buffer_snapshot_[i];
    if (copy.defined() && copy.sizes() == buffer.sizes() &&
        copy.options().type_equal(buffer.options())) {
      copy.copy_(buffer);
    } else {
      copy = buffer.clone();
    }
  }
}

void ReplicaGroup::use_copies(std::span<const Tensor> copies) {
  copies_ = copies;
  ++forwards_;  // load_replica() has to place the leaves again
}

ReplicaGroup::RandomStream ReplicaGroup::forward_stream(bool trains) {
  if (trains) return {.step = step_};
  return {.step = forwards_aside_++, .phase = 1};
}

void ReplicaGroup::for_each_worker(
    const std::function<void(size_t worker)>& task) {
  check_not_nested();
  run_all(workers_, [&](size_t k) {
    const TraceLane lane(rank(), devices_[k].name());
    task(k);
  });
}

std::unique_lock<std::mutex> ReplicaGroup::turn_of(size_t worker) {
  const Device& device = devices_[worker];
  const bool is_alone =
      device.is_cpu() ||
      std::count(devices_.begin(), devices_.end(), device) == 1;
  if (is_alone) return {};
  return std::unique_lock(turns_.at(device.name()));
}

void ReplicaGroup::for_each_shard(int64_t chunks, const RandomStream& stream,
                                  const ShardTask& task, Replicas* replicas) {
  if (!replicas) replicas = replicas_.get();
  // With one shard on one rank, nothing shares its parameters.
  const ParameterWrites writes(shards_ > 1 ? parameters_ : kNoParameters);
  const auto check_writes = [&](const std::string& failure) {
    if (const auto p = writes.first()) {
      refuse_written_parameter(name_of(*p), options_.process_group().size(),
                               failure);
    }
  };
  // LibTorch runs a backward on GPUs in its own thread of each GPU. This is one
  // of them. A worker's backward would wait for it, while it waits for the
  // worker.
  const bool runs_here = !devices_[0].is_cpu() &&
                         torch::autograd::get_current_graph_task_id() >= 0;
  const auto run_shards = [&](size_t k) {
    const TraceLane lane(rank(), devices_[k].name());
    const std::unique_lock<std::mutex> turn = turn_of(k);
    const ShardRange range = shards_of(k);
    try {
      for (int64_t s = range.first; s < std::min(range.last, chunks); ++s) {
        const RandomScope random(seed_, static_cast<uint64_t>(stream.step),
                                 static_cast<uint64_t>(s), stream.phase);
        const ShardScope scope(this, s);
        auto& own = (*replicas)[k];
        task(k, s, s == 0 ? own.front() : own.back());
      }
      if (!runs_here) accelerator::synchronize(devices_[k]);
    } catch (const std::exception&) {
      rethrow_of_replica(k, devices_[k]);
    }
  };
  try {
    if (runs_here) {
      // This may be in the middle of another backward (ParallelBackward).
      const ShardScope outside(nullptr, -1);
      for (size_t k = 0; k < workers_.size(); ++k) {
        workers_[k]->run_here([&] { run_shards(k); });
      }
    } else {
      check_not_nested();
      run_all(workers_, run_shards);
    }
  } catch (const std::exception& error) {
    // A write by one shard can make the backward of another shard fail.
    check_writes(text_of(error));
    throw;
  }
  check_writes("");
}

void ReplicaGroup::on_shard(int64_t shard, int64_t chunks,
                            const RandomStream& stream,
                            const std::function<void(Replica& replica)>& task) {
  for_each_shard(chunks, stream, [&](size_t, int64_t s, Replica& replica) {
    if (s == shard) task(replica);
  });
}

const std::string& ReplicaGroup::name_of(size_t p) const {
  const auto at = std::find(unique_.begin(), unique_.end(), p);
  return original_.parameters[static_cast<size_t>(at - unique_.begin())].first;
}

bool ReplicaGroup::averages_buffers() const {
  return options_.buffers() == Buffers::kMean && !original_.buffers.empty();
}

void ReplicaGroup::load_replica(int64_t shard, Replica& replica) {
  ParameterCasts casts;
  if (!copies_.empty()) casts = {copies_, unique_};
  replica.refresh_for(forwards_, original_, casts);
  if (original_.members) replica.module().set_members(member_snapshot_);
  if (!buffer_snapshot_.empty() && (shard != 0 || averages_buffers())) {
    replica.set_buffers(buffer_snapshot_);
  }
}

void ReplicaGroup::keep_buffers(int64_t shard, const Replica& replica) {
  if (!averages_buffers()) return;
  torch::NoGradGuard no_grad;
  auto& kept = shard_buffers_[static_cast<size_t>(shard)];
  kept.clear();
  for (const auto& [name, buffer] : replica.module().buffers) {
    kept.push_back(buffer.clone());
  }
}

void ReplicaGroup::finish_buffers(int64_t chunks) {
  // Attributes that a script counts in are kept like buffers: those of shard 0.
  if (original_.members && rank() == 0) {
    original_.set_members(replicas_->front().front().module().members());
  }
  if (!averages_buffers()) return;
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < original_.buffers.size(); ++i) {
    Tensor sum = to_device(shard_buffers_[0][i], devices_[0]);
    if (sum.is_floating_point()) {
      for (size_t s = 1; s < static_cast<size_t>(chunks); ++s) {
        sum.add_(to_device(shard_buffers_[s][i], devices_[0]));
      }
      sum.div_(chunks);
    }
    original_.buffers[i].second.copy_(sum);
  }
  shard_buffers_.clear();
}

}  // namespace lockstep
