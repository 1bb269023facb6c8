// How ReplicaGroup runs a shard: on which worker, with which buffers and random
// numbers.
#include <algorithm>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/cuda.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/parallel_apply.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

void ReplicaGroup::begin(int64_t chunks) {
  phases_ = {};
  worker_phases_.assign(workers_.size(), {});
  ++forwards_;
  // What is kept here outlives an evaluation under c10::InferenceMode.
  const c10::InferenceMode normal(false);
  follow_module();
  check_on_device(original_, devices_[0]);
  if (original_.members) member_snapshot_ = original_.members();
  if (original_.buffers.empty()) return;
  if (exchange_) exchange_->load_buffers();
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

bool ReplicaGroup::is_training() const {
  const std::vector<bool> modes = original_.modes();
  return std::find(modes.begin(), modes.end(), true) != modes.end();
}

// A forward that does not train draws from streams aside: however often it is
// called, the next step's dropout is the same.
ReplicaGroup::RandomStream ReplicaGroup::forward_stream(bool trains) {
  if (trains) return {.step = step_};
  return {.step = forwards_aside_++, .phase = 1};
}

// A backward draws other numbers than its forward, and than another backward
// through the same graph.
ReplicaGroup::RandomStream ReplicaGroup::backward_stream(Region& region) {
  RandomStream stream = region.stream;
  stream.phase += 2 * static_cast<uint64_t>(++region.backwards);
  return stream;
}

TraceLane ReplicaGroup::lane_of(size_t worker) const {
  return TraceLane(rank(), devices_[worker].name());
}

void ReplicaGroup::for_each_shard(int64_t chunks, const ShardTask& task,
                                  const RandomStream& stream) {
  run_all(workers_, [&](size_t k) {
    const TraceLane lane = lane_of(k);
    run_as_replica(k, devices_[k], [&] {
      const ShardRange range = shards_of(k);
      for (int64_t s = range.first; s < std::min(range.last, chunks); ++s) {
        const RandomScope random(seed_, static_cast<uint64_t>(stream.step),
                                 static_cast<uint64_t>(s), stream.phase);
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
  {
    const TraceSpan span("replicate", TraceCategory::kCompute, shard);
    replica.refresh_for(forwards_, original_);
    if (original_.members) replica.module().set_members(member_snapshot_);
    if (!buffer_snapshot_.empty() &&
        (shard != 0 || options_.buffers() == Buffers::kMean)) {
      replica.set_buffers(buffer_snapshot_);
    }
  }
  const double replicate_s = watch.seconds();
  worker_phases_[worker].replicate_s += replicate_s;
  const TraceSpan span("forward", TraceCategory::kCompute, shard);
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
  // What a script counts in an attribute is kept as its buffers are: shard 0's.
  if (original_.members && rank() == 0) {
    original_.set_members(replicas_[0].front().module().members());
  }
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

}  // namespace lockstep
