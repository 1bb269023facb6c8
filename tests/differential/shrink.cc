#include "tests/differential/shrink.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/differential/history.h"

namespace lockstep::differential {

namespace {

using Candidates = std::vector<Case>;

/// Returns `value` without node `place`. The users of that node use `instead`.
Case without_node(const Case& value, size_t place, int instead) {
  Case smaller = value;
  const auto removed = static_cast<int>(value.inputs.size() + place);
  const auto move = [&](int& argument) {
    if (argument == removed) argument = instead;
    if (argument > removed) --argument;
  };
  smaller.nodes.erase(smaller.nodes.begin() + static_cast<int64_t>(place));
  for (Node& node : smaller.nodes) {
    std::for_each(node.arguments.begin(), node.arguments.end(), move);
  }
  std::for_each(smaller.outputs.begin(), smaller.outputs.end(), move);
  return smaller;
}

bool is_used(const Case& value, int number) {
  const auto has = [&](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), number) != list.end();
  };
  return has(value.outputs) ||
         std::any_of(value.nodes.begin(), value.nodes.end(),
                     [&](const Node& node) { return has(node.arguments); });
}

/// Returns the optimizer that an event names, or null.
int64_t* optimizer_of(Event& event) {
  static const std::set<std::string> names{"update",         "multiply_rate",
                                           "raise_momentum", "add_weight_decay",
                                           "set_state",      "skips_update"};
  if (event.what == "train_step") return &event.numbers[1];
  const bool is_second = is_of_one_rank(event);
  const std::string what =
      is_second ? event.what.substr(kOneRank.size()) : event.what;
  return names.contains(what) ? &event.numbers[is_second ? 1 : 0] : nullptr;
}

/// Returns the parameter that an event names, or null.
int64_t* parameter_of(Event& event) {
  static const std::set<std::string> names{"freeze", "unfreeze", "scale",
                                           "hook", "write"};
  if (names.contains(event.what)) return event.numbers.data();
  return event.what == "one_rank_write" ? &event.numbers[1] : nullptr;
}

/// With fewer samples in event `i`, and without what is special about it.
void add_smaller_event(const Case& value, size_t i, Candidates& candidates) {
  const Event& event = value.history[i];
  const auto add = [&](const Event& smaller) {
    candidates.push_back(value);
    candidates.back().history[i] = smaller;
  };
  static const std::set<std::string> with_batch{
      "step",   "accumulate", "fail_loss", "fail_backward",
      "poison", "backward",   "train_step"};
  // The batch is the first number of a step, the second of others.
  const bool is_second =
      event.what == "evaluate" || event.what == "one_rank_no_sync";
  const size_t batch = is_second ? 1 : 0;
  if (is_second || with_batch.contains(event.what)) {
    for (const int64_t size : {value.shards, event.numbers[batch] - 1}) {
      if (size < 1 || size >= event.numbers[batch]) continue;
      Event smaller = event;
      smaller.numbers[batch] = size;
      if (event.what.rfind("fail", 0) == 0 || event.what == "poison") {
        smaller.numbers[1] = std::min(smaller.numbers[1], size - 1);
      }
      add(smaller);
    }
  }
  if (event.what == "accumulate") add({"step", {event.numbers[0]}});
  if (!event.loss.empty() && event.loss != "square") {
    Event simpler = event;
    simpler.loss = "square";
    add(simpler);
  }
  // With the first optimizer, or a train_step() with none.
  Event first = event;
  int64_t* const optimizer = optimizer_of(first);
  const int64_t least = event.what == "train_step" ? -1 : 0;
  if (optimizer && *optimizer > least) {
    --*optimizer;
    if (*optimizer < 0) first.numbers.back() = 0;
    add(first);
  }
  // By the first rank.
  if (is_of_one_rank(event) && event.numbers[0] > 0) {
    Event simpler = event;
    --simpler.numbers[0];
    add(simpler);
  }
  if (event.what != "train_step" && event.what != "update") return;
  // Not clipped.
  if (event.numbers.back() > 0) {
    Event simpler = event;
    simpler.numbers.back() = 0;
    add(simpler);
  }
}

