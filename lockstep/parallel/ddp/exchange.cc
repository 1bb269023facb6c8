// How the Reducer's gradients get to the other ranks and back.
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::ddp {

using torch::Tensor;

void Reducer::arrive(size_t p, bool has_gradient) {
  pass_->has_gradient[p] = has_gradient;
  if (has_gradient) pass_->arrivals.push_back(p);
  fill_slot(p, has_gradient);
  --pass_->pending[slots_[p].bucket];
  exchange_full_buckets();
}

void Reducer::fill_slot(size_t p, bool has_gradient) {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView unseen;
  Tensor& view = buckets_[slots_[p].bucket].grads.gradients[slots_[p].index];
  Tensor& gradient = parameters_[p].mutable_grad();
  if (gradient.defined() && gradient.layout() != torch::kStrided) {
    give_up({.code = ErrorCode::kSparseGradient,
             .what = fmt::format("the gradient of '{}' is sparse", names_[p]),
             .expected = "a dense one",
             .fix = "make the embedding with sparse(false)"});
  }
  const bool is_view =
      gradient.defined() && gradient.data_ptr() == view.data_ptr();
  // What is not part of this pass stays as it is.
  if (!has_gradient && is_view) gradient = gradient.clone();
  if (pass_->is_shadow || !gradient.defined()) {
    view.zero_();
    return;
  }
  // A hook weights by itself.
  const double weight = hook_ ? 1 : pass_->round.weight;
  if (has_gradient && is_view) {
    if (weight != 1) gradient.mul_(weight);
  } else if (weight != 1) {
    at::mul_out(view, gradient, torch::scalar_tensor(weight, torch::kDouble));
  } else {
    view.copy_(gradient);
  }
  if (has_gradient && options_.gradient_as_bucket_view()) gradient = view;
}

void Reducer::exchange_full_buckets() {
  Pass& pass = *pass_;
  while (pass.next_bucket < buckets_.size() &&
         pass.pending[pass.next_bucket] == 0) {
    GradBucket& grads = buckets_[pass.next_bucket++].grads;
    grads.weight = pass.round.weight;
    submit("all-reduce", grads.index, [this, &grads] {
      if (hook_) {
        run_hook(grads);
      } else {
        world_.all_reduce(grads.buffer);
      }
    });
  }
}

void Reducer::run_hook(GradBucket& grads) {
  const void* memory = grads.buffer.data_ptr();
  hook_(world_, grads);
  if (grads.buffer.data_ptr() == memory) return;
  throw InvalidArgument(
      "ddp", {.code = ErrorCode::kCommHook,
              .what = "a comm hook put another tensor in bucket.buffer",
              .expected = "the result in the memory that is there",
              .fix = "write bucket.buffer.copy_(result)"});
}

void Reducer::submit(const char* name, int64_t index,
                     const std::function<void()>& task) {
  const CommStream::Mark ready = stream_->mark();
  const auto in_order = [this, ready, task, name, index] {
    const TraceLane lane(world_.rank(), "all-reduce");
    const TraceSpan span(name, TraceCategory::kCommunication, index);
    const auto on_stream = stream_->enter();
    stream_->wait(ready);
    task();
  };
  auto work = c10::make_intrusive<QueuedWork>(
      world_.rank(), c10d::OpType::ALLREDUCE, std::vector<Tensor>());
  pass_->works.push_back(
      queue_.submit(std::move(work), in_order, world_.size() > 1));
}

void Reducer::send_buffers() {
  if (!options_.broadcast_buffers() || packed_buffers_.empty()) return;
  if (world_.size() == 1) return;
  const int root = pass_->round.root;
  if (world_.rank() == root) packed_buffers_.pack();
  submit("buffers", -1,
         [this, root] { world_.broadcast(packed_buffers_.message(), root); });
}

void Reducer::exchange_changes() {
  const int64_t own = changes_.fingerprint();
  // Within join(), ranks without inputs do not update.
  if (world_.size() == 1 || joining_) return;
  pass_->changes = torch::tensor({own, ~own}, torch::kInt64).to(device_);
  submit("changes", -1, [this, changes = pass_->changes]() mutable {
    world_.all_reduce(changes, ReduceOp::MAX);
  });
}

void Reducer::exchange_used() {
  std::vector<uint8_t> own(parameters_.size());
  for (size_t p = 0; p < own.size(); ++p) {
    // What was added up under no_sync() is used as well.
    const bool has_own = is_unsynced_[p] && parameters_[p].grad().defined();
    own[p] = pass_->has_gradient[p] || has_own;
  }
  pass_->is_used = torch::tensor(own, torch::kUInt8).to(device_);
  submit("used parameters", -1, [this, used = pass_->is_used]() mutable {
    world_.all_reduce(used, ReduceOp::MAX);
  });
}

void Reducer::wait_for_works() {
  for (const Work& work : pass_->works) work->wait();
  // On a GPU the waiting is the stream's.
  CommStream::Mark done;
  {
    const auto on_stream = stream_->enter();
    done = stream_->mark();
  }
  stream_->wait(done);
}

void Reducer::write_back() {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView unseen;
  const Pass& pass = *pass_;
  if (pass.is_used.defined()) {
    const Tensor used = pass.is_used.cpu();
    const auto* bytes = used.const_data_ptr<uint8_t>();
    is_used_.assign(bytes, bytes + used.numel());
  }
  for (size_t p = 0; p < parameters_.size() && !pass.is_shadow; ++p) {
    const Slot& slot = slots_[p];
    const Tensor& view = buckets_[slot.bucket].grads.gradients[slot.index];
    Tensor& gradient = parameters_[p].mutable_grad();
    const Tensor kept = pass.kept.empty() ? Tensor() : pass.kept[p];
    if (!is_used_.empty() && !is_used_[p]) {
      if (kept.defined()) gradient = kept;
      continue;
    }
    is_unsynced_[p] = false;
    if (options_.gradient_as_bucket_view()) {
      gradient = view;
    } else if (gradient.defined()) {
      gradient.copy_(view);
    } else {
      gradient = view.clone();
    }
    if (kept.defined()) gradient.add_(kept);
  }
  const bool takes_buffers =
      options_.broadcast_buffers() && world_.rank() != pass.round.root;
  if (takes_buffers) packed_buffers_.unpack();
}

}  // namespace lockstep::ddp
