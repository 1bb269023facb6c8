#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// The state of one step in which ranks sum gradients, as a value that knows no
// tensor, thread or message. GradientSync carries out what it decides.
//
// The step:
//
//           kBegin          kFlush           kFinish             kTake
//   kIdle --------> kOpen --------> kFlushed --------> kFinished -----> kIdle
//                     |                |                   |
//                     +----------------+---- kAbandon -----+
//                     v
//                 kAbandoned, from which kBegin leads to kOpen again
//
// Each parameter, from kBegin on:
//
//             kArrive, as often as expected;
//             or kFlush                        kSend         kFinish
//   kAwaited ----------------------> kReady --------> kSent --------> kSummed
//
// kBegin says how many gradients the backward will add to each parameter, or
// kUntilFlush if that is not known. A gradient that was sent can't be taken
// back, so nothing is sent before it is known to be complete: after the
// expected number of gradients, or at kFlush.
//
// A gradient may arrive once more than expected. In kReady, autograd adds it to
// a gradient that is not sent yet, so the sum is right. In kSent, the sum lacks
// it: the outcome is kRepeated, and the ranks must not use the sums.
//
// kAbandon ends a step that failed on this rank. If the other ranks may have
// begun to send, the outcome is kSendRest: this rank has to take part in the
// remaining sums, or the other ranks would wait for it.
//
// An illegal event changes nothing:
//
//             kIdle   kOpen      kFlushed     kFinished   kAbandoned
//   kBegin    yes     -          -            -           yes
//   kArrive   -       yes        -            -           -
//   kSend     -       if kReady  if kReady    -           -
//   kFlush    -       yes        -            -           -
//   kFinish   -       -          if all kSent -           -
//   kTake     -       -          -            yes         -
//   kAbandon  stays   yes        yes          yes         stays
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

enum class SyncEvent {
  kBegin,    ///< a step starts
  kArrive,   ///< autograd added a gradient to a parameter
  kSend,     ///< the gradient of a parameter is handed over
  kFlush,    ///< the backward is over
  kFinish,   ///< all sums are made
  kTake,     ///< the caller has the sums
  kAbandon,  ///< the step failed
};

enum class SyncOutcome {
  kDone,      ///< nothing else to do
  kComplete,  ///< of kArrive: the gradient is ready to be sent
  kRepeated,  ///< of kArrive: the gradient was sent without this part
  kSendRest,  ///< of kAbandon: other ranks wait for the gradients not sent yet
  kIllegal,   ///< the caller made a mistake
};

/// Expected number of gradients of a parameter that is not known: all that
/// arrive are kept until kFlush.
constexpr int64_t kUntilFlush = -1;

/// All state of a step.
struct GradientSyncState {
  struct Gradient {
    int64_t expected = kUntilFlush;
    int64_t arrived = 0;
    GradientState state = GradientState::kAwaited;
    bool operator==(const Gradient&) const = default;
  };

  SyncPhase phase = SyncPhase::kIdle;
  std::vector<Gradient> gradients;  ///< by parameter
  std::vector<size_t> order;        ///< parameters, by their first gradient
  /// First parameter with a gradient that arrived again: after it was sent, or
  /// while it was kept until kFlush.
  std::optional<size_t> repeated;

  /// Makes the transition for `event`. kArrive and kSend are events of
  /// parameter `p`. kBegin has the `expected` number of gradients of each
  /// parameter.
  SyncOutcome handle(SyncEvent event, size_t p = 0,
                     std::span<const int64_t> expected = {}) {
    const bool is_open = phase == SyncPhase::kOpen;
    const bool is_flushed = phase == SyncPhase::kFlushed;
    switch (event) {
      case SyncEvent::kBegin:
        if (phase != SyncPhase::kIdle && phase != SyncPhase::kAbandoned) break;
        phase = SyncPhase::kOpen;
        gradients.clear();  // keeps the memory for the next step
        order.clear();
        repeated.reset();
        for (const int64_t count : expected) {
          gradients.push_back({.expected = count,
                               .state = count == 0 ? GradientState::kReady
                                                   : GradientState::kAwaited});
        }
        return SyncOutcome::kDone;
      case SyncEvent::kArrive:
        if (!is_open) break;
        return arrive(p);
      case SyncEvent::kSend:
        if (!is_open && !is_flushed) break;
        if (gradients[p].state != GradientState::kReady) break;
        gradients[p].state = GradientState::kSent;
        return SyncOutcome::kDone;
      case SyncEvent::kFlush:
        if (!is_open) break;
        move_all(GradientState::kAwaited, GradientState::kReady);
        phase = SyncPhase::kFlushed;
        return SyncOutcome::kDone;
      case SyncEvent::kFinish:
        if (!is_flushed || !is_all_sent()) break;
        move_all(GradientState::kSent, GradientState::kSummed);
        phase = SyncPhase::kFinished;
        return SyncOutcome::kDone;
      case SyncEvent::kTake:
        if (phase != SyncPhase::kFinished) break;
        phase = SyncPhase::kIdle;
        return SyncOutcome::kDone;
      case SyncEvent::kAbandon: {
        // If all gradients are kept until kFlush, nobody sends before.
        const bool is_sending =
            is_flushed || (is_open && has_any([](const Gradient& gradient) {
                             return gradient.expected != kUntilFlush;
                           }));
        if (phase != SyncPhase::kIdle) phase = SyncPhase::kAbandoned;
        return is_sending && !is_all_sent() ? SyncOutcome::kSendRest
                                            : SyncOutcome::kDone;
      }
    }
    return SyncOutcome::kIllegal;
  }

  bool operator==(const GradientSyncState&) const = default;

 private:
  SyncOutcome arrive(size_t p) {
    Gradient& gradient = gradients[p];
    if (++gradient.arrived == 1) order.push_back(p);
    const bool is_sent = gradient.state == GradientState::kSent;
    const bool is_kept = gradient.expected == kUntilFlush;
    if (!repeated && (is_sent || (is_kept && gradient.arrived > 1))) {
      repeated = p;
    }
    if (is_sent) return SyncOutcome::kRepeated;
    if (gradient.arrived != gradient.expected) return SyncOutcome::kDone;
    gradient.state = GradientState::kReady;
    return SyncOutcome::kComplete;
  }

  template <class Predicate>
  bool has_any(const Predicate& predicate) const {
    return std::any_of(gradients.begin(), gradients.end(), predicate);
  }
  bool is_all_sent() const {
    return !has_any([](const Gradient& gradient) {
      return gradient.state != GradientState::kSent;
    });
  }
  void move_all(GradientState from, GradientState to) {
    for (Gradient& gradient : gradients) {
      if (gradient.state == from) gradient.state = to;
    }
  }
};

}  // namespace lockstep
