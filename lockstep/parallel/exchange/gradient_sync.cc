#include "lockstep/parallel/exchange/gradient_sync.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

constexpr std::array kEvents{"kBegin",  "kArrive", "kSend",   "kFlush",
                             "kFinish", "kTake",   "kAbandon"};
constexpr std::array kPhases{"kIdle", "kOpen", "kFlushed", "kFinished",
                             "kAbandoned"};
constexpr std::array kStates{"kAwaited", "kReady", "kSent", "kSummed"};

}  // namespace

GradientSync::GradientSync(const ProcessGroup& world,
                           const std::vector<torch::Tensor>& parameters,
                           std::vector<std::string> names, int64_t cap,
                           GradientBuckets::LargeSum large_sum)
    : names_(std::move(names)),
      buckets_(world, parameters, cap, std::move(large_sum)) {}

SyncOutcome GradientSync::apply(SyncEvent event, size_t p,
                                std::span<const int64_t> expected) {
  const SyncOutcome outcome = state_.handle(event, p, expected);
  if (outcome != SyncOutcome::kIllegal) return outcome;
  std::string got = kPhases[static_cast<size_t>(state_.phase)];
  const bool is_of_one =
      event == SyncEvent::kArrive || event == SyncEvent::kSend;
  if (is_of_one && p < state_.gradients.size()) {
    got += fmt::format(", '{}' in {}", names_[p],
                       kStates[static_cast<size_t>(state_.gradients[p].state)]);
  }
  throw ParallelError(
      "sync", {.code = ErrorCode::kMisuse,
               .what = fmt::format("{} came out of turn in a sum of gradients",
                                   kEvents[static_cast<size_t>(event)]),
               .expected = "the order of gradient_sync_state.h",
               .got = got,
               .fix = "report this: it is a defect of Lockstep"});
}

void GradientSync::begin(std::span<const int64_t> expected, double weight) {
  apply(SyncEvent::kBegin, 0, expected);
  buckets_.begin(weight);
}

void GradientSync::send(size_t p) {
  apply(SyncEvent::kSend, p);
  buckets_.mark_ready(p);
}

std::vector<size_t> GradientSync::unsent() const {
  std::vector<size_t> unsent;
  for (const auto& bucket : buckets_.assignment()) {
    std::copy_if(bucket.begin(), bucket.end(), std::back_inserter(unsent),
                 [&](size_t p) {
                   return state_.gradients[p].state != GradientState::kSent;
                 });
  }
  return unsent;
}

void GradientSync::finish() {
  buckets_.wait();
  apply(SyncEvent::kFinish);
}

void GradientSync::end_step() {
  apply(SyncEvent::kTake);
  const auto& gradients = state_.gradients;
  if (layout_ == Layout::kByIndex &&
      std::any_of(gradients.begin(), gradients.end(), [](const auto& gradient) {
        return gradient.expected != 0;
      })) {
    layout_ = Layout::kOrderIsKnown;
  }
}

void GradientSync::abandon(Peers peers) noexcept {
  try {
    const SyncOutcome outcome = apply(SyncEvent::kAbandon);
    if (peers == Peers::kStop) return;
    if (outcome == SyncOutcome::kSendRest) buckets_.mark_all_ready();
    buckets_.wait();
  } catch (const std::exception&) {
    // The step has already failed, and the next step will report this error.
  }
}

void GradientSync::follow_order(int root) {
  if (std::exchange(layout_, Layout::kByOrder) == Layout::kByOrder) return;
  buckets_.rebuild_buckets(root, state_.order);
}

}  // namespace lockstep