void add_smaller_history(const Case& value, Candidates& candidates) {
  for (size_t i = 0; i < value.history.size(); ++i) {
    Case smaller = value;
    smaller.history.erase(smaller.history.begin() + static_cast<int64_t>(i));
    candidates.push_back(smaller);
    add_smaller_event(value, i, candidates);
  }
}

void add_simpler_optimizers(const Case& value, Candidates& candidates) {
  int64_t last = 0;
  for (Event event : value.history) {
    if (const auto* named = optimizer_of(event)) last = std::max(last, *named);
  }
  const int64_t count = last + 1;
  if (count < static_cast<int64_t>(value.optimizers.size())) {
    candidates.push_back(value);
    candidates.back().optimizers.resize(static_cast<size_t>(count));
  }
  for (size_t i = 0; i < value.optimizers.size(); ++i) {
    const auto add = [&](auto member, auto simple) {
      if (value.optimizers[i].*member == simple) return;
      candidates.push_back(value);
      candidates.back().optimizers[i].*member = simple;
    };
    add(&OptimizerSpec::kind, std::string("sgd"));
    if (value.optimizers[i].part == 0) {
      add(&OptimizerSpec::parts, static_cast<int64_t>(1));
    }
    add(&OptimizerSpec::nesterov, false);
    if (!value.optimizers[i].nesterov) add(&OptimizerSpec::momentum, 0.0);
    add(&OptimizerSpec::weight_decay, 0.0);
  }
}

void add_smaller_graphs(const Case& value, Candidates& candidates) {
  for (size_t o = 1; o < value.outputs.size(); ++o) {
    Case smaller = value;
    smaller.outputs.erase(smaller.outputs.begin() + static_cast<int64_t>(o));
    candidates.push_back(smaller);
  }
  for (size_t i = value.nodes.size(); i-- > 0;) {
    const auto number = static_cast<int>(value.inputs.size() + i);
    if (!is_used(value, number)) {
      candidates.push_back(without_node(value, i, 0));
    }
    std::set<int> arguments(value.nodes[i].arguments.begin(),
                            value.nodes[i].arguments.end());
    for (const int argument : arguments) {
      candidates.push_back(without_node(value, i, argument));
    }
  }
  if (value.outputs.size() == 1 && value.outputs[0] > 0) {
    Case smaller = value;
    --smaller.outputs[0];
    candidates.push_back(smaller);
  }
}

/// Without a parameter that no node and no event names.
void add_fewer_parameters(const Case& value, Candidates& candidates) {
  for (size_t p = 0; p < value.parameters.size(); ++p) {
    const auto number = static_cast<int64_t>(p);
    Case smaller = value;
    bool is_read = false;
    for (Node& node : smaller.nodes) {
      if (node.operation != "parameter") continue;
      is_read = is_read || node.numbers[0] == number;
      if (node.numbers[0] > number) --node.numbers[0];
    }
    for (ParameterSpec& spec : smaller.parameters) {
      is_read = is_read || spec.tied_to == static_cast<int>(p);
      if (spec.tied_to > static_cast<int>(p)) --spec.tied_to;
    }
    for (Event& event : smaller.history) {
      int64_t* const named = parameter_of(event);
      is_read = is_read || (named && *named == number);
      if (named && *named > number) --*named;
    }
    if (!is_read) {
      smaller.parameters.erase(smaller.parameters.begin() + number);
      candidates.push_back(smaller);
    }
    if (value.parameters[p].part >= 0) {
      smaller = value;
      smaller.parameters[p].part = -1;
      candidates.push_back(smaller);
    }
    if (value.parameters[p].is_assigned) {
      smaller = value;
      smaller.parameters[p].is_assigned = false;
      candidates.push_back(smaller);
    }
    if (!value.parameters[p].requires_grad) {
      smaller = value;
      smaller.parameters[p].requires_grad = true;
      candidates.push_back(smaller);
    }
  }
}

