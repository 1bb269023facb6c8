#include "tests/differential/case.h"

#include <algorithm>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "tests/differential/losses.h"

namespace lockstep::differential {

using Json = nlohmann::ordered_json;

namespace {

Json json_of(const ParameterSpec& spec) {
  return {{"shape", spec.shape},
          {"requires_grad", spec.requires_grad},
          {"part", spec.part},
          {"tied_to", spec.tied_to},
          {"is_assigned", spec.is_assigned},
          {"dtype", spec.dtype}};
}
Json json_of(const InputSpec& spec) {
  return {{"kind", spec.kind},
          {"shape", spec.shape},
          {"requires_grad", spec.requires_grad}};
}
Json json_of(const Node& node) {
  return Json::array({node.operation, node.arguments, node.numbers});
}
Json json_of(const OptimizerSpec& spec) {
  return {{"kind", spec.kind},         {"part", spec.part},
          {"parts", spec.parts},       {"rate", spec.rate},
          {"momentum", spec.momentum}, {"weight_decay", spec.weight_decay},
          {"nesterov", spec.nesterov}};
}
Json json_of(const Event& event) {
  if (event.loss.empty()) return Json::array({event.what, event.numbers});
  return Json::array({event.what, event.numbers, event.loss});
}

/// Sets `member` if `json` has it. Cases that people write leave out the rest.
template <class T>
void read_member(const Json& json, const char* name, T& member) {
  if (json.contains(name)) json.at(name).get_to(member);
}

void read(const Json& json, ParameterSpec& spec) {
  json.at("shape").get_to(spec.shape);
  read_member(json, "requires_grad", spec.requires_grad);
  read_member(json, "part", spec.part);
  read_member(json, "tied_to", spec.tied_to);
  read_member(json, "is_assigned", spec.is_assigned);
  read_member(json, "dtype", spec.dtype);
}
void read(const Json& json, InputSpec& spec) {
  json.at("kind").get_to(spec.kind);
  read_member(json, "shape", spec.shape);
  read_member(json, "requires_grad", spec.requires_grad);
}
void read(const Json& json, Node& node) {
  json.at(0).get_to(node.operation);
  json.at(1).get_to(node.arguments);
  if (json.size() > 2) json.at(2).get_to(node.numbers);
}
void read(const Json& json, OptimizerSpec& spec) {
  read_member(json, "kind", spec.kind);
  read_member(json, "part", spec.part);
  read_member(json, "parts", spec.parts);
  read_member(json, "rate", spec.rate);
  read_member(json, "momentum", spec.momentum);
  read_member(json, "weight_decay", spec.weight_decay);
  read_member(json, "nesterov", spec.nesterov);
}
void read(const Json& json, Event& event) {
  json.at(0).get_to(event.what);
  json.at(1).get_to(event.numbers);
  if (json.size() > 2) json.at(2).get_to(event.loss);
}

template <class T>
concept IsSpec = requires(T t) {
  json_of(t);
};

// Calls `visit(name, member)` for every member of a case, so that writing and
// reading can't differ.
template <class C, class Visit>
void visit_members(C& value, const Visit& visit) {
  visit("seed", value.seed);
  visit("kind", value.kind);
  visit("mode", value.mode);
  visit("dtype", value.dtype);
  visit("backend", value.backend);
  visit("has_processes", value.has_processes);
  visit("devices", value.devices);
  visit("ranks", value.ranks);
  visit("shards", value.shards);
  visit("parameters", value.parameters);
  visit("parts", value.parts);
  visit("registers_twice", value.registers_twice);
  visit("norms", value.norms);
  visit("trackers", value.trackers);
  visit("inputs", value.inputs);
  visit("input_nesting", value.input_nesting);
  visit("nodes", value.nodes);
  visit("outputs", value.outputs);
  visit("output_nesting", value.output_nesting);
  visit("flaw", value.flaw);
  visit("has_factory", value.has_factory);
  visit("verifies", value.verifies);
  visit("loss", value.loss);
  visit("has_l2", value.has_l2);
  visit("has_residual", value.has_residual);
  visit("passes_gradient", value.passes_gradient);
  visit("optimizer", value.optimizer);
  visit("rate", value.rate);
  visit("momentum", value.momentum);
  visit("weight_decay", value.weight_decay);
  visit("nesterov", value.nesterov);
  visit("optimizers", value.optimizers);
  visit("average", value.average);
  visit("finds_unused", value.finds_unused);
  visit("is_static", value.is_static);
  visit("has_bucket_views", value.has_bucket_views);
  visit("has_small_buckets", value.has_small_buckets);
  visit("history", value.history);
}

struct Writer {
  std::string* text;

