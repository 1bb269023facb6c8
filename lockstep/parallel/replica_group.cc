#include "lockstep/parallel/replica_group.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/device/cuda.h"
#include "lockstep/device/random.h"
#include "lockstep/device/tensor_device.h"
#include "lockstep/parallel/backward_node.h"
#include "lockstep/parallel/balance.h"
#include "lockstep/parallel/nested.h"
#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/parallel/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

int64_t check_shards(int64_t shards, size_t devices) {
  const auto k = static_cast<int64_t>(devices);
  if (shards == 0) return k;
  if (shards >= k) return shards;
  throw InvalidArgument(
      "parallel",
      {.what = "there are fewer shards than devices",
       .expected = fmt::format("at least {} shards, one a device", k),
       .got = fmt::format("{}", shards),
       .fix = "raise the number of shards or use fewer devices"});
}

int intra_op_threads(const DataParallelOptions& options,
                     const std::vector<Device>& devices, int64_t shards) {
  if (options.intra_op_threads() > 0) return options.intra_op_threads();
  if (devices[0].is_cuda()) return 0;
  size_t cores = 0;
  for (const Device& device : devices) cores += cores_of(device).size();
  return std::max(1, static_cast<int>(cores / static_cast<size_t>(shards)));
}

}  // namespace

ReplicaGroup::ReplicaGroup(ModuleHandle original,
                           const std::function<ModuleHandle()>& make_replica,
                           std::vector<Device> devices,
                           DataParallelOptions options)
    : original_(std::move(original)),
      devices_(std::move(devices)),
      options_(std::move(options)) {
  if (devices_.empty()) {
    throw InvalidArgument("parallel", {.what = "DataParallel got no devices",
                                       .fix = "pass devices(\"auto\")"});
  }
  output_device_ = options_.output_device().value_or(devices_[0]);
  shards_ = check_shards(options_.shards(), devices_.size());
  seed_ = options_.seed().value_or(
      at::detail::getDefaultCPUGenerator().current_seed());
  warn_of_imbalance(devices_);
  check_on_device(original_, devices_[0]);

  std::unordered_map<const void*, size_t> places;
  for (const auto& [name, parameter] : original_.parameters) {
    const auto [place, is_new] =
        places.try_emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
    if (is_new) parameters_.push_back(parameter);
    unique_.push_back(place->second);
  }
  blocks_ = optim::cut_into_blocks(parameters_);

  const int threads = intra_op_threads(options_, devices_, shards_);
  const auto count = static_cast<int64_t>(devices_.size());
  for (int64_t k = 0; k < count; ++k) {
    const Device& device = devices_[static_cast<size_t>(k)];
    workers_.push_back(std::make_unique<Worker>(device, threads));
    const ShardRange range = shards_of_worker(k, count, shards_);
    shard_devices_.insert(shard_devices_.end(),
                          static_cast<size_t>(range.last - range.first),
                          device);
  }
  make_replicas(make_replica);
}

void ReplicaGroup::make_replicas(
    const std::function<ModuleHandle()>& make_replica) {
  const bool is_resident = options_.replication() == Replication::kResident;
  const bool keeps_first = options_.buffers() == Buffers::kFirstShard;
  replicas_.resize(workers_.size());
  for (size_t k = 0; k < workers_.size(); ++k) {
    const auto add = [&](Storage buffers) {
      const Storage parameters =
          is_resident || k == 0 ? Storage::kShared : Storage::kOwn;
      // In the worker's thread: what a replica owns is on its account.
      workers_[k]->start([&] {
        replicas_[k].emplace_back(make_replica(), original_, devices_[k],
                                  parameters, buffers);
      });
      workers_[k]->wait();
    };
    if (k == 0 && keeps_first) add(Storage::kShared);
    const auto count = static_cast<int64_t>(workers_.size());
    const ShardRange range =
        shards_of_worker(static_cast<int64_t>(k), count, shards_);
    if (replicas_[k].empty() ||
        (range.last - range.first > 1 && !original_.buffers.empty())) {
      add(Storage::kOwn);
    }
  }
}

std::vector<int64_t> ReplicaGroup::split(int64_t batch) const {
  const auto chunks = chunk_sizes(batch, shards_);
  std::vector<int64_t> samples;
  for (size_t k = 0; k < workers_.size(); ++k) {
    const ShardRange range =
        shards_of_worker(static_cast<int64_t>(k),
                         static_cast<int64_t>(workers_.size()), shards_);
    samples.push_back(0);
    for (auto s = static_cast<size_t>(range.first);
         s < static_cast<size_t>(range.last) && s < chunks.size(); ++s) {
      samples.back() += chunks[s];
    }
  }
  return samples;
}