void add_fewer_inputs(const Case& value, Candidates& candidates) {
  for (size_t i = 1; i < value.inputs.size(); ++i) {
    if (is_used(value, static_cast<int>(i))) continue;
    Case smaller = value;
    smaller.inputs.erase(smaller.inputs.begin() + static_cast<int64_t>(i));
    const auto move = [&](int& argument) {
      if (argument > static_cast<int>(i)) --argument;
    };
    for (Node& node : smaller.nodes) {
      std::for_each(node.arguments.begin(), node.arguments.end(), move);
    }
    std::for_each(smaller.outputs.begin(), smaller.outputs.end(), move);
    candidates.push_back(smaller);
  }
}

void add_simpler_options(const Case& value, Candidates& candidates) {
  const auto add = [&](auto member, auto simple) {
    if (value.*member == simple) return;
    Case simpler = value;
    simpler.*member = simple;
    candidates.push_back(simpler);
  };
  if (value.devices > 1) add(&Case::devices, value.devices - 1);
  if (value.ranks > 2) {
    Case fewer = value;
    --fewer.ranks;
    for (Event& event : fewer.history) {
      if (!is_of_one_rank(event)) continue;
      event.numbers[0] = std::min(event.numbers[0], fewer.ranks - 1);
    }
    if (value.kind == "ddp") fewer.shards = fewer.ranks;
    candidates.push_back(fewer);
  }
  if (value.kind != "ddp" && value.shards > value.devices * value.ranks) {
    add(&Case::shards, value.shards - 1);
  }
  add(&Case::flaw, std::string());
  add(&Case::has_factory, false);
  add(&Case::registers_twice, false);
  add(&Case::has_l2, false);
  add(&Case::has_residual, false);
  add(&Case::passes_gradient, false);
  add(&Case::has_small_buckets, false);
  add(&Case::finds_unused, false);
  add(&Case::is_static, false);
  add(&Case::nesterov, false);
  add(&Case::momentum, 0.0);
  add(&Case::weight_decay, 0.0);
  add(&Case::optimizer, std::string("sgd"));
  add(&Case::loss, std::string("square"));
  add(&Case::dtype, std::string("double"));
  add(&Case::backend, std::string("shm"));
  add(&Case::average, std::string("ranks"));
  add(&Case::input_nesting, std::string("tuple"));
  add(&Case::output_nesting, std::string("tuple"));
  if (!has_operation(value, "batch_norm") && !value.norms.empty()) {
    add(&Case::norms, std::vector<int64_t>{});
  }
  if (!has_operation(value, "track")) {
    add(&Case::trackers, static_cast<int64_t>(0));
  }
  const bool has_parts =
      std::any_of(value.parameters.begin(), value.parameters.end(),
                  [](const ParameterSpec& spec) { return spec.part >= 0; });
  if (!has_parts && !value.registers_twice) {
    add(&Case::parts, static_cast<int64_t>(0));
  }
  for (size_t i = 0; i < value.inputs.size(); ++i) {
    if (!value.inputs[i].requires_grad) continue;
    Case simpler = value;
    simpler.inputs[i].requires_grad = false;
    candidates.push_back(simpler);
  }
}

}  // namespace

Case shrink(Case failing, const std::function<bool(const Case&)>& fails) {
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    Candidates candidates;
    add_smaller_history(failing, candidates);
    add_smaller_graphs(failing, candidates);
    add_fewer_parameters(failing, candidates);
    add_fewer_inputs(failing, candidates);
    add_simpler_optimizers(failing, candidates);
    add_simpler_options(failing, candidates);
    for (const Case& candidate : candidates) {
      if (!is_ordered(candidate) || !fails(candidate)) continue;
      failing = candidate;
      is_smaller = true;
      break;
    }
  }
  return failing;
}

}  // namespace lockstep::differential
