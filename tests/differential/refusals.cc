#include "tests/differential/refusals.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/differential/batch.h"

namespace lockstep::differential {

namespace {

bool lacks_gradients(const Trace& plain) {
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

/// Returns true if a program has a train_step() with one of these losses.
bool has_loss(const Case& of, const std::vector<std::string>& losses) {
  return std::any_of(
      of.history.begin(), of.history.end(), [&](const Event& event) {
        return event.what == "train_step" &&
               std::find(losses.begin(), losses.end(), event.loss) !=
                   losses.end();
      });
}

bool has_flaw(const Case& of, const std::vector<std::string>& flaws) {
  return std::find(flaws.begin(), flaws.end(), of.flaw) != flaws.end();
}

bool has_assigned_tie(const Case& of) {
  return std::any_of(of.parameters.begin(), of.parameters.end(),
                     [](const auto& spec) { return spec.is_assigned; });
}

/// A refusal: what its message has in it, and the cases that may cause it.
struct Refusal {
  std::string cause;
  std::vector<std::string> words;
  std::function<bool(const Case&, const Trace& plain)> is_possible;
};

/// Returns whether there are steps in which a rank has no samples.
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
                (lacks_gradients(plain) ||
                 has_any(of, {"keep_gradients", "set_to_none", "freeze"}));
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
       [](const Case& of, const Trace&) {
         // A layer that forward() registers could train if the rest is frozen.
         return of.kind == "ddp" ||
                has_flaw(of, {"late_layer", "late_parameter"});
       }},
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
      {"train_step: a hook on a parameter that the loss uses directly",
       {"[parallel]", "has a hook"},
       [](const Case& of, const Trace&) {
         return of.mode != "forward" && has_event(of, "hook") && of.has_l2;
       }},
      {"weights tied by assignment",
       {"[parallel] a replica", "tied by assignment", "[replica-differs]"},
       [](const Case& of, const Trace&) {
         return has_assigned_tie(of) && !of.has_factory;
       }},
      {"a layer registered in the first forward",
       {"forward() registers", "[replica-differs]"},
       [](const Case& of, const Trace&) {
         return has_flaw(of, {"late_layer", "late_parameter"});
       }},
      {"ddp: a layer registered in the first forward",
       {"was registered after the module was wrapped", "[module-changed]"},
       [](const Case& of, const Trace&) {
         return has_flaw(of, {"late_layer", "late_parameter"});
       }},
      {"reset() sets a member to another value",
       {"[parallel] a replica", "reset()", "[replica-differs]"},
       [](const Case& of, const Trace&) {
         return has_flaw(of, {"other_reset"}) && !of.has_factory;
       }},
      {"one rank differs: parameters, options or state",
       {"[parameters-differ]"},
       [](const Case& of, const Trace&) {
         return has_one_rank_that_differs(of);
       }},
      {"one rank differs: a write to what the ranks share",
       {"[parameter-written]"},
       [](const Case& of, const Trace&) {
         return has_one_rank_that_differs(of);
       }},
      {"one rank differs: the calls of the ranks",
       {"[comm]", "called different collectives"},
       [](const Case& of, const Trace&) {
         return has_one_rank_that_differs(of);
       }},
      {"a member changed after the wrap",
       {"[parallel]", "rebuild()"},
       [](const Case& of, const Trace&) {
         return has_event(of, "change_member");
       }},
      {"a module that changes itself in forward()",
       {"[parallel] a replica", "[replica-differs]"},
       [](const Case& of, const Trace&) {
         // Random numbers of a loss may be rounded to the same value by chance.
         return has_flaw(of, {"counts_forwards", "own_random"}) ||
                has_loss(of, {"noisy"});
       }},
      {"a clone() that makes another network",
       {"[not-cloneable]"},
       [](const Case& of, const Trace&) {
         return (has_flaw(of, {"other_parameters"}) && !of.has_factory) ||
                // After a forward of the module itself.
                has_flaw(of, {"late_layer", "late_parameter"});
       }},
      {"a loss that is no mean over the samples",
       {"not the mean of", "[bad-loss]"},
       [](const Case& of, const Trace&) {
         // Random numbers of a loss may be rounded to the same value by chance.
         return has_loss(of, {"ignoring", "weighs", "summed", "contrastive",
                              "unit_weights", "noisy"});
       }},
      {"a loss whose gradient is not that of a mean over the samples",
       {"its gradient at the outputs is not that of its parts", "[bad-loss]"},
       [](const Case& of, const Trace&) {
         // Its value may be a mean by chance.
         return has_loss(of, {"weighs", "summed", "contrastive", "noisy"});
       }},
      {"a loss with wrong weights",
       {"the weights that the loss function returns", "[bad-loss]"},
       [](const Case& of, const Trace&) {
         return has_loss(of, {"unit_weights"});
       }},
      {"a step that weighs more than its total weight",
       {"weigh more than total_weight", "[bad-option]"},
       [](const Case& of, const Trace&) {
         return std::any_of(
             of.history.begin(), of.history.end(), [](const Event& event) {
               return event.what == "train_step" && event.numbers.size() > 3;
             });
       }},
      {"a batch with the weight 0",
       {"[empty-batch]"},
       [](const Case& of, const Trace&) {
         return has_loss(of, {"weighted", "cross_entropy"});
       }},
      {"no_sync(): the total weight of the losses is not known",
       {"total_weight", "[bad-option]"},
       [](const Case& of, const Trace&) {
         return has_event(of, "no_sync") &&
                has_loss(of, {"weighted", "cross_entropy", "unit_weights"});
       }},
      {"no_sync(): gradients of backward() and of train_step() in one sum",
       {"of backward() and of train_step()", "[misuse]"},
       [](const Case& of, const Trace&) { return has_event(of, "no_sync"); }},
      {"no_sync(): a rank without samples in the step that ends it",
       {"no samples in the step that ends no_sync()"},
       [](const Case& of, const Trace&) { return has_event(of, "no_sync"); }},
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
