#include "lockstep/parallel/step/step_batch.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Returns a batch that is not cut yet.
StepBatch uncut(const ReplicaGroup& group, std::vector<IValue> arguments,
                const IValue& target, bool needs_graph) {
  arguments.push_back(target);
  const IValue all = c10::ivalue::Tuple::create(std::move(arguments));
  return {.all = all,
          .differentiable = DifferentiableInputs(all, needs_graph),
          .shard_samples = {},
          .parts = {},
          .first_shard = static_cast<size_t>(group.own_shards().first)};
}

/// Throws ParallelError unless `batch` has the samples of this rank's shards.
void check_own_samples(const ReplicaGroup& group, const StepBatch& batch) {
  const int64_t expected =
      samples_of(group.own_shards(), batch.samples, group.shards()).count();
  if (batch.own_samples == expected) return;
  throw ParallelError(
      "ddp",
      {.code = ErrorCode::kSamplesDiffer,
       .what = fmt::format("rank {} got another part of the batch than its own",
                           group.rank()),
       .expected =
           fmt::format("{} of {}", expected, counted(batch.samples, "sample")),
       .got = fmt::format("{}", batch.own_samples),
       .fix = "cut the batch in chunks of ceil(samples / shards), as "
              "data::Loader does with `part`"});
}

/// Returns the samples of this rank's shards.
std::vector<int64_t> own_shards_of(const ReplicaGroup& group,
                                   const std::vector<int64_t>& samples) {
  const auto count = static_cast<int64_t>(samples.size());
  const ShardRange& own = group.own_shards();
  return {samples.begin() + std::min(own.first, count),
          samples.begin() + std::min(own.last, count)};
}

}  // namespace

StepBatch cut_batch(ReplicaGroup& group, std::vector<IValue> arguments,
                    const IValue& target, int64_t all_samples,
                    bool needs_graph) {
  StepBatch batch = uncut(group, std::move(arguments), target, needs_graph);
  const IValue& all = batch.all;
  const ProcessGroup& world = group.options().process_group();
  if (world.size() == 1) {
    batch.parts = group.scatter_checked(all, needs_graph);
    batch.samples = batch_size_of(all, group.dim()).value_or(0);
    batch.own_samples = batch.samples;
    batch.shard_samples = chunk_sizes(batch.samples, group.shards());
    // Without a tensor to split, all shards have an equal part in the step.
    batch.shard_samples.resize(batch.parts.size());
    return batch;
  }
  batch.own_samples = batch_size_of(all, group.dim()).value_or(0);
  batch.samples =
      all_samples >= 0 ? all_samples : batch.own_samples * world.size();
  batch.shard_samples = chunk_sizes(batch.samples, group.shards());
  check_own_samples(group, batch);
  const torch::NoGradGuard no_grad;
  batch.parts = group.cut(all, own_shards_of(group, batch.shard_samples));
  return batch;
}

StepBatch cut_forward(ReplicaGroup& group, std::vector<IValue> arguments,
                      bool needs_graph) {
  const bool has_arguments = !arguments.empty();
  StepBatch batch =
      uncut(group, std::move(arguments), /*target=*/IValue(), needs_graph);
  const IValue& all = batch.all;
  if (!has_arguments) {
    batch.parts = {all};
  } else {
    batch.parts = group.scatter_checked(all, needs_graph);
    batch.own_samples = batch_size_of(all, group.dim()).value_or(0);
    batch.samples = batch.own_samples;
    const ShardRange& own = group.own_shards();
    batch.shard_samples = chunk_sizes(batch.samples, own.last - own.first);
  }
  batch.shard_samples.resize(batch.parts.size());
  // The samples of other ranks are not known here.
  batch.shard_samples.insert(batch.shard_samples.begin(), batch.first_shard, 0);
  return batch;
}

std::pair<std::vector<IValue>, IValue> arguments_and_target(
    const IValue& tuple) {
  std::vector<IValue> arguments = tuple.toTupleRef().elements().vec();
  IValue target = std::move(arguments.back());
  arguments.pop_back();
  return {std::move(arguments), std::move(target)};
}

StepBatch first_samples_of(const StepBatch& batch, const ReplicaGroup& group,
                           int64_t samples) {
  const torch::NoGradGuard no_grad;
  if (!batch_size_of(batch.all, group.dim())) return batch;
  std::vector<int64_t> kept = batch.shard_samples;
  for (int64_t& shard_samples : kept) {
    shard_samples = std::min(shard_samples, samples);
  }
  if (kept == batch.shard_samples) return batch;

  // Rows of this rank's tensors that are kept.
  std::vector<int64_t> rows;
  int64_t begin = 0;
  for (const int64_t size : own_shards_of(group, batch.shard_samples)) {
    for (int64_t i = 0; i < std::min(size, samples); ++i) {
      rows.push_back(begin + i);
    }
    begin += size;
  }
  const Tensor index = torch::tensor(rows, torch::kLong);
  const IValue all = map_split_tensors(batch.all, [&](const Tensor& tensor) {
    const Tensor selected =
        tensor.detach().index_select(group.dim(), index.to(tensor.device()));
    return selected.requires_grad_(tensor.requires_grad());
  });
  StepBatch few{.all = all,
                .differentiable = DifferentiableInputs(all),
                .own_samples = static_cast<int64_t>(rows.size()),
                .shard_samples = kept,
                .parts = group.cut(all, own_shards_of(group, kept)),
                .first_shard = batch.first_shard};
  for (const int64_t shard_samples : kept) few.samples += shard_samples;
  return few;
}

}  // namespace lockstep
