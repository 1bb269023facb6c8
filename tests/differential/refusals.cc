#include "tests/differential/refusals.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/differential/batch.h"

namespace lockstep::differential {

namespace {

bool leaves_parameters_unused(const Trace& plain) {
  return std::any_of(plain.entries.begin(), plain.entries.end(),
                     [](const Trace::Entry& entry) {
                       return entry.label.find("gradient of ") !=
                                  std::string::npos &&
                              !entry.value.defined();
                     });
}

bool has_any(const Case& of, const std::vector<std::string>& events) {
  return std::any_of(
      events.begin(), events.end(),
      [&](const std::string& event) { return has_event(of, event); });
}

/// A refusal: what its message has in it, and the cases that may cause it.
struct Refusal {
  std::string cause;
  std::vector<std::string> words;
  std::function<bool(const Case&, const Trace& plain)> is_possible;
};

/// Whether there are steps in which a rank has no samples.
bool has_empty_batches(const Case& of) {
  return std::any_of(
      of.history.begin(), of.history.end(), [&](const Event& event) {
        if (event.what != "step" && event.what != "accumulate") return false;
        return std::any_of(event.numbers.begin(), event.numbers.end(),
                           [&](int64_t n) { return n < of.shards; });
      });
}

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {"an own optimizer with complex parameters",
       {"[optim] parameter", "can't be optimized"},
       [](const Case& of, const Trace&) {
         return of.mode == "train_step" && of.dtype == "complex";
       }},
      {"ddp: parameters without a gradient",
       {"[ddp]", "no gradient in this backward"},
       [](const Case& of, const Trace& plain) {
         return !of.finds_unused && !of.is_static &&
                // Gradients that were kept, or set to zero, are there.
                (leaves_parameters_unused(plain) ||
                 has_any(of, {"keep_gradients", "set_to_none"}));
       }},
      {"ddp: a static graph that changes",
       {"[ddp]", "gradients"},
       [](const Case& of, const Trace&) {
         return of.is_static && has_any(of, {"freeze", "unfreeze"});
       }},
      {"ddp: a static graph that an empty batch does not go through whole",
       {"[ddp]", "fewer gradients than in the first step"},
       [](const Case& of, const Trace&) {
         return of.is_static && has_empty_batches(of);
       }},
      {"ddp: nothing to train",
       {"[ddp]", "no parameter that requires a gradient"},
       [](const Case& of, const Trace&) { return of.kind == "ddp"; }},
      {"ddp: cast after the wrap",
       {"[ddp]", "moved or cast"},
       [](const Case& of, const Trace&) {
         return of.kind == "ddp" && has_event(of, "cast");
       }},
      {"ddp: what was frozen at the wrap trains",
       {"[ddp]", "was frozen when the module was wrapped"},
       [](const Case& of, const Trace&) { return has_event(of, "unfreeze"); }},
      {"ranks: no room for the state of another optimizer",
       {"[ddp] the optimizer has more state"},
       [](const Case& of, const Trace&) {
         return of.kind == "world" && has_event(of, "cast");
       }},
      {"an own optimizer with a parameter twice",
       {"[optim]", "twice"},
       [](const Case& of, const Trace&) { return of.mode == "train_step"; }},
      {"train_step: a hook on a parameter that the loss uses directly",
       {"[parallel]", "has a hook"},
       [](const Case& of, const Trace&) {
         return of.mode != "forward" && has_event(of, "hook") && of.has_l2;
       }},
  };
  return all;
}

}  // namespace

std::optional<std::string> cause_of_refusal(const Case& of,
                                            const std::string& message,
                                            const Trace& plain) {
  // An error of Lockstep's own, with its component.
  if (message.empty() || message[0] != '[') return std::nullopt;
  for (const Refusal& refusal : refusals()) {
    const bool fits = std::all_of(
        refusal.words.begin(), refusal.words.end(), [&](const auto& word) {
          return message.find(word) != std::string::npos;
        });
    if (fits && refusal.is_possible(of, plain)) return refusal.cause;
  }
  return std::nullopt;
}

}  // namespace lockstep::differential
