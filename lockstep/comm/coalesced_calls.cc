#include "lockstep/comm/coalesced_calls.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "lockstep/comm/collectives/joined_messages.h"
#include "lockstep/comm/queue/call_factory.h"

namespace lockstep {
namespace {

using Calls = std::span<const CollectiveCall>;
using Tensors = std::vector<at::Tensor>;
using Timeout = Collectives::Timeout;

bool can_join(const CollectiveCall& a, const CollectiveCall& b) {
  return a.outputs[0].scalar_type() == b.outputs[0].scalar_type() &&
         a.outputs[0].device() == b.outputs[0].device() &&
         a.reduction->op_ == b.reduction->op_;
}

void perform_each(Calls calls, Collectives& collectives, Timeout timeout) {
  for (const auto& call : calls) call.perform(collectives, timeout);
}

/// Runs consecutive all-reduces. Their order only matters if their tensors
/// share memory.
void perform_all_reduces(Calls calls, Collectives& collectives,
                         Timeout timeout) {
  Tensors all;
  for (const auto& call : calls) all.push_back(call.outputs[0]);
  if (calls.size() < 2 || may_overlap(all)) {
    perform_each(calls, collectives, timeout);
    return;
  }
  std::vector<bool> is_done(calls.size());
  for (size_t first = 0; first < calls.size(); ++first) {
    if (is_done[first]) continue;
    Tensors alike;
    for (size_t i = first; i < calls.size(); ++i) {
      if (is_done[i] || !can_join(calls[i], calls[first])) continue;
      is_done[i] = true;
      alike.push_back(all[i]);
    }
    all_reduce_joined(collectives, alike, *calls[first].reduction, timeout);
  }
}

void perform_in_order(Calls calls, Collectives& collectives, Timeout timeout) {
  while (!calls.empty()) {
    const bool is_all_reduce = calls[0].reduction.has_value();
    const auto end =
        std::find_if(calls.begin(), calls.end(), [&](const auto& call) {
          return call.reduction.has_value() != is_all_reduce;
        });
    const auto count = static_cast<size_t>(end - calls.begin());
    if (is_all_reduce) {
      perform_all_reduces(calls.first(count), collectives, timeout);
    } else {
      perform_each(calls.first(count), collectives, timeout);
    }
    calls = calls.subspan(count);
  }
}

}  // namespace

CoalescedCalls::CoalescedCalls(const CallFactory& calls) : calls_(calls) {}
CoalescedCalls::~CoalescedCalls() = default;

void CoalescedCalls::all_reduce(const torch::Tensor& tensor,
                                const ReduceOp& op) {
  added_.push_back(calls_.all_reduce(tensor, op));
}

void CoalescedCalls::reduce(const torch::Tensor& tensor, int root,
                            const ReduceOp& op) {
  added_.push_back(calls_.reduce(tensor, root, op));
}

void CoalescedCalls::broadcast(const torch::Tensor& tensor, int root) {
  added_.push_back(calls_.broadcast(tensor, root));
}

CoalescedCalls::Tensors CoalescedCalls::all_gather(
    const torch::Tensor& tensor) {
  added_.push_back(calls_.all_gather(tensor));
  return added_.back().outputs;
}

CoalescedCalls::Tensors CoalescedCalls::gather(const torch::Tensor& tensor,
                                               int root) {
  added_.push_back(calls_.gather(tensor, root));
  return added_.back().outputs;
}

void CoalescedCalls::scatter(const torch::Tensor& tensor, const Tensors& parts,
                             int root) {
  added_.push_back(calls_.scatter(tensor, parts, root));
}

void CoalescedCalls::reduce_scatter(const torch::Tensor& tensor,
                                    const Tensors& parts, const ReduceOp& op) {
  added_.push_back(calls_.reduce_scatter(tensor, parts, op));
}

void CoalescedCalls::all_to_all(const Tensors& outputs, const Tensors& inputs) {
  added_.push_back(calls_.all_to_all(outputs, inputs));
}

void CoalescedCalls::barrier() { added_.push_back(calls_.barrier()); }

CollectiveCall CoalescedCalls::join() && {
  CollectiveCall all{.type = c10d::OpType::COALESCED};
  for (const auto& call : added_) {
    all.outputs.insert(all.outputs.end(), call.outputs.begin(),
                       call.outputs.end());
  }
  // Shared, because a function object is copied on its way through the queue.
  const auto calls =
      std::make_shared<const std::vector<CollectiveCall>>(std::move(added_));
  added_.clear();
  all.perform = [calls](Collectives& collectives, Timeout timeout) {
    perform_in_order(*calls, collectives, timeout);
  };
  return all;
}

}  // namespace lockstep