void ReplicaGroup::check_inputs(const IValue& inputs) const {
  for_each_tensor(inputs, [&](const Tensor& tensor, const std::string& path) {
    const auto place = device_of(tensor);
    const bool is_here =
        place ? std::any_of(devices_.begin(), devices_.end(),
                            [&](const Device& device) {
                              return device.kind == place->kind &&
                                     device.index == place->index;
                            })
              : tensor.is_cpu();  // memory of the host goes anywhere
    if (is_here) return;
    throw InvalidArgument(
        "parallel",
        {.what = fmt::format("input{} is on a device without a replica", path),
         .expected = join_names(devices_) + ", or memory of the host",
         .got = place ? place->name() : tensor.device().str(),
         .fix = "move the input there first: x.to(model->module()->"
                "parameters()[0].device())"});
  });
}

void ReplicaGroup::watch_batch(int64_t samples, int64_t chunks) {
  const std::vector<int64_t> shares = split(samples);
  std::vector<Device> idle;
  for (size_t k = 0; k < devices_.size(); ++k) {
    if (shares[k] == 0) idle.push_back(devices_[k]);
  }
  if (!idle.empty()) {
    warn_once(fmt::format("idle-{}", samples), "parallel",
              fmt::format("a batch of {} makes {} chunks for {} shards; idle: "
                          "{}; use a batch of at least {}",
                          samples, chunks, shards_, join_names(idle), shards_));
  }
  if (last_batch_ >= 0 && samples != last_batch_) {
    warn_once("batch-size-changed", "parallel",
              fmt::format("the batch size changed from {} to {} (a last, "
                          "smaller batch?); each device now gets {}; "
                          "train_step() weighs every shard by its samples",
                          last_batch_, samples, fmt::join(shares, "/")));
  }
  last_batch_ = samples;
}

std::vector<IValue> ReplicaGroup::scatter_checked(const IValue& inputs) {
  check_inputs(inputs);
  auto parts = scatter(inputs, shard_devices_, options_.dim());
  int64_t samples = -1;
  for_each_tensor(inputs, [&](const Tensor& tensor, const std::string&) {
    if (samples < 0) samples = tensor.size(options_.dim());
  });
  if (samples >= 0) watch_batch(samples, static_cast<int64_t>(parts.size()));
  return parts;
}

