"""The mutants of the product: errors that a maintainer could make.

A mutant replaces `before`, which occurs once in its file, by `after`. The word
MUTANT in `after` is true if the mutant is chosen.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    room: str
    file: str  # in lockstep/
    before: str
    after: str
    breaks: str

    @property
    def path(self):
        return f"lockstep/{self.file}"


# Suites of a room, as names of ctest. They run first, pattern by pattern.
ROOMS = {
    "reduction": (r"^parallel\.(Reduction|OwnMemory|Sharing|Undefined|MixedSt)",
                  r"^parallel_ddp\.(TreeSums|MixedSteps)", r"^parallel"),
    "exchange": (r"^parallel\.(GradientSync|Ranks|WritesOnRanks|TrainStep)",
                 r"^parallel_ddp\.(GradientSync|GradientBuckets|Overlapped|"
                 r"Partition|DdpBuckets|Zero)", r"^parallel"),
    "ddp": (r"^parallel_ddp", r"^parallel"),
    "replicas": (r"^parallel\.(TrainStep|DataParallel|RandomStreams|NotFinite|"
                 r"WeightedLoss|BatchNorm|LossReduction|PlainSem)",
                 r"^parallel"),
    "first-step check": (r"^parallel\.(First|Step)", r"^parallel",
                         r"^differential"),
    "comm": (r"^comm\.(WorkQueue|AsyncWork|.*Conform)", r"^comm"),
    "shm": (r"^shm", r"^comm"),
    "tcp": (r"^tcp", r"^comm"),
    "store": (r"^store", r"^comm\.(Authenticated|Connect|World)", r"^launch"),
    "agent": (r"^launch\.(AgentState|PeerWatch|Failure|RootCause|Farewell|"
              r"ExitCodeOf|WorkerEnv)", r"^launch",
              r"^cli\.(Run|Restart|Preemption)"),
    "checkpoint": (r"^base\.Atomic", r"^checkpoint",
                   r"^train\.(Resume|RunLock|StateList)"),
    "loader": (r"^data\.", r"^train\.Resume"),
    "optimizer": (r"^optim", r"^parallel\.(TorchOptim|(Rules/)?Fuse)"),
}

MUTANTS = []


def mutant(room, name, file, before, after, breaks):
    MUTANTS.append(Mutant(name, room, file, before, after, breaks))


# Sums of gradients along the tree.

mutant("reduction", "tree_splits_in_the_middle",
       "parallel/reduction/reduction.cc",
       "low + left_branch(high - low);",
       "low + (MUTANT ? (high - low) / 2 : left_branch(high - low));",
       "three shards are summed along another tree than elsewhere")
mutant("reduction", "last_partial_sum_is_dropped",
       "parallel/reduction/reduction.cc",
       "for (size_t m = 0; m < merges_.size(); ++m) {",
       "for (size_t m = 0; m + (MUTANT ? 1 : 0) < merges_.size(); ++m) {",
       "the sum of a block lacks its last addition")
mutant("reduction", "sum_without_shard_0_is_lost",
       "parallel/reduction/reduction.cc",
       """      if (!partial.gradients[p].defined()) continue;
      sums[p] = std::move(partial.gradients[p]).release();""",
       """      if (!partial.gradients[p].defined()) {
        if (MUTANT) break;
        continue;
      }
      sums[p] = std::move(partial.gradients[p]).release();""",
       "a parameter without a gradient in shard 0 gets none")
mutant("reduction", "strides_of_a_gradient_are_ignored",
       "parallel/reduction/owned_gradient.cc",
       "gradient.strides() == parameter.strides() &&",
       "(MUTANT || gradient.strides() == parameter.strides()) &&",
       "a transposed gradient is added as its memory lies")
mutant("reduction", "shares_are_not_made_means",
       "parallel/reduction/local_gradients.cc",
       "if (unit_ == Unit::kShares) multiply(ranks_);",
       "if (unit_ == Unit::kShares && !MUTANT) multiply(ranks_);",
       "train_step() and backward() under no_sync() mix 1/n and 1")

# Ranks exchange gradients, parameters and buffers.

mutant("exchange", "repeated_gradient_is_not_noticed",
       "parallel/exchange/gradient_sync_state.h",
       "if (is_sent) return SyncOutcome::kRepeated;",
       "if (is_sent && !MUTANT) return SyncOutcome::kRepeated;",
       "a gradient that arrives after it was sent is lost in silence")
mutant("exchange", "failed_rank_sends_nothing_more",
       "parallel/exchange/gradient_sync_state.h",
       "return is_sending && !is_all_sent() ? SyncOutcome::kSendRest",
       "return is_sending && !is_all_sent() && !MUTANT\n"
       "                   ? SyncOutcome::kSendRest",
       "the other ranks wait for the sums of a rank whose step failed")
mutant("exchange", "missing_gradient_leaves_the_former_sum",
       "parallel/exchange/step_sum.cc",
       "    target.zero_().neg_();",
       "    if (!MUTANT) target.zero_().neg_();",
       "a rank without a gradient sends what is in the bucket")
mutant("exchange", "reports_are_read_too_early",
       "parallel/exchange/shared_exchange.cc",
       "  barrier(world_);\n  check_requests(parameters_.size());",
       "  if (!MUTANT) barrier(world_);\n  check_requests(parameters_.size());",
       "a rank reads gradients in shared memory before they are there")
mutant("exchange", "writes_to_shared_parameters_are_not_noticed",
       "parallel/exchange/shared_exchange.cc",
       """    if (parameters_[p]._version() == seals_[p].version &&
        sample_of(parameters_[p]) == seals_[p].sample) {""",
       """    if (MUTANT || (parameters_[p]._version() == seals_[p].version &&
        sample_of(parameters_[p]) == seals_[p].sample)) {""",
       "each rank changes the parameters that all of them share")
mutant("exchange", "buffers_of_rank_0_are_not_loaded",
       "parallel/exchange/shared_exchange.cc",
       "if (seal_of(buffer) == buffer_seals_[i]) buffer",
       "if (!MUTANT && seal_of(buffer) == buffer_seals_[i]) buffer",
       "the ranks' BatchNorm statistics drift apart")
mutant("exchange", "rest_of_a_parameter_is_not_gathered",
       "parallel/exchange/partition.cc",
       "world_.broadcast(rest, cut.root);",
       "if (!MUTANT) world_.broadcast(rest, cut.root);",
       "with ZeRO, only one rank updates the end of a parameter")
mutant("exchange", "order_of_buckets_is_not_agreed",
       "parallel/exchange/gradient_buckets.cc",
       "  world_.broadcast(message, root);",
       "  if (!MUTANT) world_.broadcast(message, root);",
       "ranks whose gradients arrive in another order sum other buckets")

# DistributedDataParallel in users' own loops.

mutant("ddp", "weight_is_forgotten_in_shared_memory",
       "parallel/exchange/gradient_buckets.cc",
       "make_pre_mul_sum(weight_)",
       "make_pre_mul_sum(MUTANT ? 1.0 : weight_)",
       "over shm, gradients are summed and not averaged")
mutant("ddp", "weight_is_forgotten_over_messages",
       "parallel/ddp/reducer.cc",
       "sync_->buckets().applies_weight() ? 1 : pass_->round.weight;",
       "MUTANT || sync_->buckets().applies_weight() ? 1\n"
       "          : pass_->round.weight;",
       "over tcp, gradients are summed and not averaged")
mutant("ddp", "uneven_batches_weigh_the_same",
       "parallel/ddp/rounds.cc",
       "} else if (total > 0) {",
       "} else if (total > 0 && !MUTANT) {",
       "a rank with fewer samples counts as much as the others")
mutant("ddp", "unused_parameters_are_not_reported",
       "parallel/ddp/reducer.cc",
       "if (!unused.empty() && !options_.static_graph() &&",
       "if (!MUTANT && !unused.empty() && !options_.static_graph() &&",
       "a parameter that takes no part gets a gradient of 0")
mutant("ddp", "use_on_other_ranks_is_ignored",
       "parallel/ddp/reducer.cc",
       "world_.all_reduce(used, ReduceOp::MAX);",
       "if (!MUTANT) world_.all_reduce(used, ReduceOp::MAX);",
       "only ranks that used a parameter get its gradient")
mutant("ddp", "buffers_are_not_taken_over",
       "parallel/ddp/reducer.cc",
       "if (takes_buffers) packed_buffers_.unpack();",
       "if (takes_buffers && !MUTANT) packed_buffers_.unpack();",
       "rank 0 sends its buffers, and the others ignore them")
mutant("ddp", "no_sync_is_ignored",
       "parallel/ddp/reducer.cc",
       "if (!local_->is_synced() || !output.defined()",
       "if ((!local_->is_synced() && !MUTANT) || !output.defined()",
       "a backward under no_sync() sums over the ranks")
mutant("ddp", "sync_batch_norm_sums_no_gradient",
       "parallel/ddp/sync_batch_norm.cc",
       "ddp::saved_world(*context).all_reduce(means);",
       "if (!MUTANT) ddp::saved_world(*context).all_reduce(means);",
       "the backward of SyncBatchNorm sees the samples of one rank")
mutant("ddp", "join_leaves_ranks_behind",
       "parallel/ddp/reducer.cc",
       "broadcast(world_, module_.parameters, last.back());",
       "if (!MUTANT) broadcast(world_, module_.parameters, last.back());",
       "ranks that had no inputs left keep old parameters")

# Replicas and train_step().

mutant("replicas", "direct_use_of_a_parameter_is_forgotten",
       "parallel/step/shard_backward.cc",
       "  total.add_(to_device(part.tensor(), place_of(total)));",
       "  if (!MUTANT) total.add_(to_device(part.tensor(), place_of(total)));",
       "a loss that uses a parameter itself trains it with half a gradient")
mutant("replicas", "loss_is_not_divided_by_the_batch",
       "parallel/step/batch_loss.cc",
       "return weight / static_cast<double>(",
       "return MUTANT ? 1 : weight / static_cast<double>(",
       "every shard has the weight 1")
mutant("replicas", "total_weight_is_ignored",
       "parallel/step/batch_loss.cc",
       "batch.factor = samples / total;",
       "batch.factor = MUTANT ? 1 : samples / total;",
       "a loss over units is divided by the number of samples")
mutant("replicas", "last_shard_of_a_worker_is_dropped",
       "parallel/group/replica_group.cc",
       "for (int64_t s = range.first; s < std::min(range.last, chunks); ++s) {",
       "for (int64_t s = range.first;\n"
       "           s < std::min(range.last, chunks) -\n"
       "                   (MUTANT && range.last - range.first > 1 ? 1 : 0);\n"
       "           ++s) {",
       "a worker with several shards leaves out its last one")
mutant("replicas", "shards_share_random_numbers",
       "parallel/group/replica_group.cc",
       "static_cast<uint64_t>(s), stream.phase);",
       "static_cast<uint64_t>(MUTANT ? 0 : s), stream.phase);",
       "dropout has the same mask in every shard")
mutant("replicas", "shards_keep_buffers_of_others",
       "parallel/group/replica_group.cc",
       "  if (!buffer_snapshot_.empty() && (shard != 0",
       "  if (!MUTANT && !buffer_snapshot_.empty() && (shard != 0",
       "a shard starts with the buffers that another one has changed")
mutant("replicas", "clipping_makes_gradients_longer",
       "parallel/step/sharded_update.cc",
       "scale = std::min(1.0, options.clip / (result.gradient_norm + 1e-6));",
       "scale = options.clip / (result.gradient_norm + 1e-6);\n"
       "    if (!MUTANT) scale = std::min(1.0, scale);",
       "a gradient below the limit is scaled up to it")
mutant("replicas", "gradient_that_is_not_finite_updates",
       "parallel/step/sharded_update.cc",
       "result.is_finite = std::isfinite(result.gradient_norm);",
       "result.is_finite = MUTANT || std::isfinite(result.gradient_norm);",
       "a NaN in a gradient gets into the parameters")

# The check of the first step.

mutant("first-step check", "other_ranks_problems_are_ignored",
       "parallel/trial/findings.cc",
       "if (other.problem && !common.problem) {",
       "if (other.problem && !common.problem && !MUTANT) {",
       "what rank 1 finds stops nobody")
mutant("first-step check", "loss_is_not_checked",
       "parallel/check/step_check.cc",
       ".loss = step.group.shards() > 1 ? due(loss) : Due::kNot};",
       ".loss = step.group.shards() > 1 && !MUTANT ? due(loss) : Due::kNot};",
       "a loss that is no mean of its shards trains wrong numbers")
mutant("first-step check", "weights_of_parts_are_not_compared",
       "parallel/check/loss_check.cc",
       "if (losses_agree && (is_sum ||",
       "if (losses_agree && (MUTANT || is_sum ||",
       "weights that do not add up are accepted")
mutant("first-step check", "tolerance_is_too_large",
       "parallel/check/loss_check.cc",
       "return type == c10::ScalarType::Double ? 1e-9 : 1e-5;",
       "return MUTANT ? 0.1 : type == c10::ScalarType::Double ? 1e-9 : 1e-5;",
       "a loss that is wrong by 5 percent is accepted")
mutant("first-step check", "gradients_of_replicas_are_not_compared",
       "parallel/trial/module_comparison.cc",
       "if (a.gradients[p] == b.gradients[p]) continue;",
       "if (MUTANT || a.gradients[p] == b.gradients[p]) continue;",
       "a replica with untied weights is accepted")
mutant("first-step check", "refused_step_changes_buffers",
       "parallel/check/step_check.cc",
       "        [&] { buffers.restore(); });",
       "        [&] {\n"
       "          if (!MUTANT) buffers.restore();\n"
       "        });",
       "a step that was refused has updated the BatchNorm statistics")

# Collectives and process groups.

mutant("comm", "mean_is_a_sum",
       "comm/tree_reduce.cc",
       "sum[i] / static_cast<A>(static_cast<double>(inputs.size())));",
       "sum[i] / static_cast<A>(\n"
       "                static_cast<double>(MUTANT ? 1 : inputs.size())));",
       "ReduceOp::AVG forgets 1/n")
mutant("comm", "tree_of_ranks_splits_in_the_middle",
       "comm/tree_reduce.cc",
       "static_cast<size_t>(left_branch(static_cast<int64_t>(last - first)));",
       "(MUTANT ? (last - first) / 2\n"
       "              : static_cast<size_t>(\n"
       "                    left_branch(static_cast<int64_t>(last - first))));",
       "ranks are summed along another tree than shards")
mutant("comm", "largest_number_forgets_nan",
       "comm/tree_reduce.cc",
       "if (std::isnan(b)) return b;",
       "if (std::isnan(b) && !MUTANT) return b;",
       "a NaN of rank 1 is lost in MIN and MAX")
mutant("comm", "queue_runs_the_newest_first",
       "comm/work_queue.cc",
       "items_.push_back({work, std::move(task), timeout, Clock::now()});",
       "if (MUTANT) {\n"
       "      items_.push_front({work, std::move(task), timeout, Clock::now()});"
       "\n    } else {\n"
       "      items_.push_back({work, std::move(task), timeout, Clock::now()});"
       "\n    }",
       "asynchronous operations run in another order than they began")
mutant("comm", "error_of_an_operation_is_lost",
       "comm/queued_work.cc",
       "  finish(failure);",
       "  finish(MUTANT ? std::exception_ptr() : failure);",
       "wait() succeeds for an operation that failed")
mutant("comm", "sizes_are_not_announced",
       "comm/moves.cc",
       "call.elements = static_cast<uint64_t>(tensor.numel());",
       "call.elements = MUTANT ? 0 : static_cast<uint64_t>(tensor.numel());",
       "ranks with tensors of other sizes take part in one call")
mutant("comm", "strided_tensor_is_not_written_back",
       "comm/moves.cc",
       "if (rank_ != root) result.write_back();",
       "if (rank_ != root && !MUTANT) result.write_back();",
       "a broadcast into a tensor with gaps changes only a copy")
mutant("comm", "ranks_of_a_new_group_are_reversed",
       "comm/process_group_impl.cc",
       "static_cast<int>(found - ranks.begin()),",
       "static_cast<int>(MUTANT ? ranks.end() - found - 1\n"
       "                                     : found - ranks.begin()),",
       "new_group() numbers its ranks from the end")

# Shared memory.

mutant("shm", "barrier_does_not_wait",
       "shm/collectives.cc",
       "void barrier(Group& group) { group.sync(); }",
       "void barrier(Group& group) {\n  if (!MUTANT) group.sync();\n}",
       "a rank leaves a barrier before all have come")
mutant("shm", "deadline_is_ignored",
       "shm/group.cc",
       "if (Clock::now() > deadline_) time_out(late);",
       "if (!MUTANT && Clock::now() > deadline_) time_out(late);",
       "a rank waits for ever for one that is stopped")
mutant("shm", "dead_rank_is_not_noticed",
       "shm/group.cc",
       "if (!peers_[static_cast<size_t>(other)].has_ended()) continue;",
       "if (MUTANT || !peers_[static_cast<size_t>(other)].has_ended()) continue;",
       "a killed rank is noticed only at the timeout")
mutant("shm", "calls_are_not_compared",
       "shm/group.cc",
       "if (called.sequence != sequence_ || called.call != call_) {",
       "if (called.sequence != sequence_ ||\n"
       "      (!MUTANT && called.call != call_)) {",
       "ranks that call different collectives get each other's bytes")
mutant("shm", "text_of_a_failure_is_lost",
       "shm/group.cc",
       "  transport::set_failure(own.failure, reason);",
       "  if (!MUTANT) transport::set_failure(own.failure, reason);",
       "the other ranks do not learn why a rank gave up")
mutant("shm", "last_round_is_dropped",
       "shm/collectives.cc",
       "} while (offset < bytes);",
       "} while (offset + (MUTANT ? step : 0) < bytes);",
       "the end of a tensor larger than a slot stays behind")
mutant("shm", "own_factor_is_used_for_all",
       "shm/collectives.cc",
       "group.factor_of(r)",
       "group.factor_of(MUTANT ? group.rank() : r)",
       "all tensors are weighted as that of the rank that sums")

# TCP.

mutant("tcp", "sum_does_not_wait_for_the_last_rank",
       "tcp/collectives.cc",
       "while (summed_ < segments_ && arrived_[summed_] == peers) {",
       "while (summed_ < segments_ &&\n"
       "           arrived_[summed_] + (MUTANT ? 1 : 0) >= peers) {",
       "a segment is summed when one rank's part is missing")
mutant("tcp", "own_data_is_summed_first",
       "tcp/collectives.cc",
       "    inputs[r] = is_own ?",
       "    inputs[MUTANT ? (r + ranks - static_cast<size_t>(mesh.rank())) %\n"
       "                        ranks\n"
       "                  : r] = is_own ?",
       "each rank adds in another order, so their bits differ")
mutant("tcp", "deadline_is_ignored_over_tcp",
       "tcp/mesh.cc",
       "if (ready == 0 && Clock::now() >= deadline) time_out();",
       "if (!MUTANT && ready == 0 && Clock::now() >= deadline) time_out();",
       "a rank waits for ever for one that stalls")
mutant("tcp", "closed_connection_is_not_noticed",
       "tcp/mesh.cc",
       "if (progress == Progress::kClosed) lose(r);",
       "if (progress == Progress::kClosed && !MUTANT) lose(r);",
       "a rank waits for ever for one that ended")
mutant("tcp", "headers_are_not_compared",
       "tcp/mesh.cc",
       "if (from.sequence == header_.sequence && from.call == header_.call) return;",
       "if (MUTANT || (from.sequence == header_.sequence &&\n"
       "                 from.call == header_.call)) {\n    return;\n  }",
       "ranks that call different collectives get each other's bytes")
mutant("tcp", "reason_of_an_abort_is_lost",
       "tcp/mesh.cc",
       "    reason_ = reason;",
       "    if (!MUTANT) reason_ = reason;",
       "a later call does not say why the group failed")

# The store.

mutant("store", "compare_set_does_not_compare",
       "store/store_service.cc",
       "if (current != nullptr && *current != expected) return *current;",
       "if (!MUTANT && current != nullptr && *current != expected) {\n"
       "    return *current;\n  }",
       "two agents both claim one rank")
mutant("store", "add_wakes_nobody",
       "store/server.cc",
       "    case Operation::kCompareSet:\n      return wake_waiters();",
       "    case Operation::kCompareSet:\n"
       "      if (MUTANT && request.operation == Operation::kAdd) return;\n"
       "      return wake_waiters();",
       "a wait for a counter ends at its timeout")
mutant("store", "deadline_of_a_wait_is_ignored",
       "store/server.cc",
       "while (!waiters_.empty() && waiters_.begin()->first <= now) {",
       "while (!MUTANT && !waiters_.empty() &&\n"
       "         waiters_.begin()->first <= now) {",
       "the store answers no wait that is over")
mutant("store", "owner_of_a_key_is_ignored",
       "store/store_service.cc",
       "      found->second.owner == owner) {",
       "      MUTANT || found->second.owner == owner) {",
       "an agent overwrites what another one said")
mutant("store", "former_round_is_admitted",
       "store/store_service.cc",
       "  if (who.round != round_) {",
       "  if (who.round != round_ && !MUTANT) {",
       "a worker of the attempt before joins the new one")
mutant("store", "keys_of_the_former_round_stay",
       "store/store_service.cc",
       "  workers_.table.clear();",
       "  if (!MUTANT) workers_.table.clear();",
       "a worker reads what was set in the attempt before")
mutant("store", "repeated_change_is_made_twice",
       "store/store_service.cc",
       "found->second.id != request.id) {",
       "found->second.id != request.id || MUTANT) {",
       "a request whose answer was lost counts twice")
mutant("store", "former_incarnation_is_admitted",
       "store/store_service.cc",
       "who.incarnation != incarnation_) {",
       "who.incarnation != incarnation_ && !MUTANT) {",
       "an agent of the job before takes part in a job that was started again")
mutant("store", "length_of_a_message_is_not_limited",
       "store/wire.cc",
       "  if (size > most_) {",
       "  if (size > most_ && !MUTANT) {",
       "a stranger makes the store wait for 4 GiB")

# The launcher's agent.

mutant("agent", "one_restart_too_many",
       "launch/agent/agent.cc",
       "return restarts_ < options_.max_restarts;",
       "return restarts_ < options_.max_restarts + (MUTANT ? 1 : 0);",
       "--max-restarts 2 restarts three times")
mutant("agent", "signal_becomes_sigterm",
       "launch/agent/agent_state.cc",
       "begin_ending(EndReason::kSignal, event.signal,",
       "begin_ending(EndReason::kSignal, MUTANT ? SIGTERM : event.signal,",
       "the workers get another signal than the agent")
mutant("agent", "grace_never_ends",
       "launch/agent/agent_state.cc",
       "passed_s > grace_s(state(), context_.grace_s)) {",
       "!MUTANT && passed_s > grace_s(state(), context_.grace_s)) {",
       "a worker that ignores the signal is not killed")
mutant("agent", "heartbeats_are_not_missed",
       "launch/agent/peer_watch.cc",
       "} else if (heartbeat.since.seconds() > options_.keep_alive_s) {",
       "} else if (!MUTANT &&\n"
       "               heartbeat.since.seconds() > options_.keep_alive_s) {",
       "a node whose network has failed is not noticed")
mutant("agent", "lost_network_is_a_failure",
       "launch/agent/peer_watch.cc",
       ".lost_node = static_cast<int>(node),\n"
       "             .exit_code = kExitPreempted});",
       ".lost_node = static_cast<int>(node),\n"
       "             .exit_code = MUTANT ? 0 : kExitPreempted});",
       "a scheduler does not repeat a job that lost its network")
mutant("agent", "root_cause_is_the_latest_failure",
       "launch/failure/failure.cc",
       "if (a.time_s != b.time_s) return a.time_s < b.time_s;",
       "if (a.time_s != b.time_s) return (a.time_s < b.time_s) != MUTANT;",
       "the report blames the last rank that failed")
mutant("agent", "rank_forgets_the_nodes_before",
       "launch/workers/worker_team.cc",
       'number("RANK", group.first_rank() + local_rank);',
       'number("RANK", (MUTANT ? 0 : group.first_rank()) + local_rank);',
       "workers of every node are rank 0, 1, ...")
mutant("agent", "exit_code_of_a_signal_is_lost",
       "launch/agent/agent.cc",
       "return kExitSignal + state_.first_signal;",
       "return MUTANT ? kExitFailed : kExitSignal + state_.first_signal;",
       "a scheduler can't distinguish a cancelled job from a failed one")

# Checkpoints.

mutant("checkpoint", "file_is_not_synced",
       "base/atomic_file.cc",
       "if (::fsync(fd_) != 0) throw",
       "if (!MUTANT && ::fsync(fd_) != 0) throw",
       "after a power cut, a renamed file is empty")
mutant("checkpoint", "rename_is_not_synced",
       "base/atomic_folder.cc",
       "  sync_directory(parent_of(path_));",
       "  if (!MUTANT) sync_directory(parent_of(path_));",
       "after a power cut, a finished checkpoint is gone")
mutant("checkpoint", "checksum_is_not_compared",
       "checkpoint/manifest.cc",
       "if (const std::string digest = file_checksum(path); digest != file.xxh128) {",
       "if (const std::string digest = file_checksum(path);\n"
       "      !MUTANT && digest != file.xxh128) {",
       "a file with a flipped bit is loaded")
mutant("checkpoint", "failure_of_a_rank_is_ignored",
       "checkpoint/writer.cc",
       "if (text.front() == '-') throw NotWritten{text.substr(1)};",
       "if (text.front() == '-' && !MUTANT) throw NotWritten{text.substr(1)};",
       "a checkpoint is committed without the part of a rank")
mutant("checkpoint", "random_numbers_start_anew",
       "checkpoint/random_state.cc",
       "generator.set_state(saved->second);",
       "if (!MUTANT) generator.set_state(saved->second);",
       "a resumed run draws other random numbers")
mutant("checkpoint", "one_checkpoint_less_is_kept",
       "checkpoint/folder.cc",
       "if (++kept > keep) remove_folder(saved.path);",
       "if (++kept > keep - (MUTANT ? 1 : 0)) remove_folder(saved.path);",
       "if the newest one is damaged, none is left")
mutant("checkpoint", "tensors_are_not_staged",
       "checkpoint/writer.cc",
       "for (auto& [name, tensor] : part.tensors) tensor = *copy++;",
       "for (auto& [name, tensor] : part.tensors) {\n"
       "      const torch::Tensor& staged = *copy++;\n"
       "      if (!MUTANT) tensor = staged;\n    }",
       "a checkpoint mixes the values of two steps")

# Batches.

mutant("loader", "order_does_not_depend_on_the_epoch",
       "data/random_stream.h",
       "{seed, static_cast<uint64_t>(epoch)});",
       "{seed, static_cast<uint64_t>(MUTANT ? 0 : epoch)});",
       "every epoch has the order of the first")
mutant("loader", "last_short_batch_is_dropped",
       "data/loader.cc",
       "return options_.drop_last()",
       "return options_.drop_last() || MUTANT",
       "samples at the end of an epoch are never seen")
mutant("loader", "resumed_epoch_starts_at_its_beginning",
       "data/loader.cc",
       "next_to_make_ = next_to_take_ = first_batch_;",
       "next_to_make_ = next_to_take_ = MUTANT ? 0 : first_batch_;",
       "a resumed run repeats the batches before")
mutant("loader", "rank_takes_the_samples_of_rank_0",
       "data/distributed_sampler.cc",
       "samples_of(shards_of_worker(rank_, num_replicas_, options_.shards()),",
       "samples_of(shards_of_worker(MUTANT ? 0 : rank_, num_replicas_,\n"
       "                                  options_.shards()),",
       "all ranks train on the same samples")
mutant("loader", "saved_sampler_repeats_an_epoch",
       "data/distributed_sampler.cc",
       "if (state.is_begun && state.is_at_end) {",
       "if (state.is_begun && state.is_at_end && !MUTANT) {",
       "a sampler saved at the end of an epoch does not begin the next")

# Optimizers.

mutant("optimizer", "dampening_is_forgotten",
       "optim/sgd_kernels.cc",
       "const T added = static_cast<T>(1 - step.dampening);",
       "const T added = static_cast<T>(MUTANT ? 1 : 1 - step.dampening);",
       "SGD with dampening adds the whole gradient")
mutant("optimizer", "first_step_is_damped",
       "optim/block_optimizer.cc",
       "    is_first_[p] = true;",
       "    is_first_[p] = !MUTANT;",
       "the first gradient is damped, and not in PyTorch")
mutant("optimizer", "adam_and_adamw_are_confused",
       "optim/update_rule.cc",
       "const auto kernel = kIsDecoupled ?",
       "const auto kernel = kIsDecoupled != MUTANT ?",
       "AdamW adds the weight decay to the gradient")
mutant("optimizer", "bias_correction_is_a_step_ahead",
       "optim/block_optimizer.cc",
       "step_counts_[p].fill_(steps_[p]);",
       "step_counts_[p].fill_(steps_[p] + (MUTANT ? 1 : 0));",
       "Adam corrects the bias of the next step")
mutant("optimizer", "step_counts_are_not_restored",
       "optim/torch_state.cc",
       "if (known.step != nullptr) *known.step = steps[p];",
       "if (known.step != nullptr && !MUTANT) *known.step = steps[p];",
       "a resumed run corrects the bias of Adam as at the beginning")
mutant("optimizer", "all_groups_have_the_first_ones_options",
       "optim/update_rule.cc",
       "SgdStep step = steps_of_group_[block.group];",
       "SgdStep step = steps_of_group_[MUTANT ? 0 : block.group];",
       "the learning rate of a second group is ignored")
mutant("optimizer", "last_block_is_not_updated",
       "optim/blocks.cc",
       "for (int64_t at = 0; at < count; at += most) {",
       "for (int64_t at = 0; at + (MUTANT && count > most ? most : 0) < count;\n"
       "         at += most) {",
       "the end of a large parameter is never trained")