  template <class T>
  void operator()(const char* name, const std::vector<T>& list) const {
    *text += "  \"" + std::string(name) + "\": [";
    if constexpr (IsSpec<T>) {
      for (size_t i = 0; i < list.size(); ++i) {
        *text += (i == 0 ? "\n    " : ",\n    ") + json_of(list[i]).dump();
      }
    } else {
      for (size_t i = 0; i < list.size(); ++i) {
        *text += (i == 0 ? "" : ", ") + Json(list[i]).dump();
      }
    }
    *text += "],\n";
  }
  template <class T>
  void operator()(const char* name, const T& value) const {
    *text += "  \"" + std::string(name) + "\": " + Json(value).dump() + ",\n";
  }
};

struct Reader {
  const Json* json;

  template <class T>
  void operator()(const char* name, std::vector<T>& list) const {
    if (!json->contains(name)) return;
    list.clear();
    for (const Json& element : json->at(name)) {
      T value{};
      if constexpr (IsSpec<T>) {
        read(element, value);
      } else {
        element.get_to(value);
      }
      list.push_back(std::move(value));
    }
  }
  template <class T>
  void operator()(const char* name, T& value) const {
    read_member(*json, name, value);
  }
};

}  // namespace

std::string to_text(const Case& value) {
  std::string text = "{\n";
  visit_members(value, Writer{&text});
  text.erase(text.size() - 2);
  return text + "\n}\n";
}

Case case_of_text(const std::string& text) {
  const Json json = Json::parse(text);
  Case value;
  visit_members(value, Reader{&json});
  return value;
}

bool has_operation(const Case& value, const std::string& operation) {
  return std::any_of(
      value.nodes.begin(), value.nodes.end(),
      [&](const Node& node) { return node.operation == operation; });
}

bool has_event(const Case& value, const std::string& what) {
  return std::any_of(value.history.begin(), value.history.end(),
                     [&](const Event& event) { return event.what == what; });
}

std::vector<OptimizerSpec> optimizers_of(const Case& value) {
  if (is_program(value)) return value.optimizers;
  return {{.kind = value.optimizer,
           .rate = value.rate,
           .momentum = value.momentum,
           .weight_decay = value.weight_decay,
           .nesterov = value.nesterov}};
}

bool is_of_one_rank(const Event& event) {
  return event.what.starts_with(kOneRank);
}

bool has_one_rank_that_differs(const Case& value) {
  return std::any_of(value.history.begin(), value.history.end(),
                     is_of_one_rank);
}

bool breaks_contract(const Case& value) {
  return has_bad_module_or_loss(value) || has_event(value, "change_member") ||
         has_one_rank_that_differs(value);
}

bool has_bad_module_or_loss(const Case& value) {
  const auto& parameters = value.parameters;
  return !value.flaw.empty() ||
         std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& spec) { return spec.is_assigned; }) ||
         std::any_of(value.history.begin(), value.history.end(),
                     [](const Event& event) {
                       return event.what == "train_step" &&
                              !keeps_contract(event.loss);
                     });
}

bool couples_samples(const Case& value) {
  return has_operation(value, "batch_norm") || has_operation(value, "track") ||
         has_operation(value, "center");
}

bool leaves_parameters_unused(const Case& value) {
  const size_t first = value.inputs.size();
  std::vector<bool> is_reached(first + value.nodes.size());
  for (const int output : value.outputs) {
    is_reached[static_cast<size_t>(output)] = true;
  }
  std::vector<bool> is_used(value.parameters.size());
  for (size_t i = value.nodes.size(); i-- > 0;) {
    const Node& node = value.nodes[i];
    if (!is_reached[first + i] || node.operation == "detach") continue;
    for (const int argument : node.arguments) {
      is_reached[static_cast<size_t>(argument)] = true;
    }
    if (node.operation == "parameter") {
      is_used[static_cast<size_t>(node.numbers[0])] = true;
    }
  }
  for (size_t p = 0; p < is_used.size(); ++p) {
    const ParameterSpec& spec = value.parameters[p];
    if (!is_used[p] && spec.requires_grad && spec.tied_to < 0) return true;
  }
  // The weights of a BatchNorm that comes too late.
  return !value.norms.empty();
}

}  // namespace lockstep::differential
