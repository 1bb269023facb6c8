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

bool has_input_gradient(const Case& of) {
  return std::any_of(
      of.inputs.begin(), of.inputs.end(),
      [](const InputSpec& input) { return input.requires_grad; });
}

/// Whether a batch gives the ranks different numbers of samples.
bool is_uneven(const Case& of) {
  for (const Event& event : of.history) {
    if (event.what != "step" && event.what != "accumulate" &&
        event.what != "poison") {
      continue;
    }
    const size_t batches = event.what == "accumulate" ? 2 : 1;
    for (size_t i = 0; i < batches; ++i) {
      if (event.numbers[i] % of.shards != 0) return true;
    }
  }
  return of.shards % of.ranks != 0;
}

/// A refusal: what its message has in it, and the cases that may cause it.
struct Refusal {
  std::string cause;
  std::vector<std::string> words;
  std::function<bool(const Case&, const Trace& plain)> is_possible;
};

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
                leaves_parameters_unused(plain);
       }},
      {"ddp: a static graph that changes",
       {"[ddp]", "gradients"},
       [](const Case& of, const Trace&) {
         return of.is_static && has_any(of, {"freeze", "unfreeze"});
       }},
      {"ddp: nothing to train",
       {"[ddp]", "no parameter that requires a gradient"},
       [](const Case& of, const Trace&) { return of.kind == "ddp"; }},
      {"ddp: cast after the wrap",
       {"[ddp]", "moved or cast"},
       [](const Case& of, const Trace&) {
         return of.kind == "ddp" && has_event(of, "cast");
       }},
      {"ranks: an uneven batch without its total",
       {"[ddp]", "samples"},
       [](const Case& of, const Trace&) {
         return of.kind == "world" && of.mode == "gradients" && is_uneven(of);
       }},
      {"ranks: parameters in shared memory were moved",
       {"[ddp]", "parameter"},
       [](const Case& of, const Trace&) {
         return of.kind == "world" && has_any(of, {"load", "cast", "scale"});
       }},
      {"ranks: no room for the state of another optimizer",
       {"[ddp] the optimizer has more state"},
       [](const Case& of, const Trace&) {
         return of.kind == "world" && has_event(of, "cast");
       }},
      {"an own optimizer with a parameter twice",
       {"[optim]", "twice"},
       [](const Case& of, const Trace&) { return of.mode == "train_step"; }},
      {"train_step: a hook on a parameter",
       {"hook"},
       [](const Case& of, const Trace&) {
         return of.mode != "forward" && has_event(of, "hook");
       }},
      {"train_step: parameters in the loss itself",
       {"[parallel]", "loss"},
       [](const Case& of, const Trace&) {
         return of.mode != "forward" && of.has_l2;
       }},
      {"train_step: gradients in .grad",
       {"[parallel]", "grad"},
       [](const Case& of, const Trace&) {
         return of.mode == "train_step" && has_event(of, "keep_gradients");
       }},
      {"train_step: an input that requires grad",
       {"input", "grad"},
       [](const Case& of, const Trace&) {
         return of.mode != "forward" && has_input_gradient(of);
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
