#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

// The state of one step in which ranks sum gradients, as a value that knows no
// tensor, thread or message. GradientSync carries out what it decides.
//
// The step:
//
//         BeginStep         Flush            Finish             TakeSums
//   kIdle --------> kOpen --------> kFlushed --------> kFinished -------->
//   kIdle
//                     |                |                   |
//                     +----------------+------ Abandon ----+
//                     v
//                 kAbandoned, from which BeginStep leads to kOpen again
//
// Each parameter, from BeginStep on:
//
//             Arrive, as often as expected;
//             or Flush                         Send          Finish
//   kAwaited ----------------------> kReady --------> kSent --------> kSummed
//
// BeginStep says how many gradients the backward will add to each parameter,
// or kUntilFlush if that is not known. A gradient that was sent can't be taken
// back, so nothing is sent before it is known to be complete: after the
// expected number of gradients, or at Flush.
//
// A gradient may arrive once more than expected:
//   - in kReady, autograd has added it to a gradient that is not sent yet, so
//     the sum is right;
//   - in kSent, the sum lacks it. The outcome is kRepeated, and the ranks must
//     not use the sums of this step.
//
// Abandon ends a step that failed on this rank. If the other ranks will send
// their gradients all the same, the outcome is kSendRest: this rank has to take
// part in the remaining sums, or the other ranks would wait for it.
//
// Everything else is illegal, and changes nothing:
//
//              kIdle   kOpen   kFlushed   kFinished   kAbandoned
//   BeginStep  yes     -       -          -           yes
//   Arrive     -       yes     -          -           -
//   Send       -       kReady  kReady     -           -
//   Flush      -       yes     -          -           -
//   Finish     -       -       all kSent  -           -
//   TakeSums   -       -       -          yes         -
//   Abandon    stays   yes     yes        yes         stays
namespace lockstep {

enum class SyncPhase {
  kIdle,       ///< between steps
  kOpen,       ///< a backward computes gradients
  kFlushed,    ///< no more gradients arrive
  kFinished,   ///< all sums are made, and not yet taken
  kAbandoned,  ///< the step failed on this rank
};

enum class GradientState {
  kAwaited,  ///< the backward will, or may, still add to the gradient
  kReady,    ///< complete
  kSent,     ///< handed over to be summed; must not change any more
  kSummed,   ///< the sum over all ranks is there
};

/// Expected number of gradients of a parameter that is not known: whatever
/// arrives is kept until Flush.
constexpr int64_t kUntilFlush = -1;

/// All state of a step.
struct GradientSyncState {
  struct Gradient {
    GradientState state = GradientState::kAwaited;
    int64_t expected = kUntilFlush;
    int64_t arrived = 0;
    bool operator==(const Gradient&) const = default;
  };

  SyncPhase phase = SyncPhase::kIdle;
  std::vector<Gradient> gradients;  ///< by parameter
  std::vector<size_t> order;        ///< parameters, by their first gradient
  /// First parameter with a gradient that arrived again: after it was sent, or
  /// while it was kept until Flush.
  std::optional<size_t> repeated;

  bool operator==(const GradientSyncState&) const = default;
};

/// Starts a step with the expected number of gradients of each parameter.
struct BeginStep {
  std::span<const int64_t> expected;
};
/// Autograd added a gradient to parameter `p`.
struct Arrive {
  size_t p = 0;
};
/// The gradient of parameter `p` is handed over.
struct Send {
  size_t p = 0;
};
/// The backward is over.
struct Flush {};
/// All sums are made.
struct Finish {};
/// The caller has the sums. Their memory may be used again.
struct TakeSums {};
/// The step failed on this rank.
struct Abandon {};

using SyncEvent =
    std::variant<BeginStep, Arrive, Send, Flush, Finish, TakeSums, Abandon>;

enum class SyncOutcome {
  kDone,      ///< nothing else to do
  kComplete,  ///< of Arrive: the gradient is ready to be sent
  kRepeated,  ///< of Arrive: the gradient was sent without this part
  kSendRest,  ///< of Abandon: other ranks wait for the gradients not sent yet
  kIllegal,   ///< the caller made a mistake
};

namespace sync_detail {

/// One transition: a function for each event.
struct Transition {
  GradientSyncState& now;