void ReplicaGroup::begin(int64_t chunks) {
  phases_ = {};
  worker_phases_.assign(workers_.size(), {});
  check_on_device(original_, devices_[0]);
  if (original_.buffers.empty()) return;
  const bool is_mean = options_.buffers() == Buffers::kMean;
  if (is_mean) shard_buffers_.assign(static_cast<size_t>(chunks), {});
  if (shards_ == 1 && !is_mean) return;
  torch::NoGradGuard no_grad;
  // Shard 0 changes the original's buffers while the others read them.
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

void ReplicaGroup::for_each_shard(int64_t chunks, const ShardTask& task) {
  const auto count = static_cast<int64_t>(workers_.size());
  run_all(workers_, [&](size_t k) {
    run_as_replica(k, devices_[k], [&] {
      const ShardRange range =
          shards_of_worker(static_cast<int64_t>(k), count, shards_);
      for (int64_t s = range.first; s < std::min(range.last, chunks); ++s) {
        task(k, s, s == 0 ? replicas_[k].front() : replicas_[k].back());
      }
      if (devices_[k].is_cuda()) cuda::synchronize();
    });
  });
}

IValue ReplicaGroup::forward_shard(size_t worker, int64_t shard,
                                   Replica& replica,
                                   const std::vector<IValue>& inputs) {
  const Stopwatch watch;
  replica.refresh(original_,
                  options_.replication() == Replication::kEveryForward);
  if (!buffer_snapshot_.empty() &&
      (shard != 0 || options_.buffers() == Buffers::kMean)) {
    replica.set_buffers(buffer_snapshot_);
  }
  const double replicate_s = watch.seconds();
  worker_phases_[worker].replicate_s += replicate_s;
  const RandomScope random(seed_, static_cast<uint64_t>(step_),
                           static_cast<uint64_t>(shard));
  IValue output = replica.forward(inputs);
  if (options_.buffers() == Buffers::kMean) {
    torch::NoGradGuard no_grad;
    auto& kept = shard_buffers_[static_cast<size_t>(shard)];
    for (const auto& [name, buffer] : replica.module().buffers) {
      kept.push_back(buffer.clone());
    }
  }
  worker_phases_[worker].forward_s += watch.seconds() - replicate_s;
  return output;
}

void ReplicaGroup::finish_buffers(int64_t chunks) {
  if (options_.buffers() != Buffers::kMean) return;
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

void ReplicaGroup::collect_phases() {
  for (const PhaseTimes& worker : worker_phases_) {
    const auto raise = [&](double PhaseTimes::*phase) {
      phases_.*phase = std::max(phases_.*phase, worker.*phase);
    };
    raise(&PhaseTimes::replicate_s);
    raise(&PhaseTimes::forward_s);
    raise(&PhaseTimes::backward_s);
  }
}

IValue ReplicaGroup::forward(const std::vector<IValue>& inputs) {
  Stopwatch watch;
  const bool needs_graph = torch::GradMode::is_enabled();
  const IValue all = c10::ivalue::Tuple::create(inputs);
  auto region = std::make_shared<Region>();
  std::vector<Tensor> differentiable;
  if (needs_graph) {
    for_each_tensor(all, [&](const Tensor& tensor, const std::string&) {
      if (!tensor.requires_grad()) return;
      differentiable.push_back(tensor);
      region->input_devices.push_back(tensor.device());
    });
  }
  std::vector<IValue> parts;
  {
    torch::NoGradGuard no_grad;
    parts = inputs.empty() ? std::vector<IValue>{all} : scatter_checked(all);
  }
  const auto chunks = static_cast<int64_t>(parts.size());
  region->outputs.resize(parts.size());
  region->input_leaves.resize(parts.size());
  begin(chunks);
  phases_.scatter_s = watch.restart();

  std::vector<IValue> outputs(parts.size());
  std::vector<bool> requires_grad;
  for_each_tensor(all, [&](const Tensor& tensor, const std::string&) {
    requires_grad.push_back(needs_graph && tensor.requires_grad());
  });
  for_each_shard(chunks, [&](size_t worker, int64_t shard, Replica& replica) {
    const auto s = static_cast<size_t>(shard);
    size_t at = 0;
    const IValue own = map_tensors(parts[s], [&](const Tensor& chunk) {
      if (!requires_grad[at++]) return chunk.detach();
      Tensor leaf = chunk.detach().requires_grad_();
      region->input_leaves[s].push_back(leaf);
      return leaf;
    });
    outputs[s] = forward_shard(worker, shard, replica,
                               own.toTupleRef().elements().vec());
  });
  collect_phases();
  finish_buffers(chunks);
  ++step_;

  watch.restart();
  bool has_graph = false;
  std::vector<bool> output_has_graph;
  for (size_t s = 0; s < outputs.size(); ++s) {
    for_each_tensor(outputs[s], [&](const Tensor& out, const std::string&) {
      region->outputs[s].push_back(out);
      output_has_graph.resize(
          std::max(output_has_graph.size(), region->outputs[s].size()));
      if (!out.requires_grad()) return;
      has_graph = true;
      output_has_graph[region->outputs[s].size() - 1] = true;
    });
    torch::NoGradGuard no_grad;
    outputs[s] =
        map_tensors(outputs[s], [](const Tensor& out) { return out.detach(); });
  }
  IValue gathered = [&] {
    torch::NoGradGuard no_grad;
    return gather(outputs, output_device_, options_.dim());
  }();
  phases_.gather_s = watch.seconds();
  if (!needs_graph || !has_graph) return gathered;

  auto node = std::make_shared<ParallelBackward>(shared_from_this(), region);
  auto edges = torch::autograd::collect_next_edges(parameters_);
  for (auto& edge : torch::autograd::collect_next_edges(differentiable)) {
    edges.push_back(std::move(edge));
  }
  node->set_next_edges(std::move(edges));
  size_t at = 0;
  for_each_tensor(gathered, [&](const Tensor& out, const std::string&) {
    if (output_has_graph[at++]) {
      torch::autograd::set_history(out, node);
    } else {
      node->add_input_metadata(out);
    }
  });
  return gathered;
}

}  // namespace lockstep
