#include "lockstep/parallel/bf16/cast_weights.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <string>

#include "lockstep/device/autocast.h"
#include "lockstep/parallel/module/kept_tensors.h"
#include "lockstep/parallel/step/sharded_update.h"
#include "lockstep/parallel/trial/module_comparison.h"
#include "lockstep/parallel/trial/trial.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Returns whether copies can make the steps of this wrapper faster. The same
/// on all ranks.
bool are_useful(const StepContext& step) {
  const DataParallelOptions& options = step.group.options();
  const auto workers = static_cast<int64_t>(step.group.workers().size()) *
                       options.process_group().size();
  // With several shards on a worker, sums would have to go back to memory in
  // float.
  return step.optimizer && step.group.devices().front().is_cpu() &&
         step.group.shards() == workers &&
         options.replication() == Replication::kResident &&
         (!step.exchange || step.exchange->shares_memory());
}

/// Returns whether the shards of this step can use copies.
bool can_use(const StepContext& step) {
  return are_useful(step) && autocast_type(c10::kCPU) == CastCopies::kType &&
         step.updates_in_blocks();
}

/// Returns for each of the group's parameters whether the graph of the first
/// shard uses the replica's leaf only by autocast's cast. Returns nothing if
/// the rank has no shard.
std::vector<bool> scan(const StepContext& step) {
  ReplicaGroup& group = step.group;
  const Trial trial = trial_of(step);
  const KeptTensors buffers = kept_buffers(group.original());
  std::vector<bool> cast_once;
  const auto visit = [&](const Tensor& loss, const Replica& replica) {
    const auto& leaves = replica.module().parameters;
    std::vector<Tensor> leaf_of(group.parameters().size());
    std::vector<int> names(leaf_of.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaf_of[group.unique()[i]] = leaves[i].second;
      ++names[group.unique()[i]];
    }
    cast_once = are_cast_once({loss}, leaf_of);
    for (size_t p = 0; p < names.size(); ++p) {
      // A replica may have one leaf for each name.
      if (names[p] > 1) cast_once[p] = false;
    }
  };
  run_and_restore([&] { trial.on_first_graph(visit); },
                  [&] { buffers.restore(); });
  return cast_once;
}

/// Returns one character for each parameter, or "" if this rank can't use
/// copies in this step.
std::string report_of(const StepContext& step) {
  std::string report;
  if (!can_use(step)) return report;
  for (const bool is_cast : scan(step)) report += is_cast ? '1' : '0';
  return report;
}

}  // namespace

void CastWeights::before_step(const StepContext& step) {
  step_ = nullptr;
  outdated_ = 0;
  if (build_ != step.group.build()) {
    on_rebuild();
    build_ = step.group.build();
  }
  if (!are_useful(step)) return;
  if (state_ == State::kUnknown &&
      std::has_single_bit(static_cast<uint64_t>(++steps_))) {
    decide(step);
  }
  if (state_ != State::kInUse) return;
  refresh(step);
  if (can_use(step)) step.group.use_copies(copies_.tensors());
}

void CastWeights::on_rebuild() {
  state_ = State::kUnknown;
  steps_ = 0;
  copies_.reset();
}

void CastWeights::decide(const StepContext& step) {
  if (step.exchange) step.exchange->meet();
  const std::string own = report_of(step);
  std::vector<std::string> all{own};
  if (step.ranks.size() > 1) all = step.ranks.all_gather_text(own);
  const auto is_empty = [](const std::string& text) { return text.empty(); };
  if (std::any_of(all.begin(), all.end(), is_empty)) return;
  state_ = State::kOff;
  const bool are_equal =
      std::all_of(all.begin(), all.end(),
                  [&](const std::string& text) { return text == own; });
  if (!are_equal || own.find('1') == std::string::npos) return;

  std::vector<bool> is_cast;
  for (const char each : own) is_cast.push_back(each == '1');
  copies_.make(step.group.parameters(), is_cast, [&](const Tensor& like) {
    return step.exchange ? step.exchange->make_state(like)
                         : torch::empty_like(like);
  });
  write(step);
  step.group.use_copies(copies_.tensors());
  const bool differs = step.group.options().verify() != Verify::kNever &&
                       !have_bits_of_module(step);
  step.group.use_copies({});
  if (is_any(step.ranks, differs)) return copies_.reset();
  state_ = State::kInUse;
}

bool CastWeights::have_bits_of_module(const StepContext& step) {
  const Trial trial = trial_of(step);
  const KeptTensors buffers = kept_buffers(step.group.original());
  const auto comparison = run_module(trial, buffers);
  step.group.members().skip();
  // Replicas of such a module would be made again.
  if (!comparison || comparison->registers_in_forward()) return false;
  try {
    compare_replica(trial, *comparison);
  } catch (const std::exception&) {
    return false;  // the module may read the elements of a weight as float
  }
  return !comparison->differs();
}

void CastWeights::refresh(const StepContext& step) {
  if (!copies_.fit(step.group.parameters())) return on_rebuild();
  // Ranks that share memory have to write them at the same time, which they do
  // when they share the parameters. They refuse other changes of a parameter.
  const bool are_outdated = step.exchange
                                ? !copies_.are_valid()
                                : copies_.are_outdated(step.group.parameters());
  if (are_outdated) write(step);
  step_ = &step;
}

void CastWeights::write(const StepContext& step) {
  const std::vector<Tensor>& parameters = step.group.parameters();
  step.update.for_each_parameter_block("cast", [&](const optim::Block& block) {
    const auto p = static_cast<size_t>(block.tensor);
    copies_.write(parameters[p], p, block.offset, block.length);
  });
  if (step.exchange) barrier(step.ranks);
  copies_.note_written(parameters, std::vector<bool>(parameters.size(), true));
}

void CastWeights::before_block(size_t p, const optim::Block& block) {
  if (!step_) return;
  if (!copies_.is_current(step_->group.parameters()[p], p, block.offset,
                          block.length)) {
    outdated_ = p + 1;
  }
}

void CastWeights::after_block(size_t p, const optim::Block& block) {
  if (!step_) return;
  copies_.write(step_->group.parameters()[p], p, block.offset, block.length);
}

void CastWeights::after_update(const std::vector<bool>& is_updated) {
  if (!step_) return;
  const StepContext& step = *step_;
  step_ = nullptr;
  copies_.note_written(step.group.parameters(), is_updated);
  const size_t outdated = outdated_;
  if (outdated == 0) return;
  refuse_changed_memory(
      step.group, step.exchange, outdated - 1,
      "was changed between two steps in a way that leaves no trace (through "
      "data() or raw memory), so this step computed with its old value",
      "change it with { torch::NoGradGuard no_grad; parameter.copy_(value); } "
      "and continue from a checkpoint");
}

}  // namespace lockstep