  SyncOutcome operator()(const BeginStep& event) const {
    if (now.phase != SyncPhase::kIdle && now.phase != SyncPhase::kAbandoned) {
      return SyncOutcome::kIllegal;
    }
    now.phase = SyncPhase::kOpen;
    now.gradients.clear();
    for (const int64_t expected : event.expected) {
      now.gradients.push_back({.state = expected == 0 ? GradientState::kReady
                                                      : GradientState::kAwaited,
                               .expected = expected});
    }
    now.order.clear();
    now.repeated.reset();
    return SyncOutcome::kDone;
  }

  SyncOutcome operator()(const Arrive& event) const {
    if (now.phase != SyncPhase::kOpen) return SyncOutcome::kIllegal;
    GradientSyncState::Gradient& gradient = now.gradients[event.p];
    if (++gradient.arrived == 1) now.order.push_back(event.p);
    if (gradient.state == GradientState::kAwaited) {
      if (gradient.expected == kUntilFlush && gradient.arrived > 1) {
        note_repeated(event.p);
      }
      if (gradient.arrived != gradient.expected) return SyncOutcome::kDone;
      gradient.state = GradientState::kReady;
      return SyncOutcome::kComplete;
    }
    if (gradient.state == GradientState::kReady) return SyncOutcome::kDone;
    note_repeated(event.p);
    return SyncOutcome::kRepeated;
  }

  SyncOutcome operator()(const Send& event) const {
    const bool is_sending =
        now.phase == SyncPhase::kOpen || now.phase == SyncPhase::kFlushed;
    if (!is_sending) return SyncOutcome::kIllegal;
    GradientState& state = now.gradients[event.p].state;
    if (state != GradientState::kReady) return SyncOutcome::kIllegal;
    state = GradientState::kSent;
    return SyncOutcome::kDone;
  }

  SyncOutcome operator()(const Flush&) const {
    if (now.phase != SyncPhase::kOpen) return SyncOutcome::kIllegal;
    now.phase = SyncPhase::kFlushed;
    for (auto& gradient : now.gradients) {
      if (gradient.state == GradientState::kAwaited) {
        gradient.state = GradientState::kReady;
      }
    }
    return SyncOutcome::kDone;
  }

  SyncOutcome operator()(const Finish&) const {
    if (now.phase != SyncPhase::kFlushed || !is_all_sent()) {
      return SyncOutcome::kIllegal;
    }
    now.phase = SyncPhase::kFinished;
    for (auto& gradient : now.gradients) {
      gradient.state = GradientState::kSummed;
    }
    return SyncOutcome::kDone;
  }

  SyncOutcome operator()(const TakeSums&) const {
    if (now.phase != SyncPhase::kFinished) return SyncOutcome::kIllegal;
    now.phase = SyncPhase::kIdle;
    return SyncOutcome::kDone;
  }

  SyncOutcome operator()(const Abandon&) const {
    const SyncPhase before = now.phase;
    if (before == SyncPhase::kIdle) return SyncOutcome::kDone;
    now.phase = SyncPhase::kAbandoned;
    // In kOpen the other ranks may be sending, unless all of them keep all
    // gradients until Flush.
    const bool is_sending =
        before == SyncPhase::kFlushed ||
        (before == SyncPhase::kOpen &&
         std::any_of(now.gradients.begin(), now.gradients.end(),
                     [](const auto& gradient) {
                       return gradient.expected != kUntilFlush;
                     }));
    return is_sending && !is_all_sent() ? SyncOutcome::kSendRest
                                        : SyncOutcome::kDone;
  }

  void note_repeated(size_t p) const {
    if (!now.repeated) now.repeated = p;
  }
  bool is_all_sent() const {
    return std::all_of(now.gradients.begin(), now.gradients.end(),
                       [](const auto& gradient) {
                         return gradient.state == GradientState::kSent;
                       });
  }
};

}  // namespace sync_detail

/// Makes the transition of `state` for `event`. An illegal event changes
/// nothing. The parameter of an event must be one of the step.
inline SyncOutcome advance(GradientSyncState& state, const SyncEvent& event) {
  return std::visit(sync_detail::Transition{state}, event);
}

}  // namespace lockstep
