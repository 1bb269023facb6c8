#include "tests/differential/graph_builder.h"

#include <algorithm>

namespace lockstep::differential {

GraphBuilder::GraphBuilder(Case& target, Random& random)
    : case_(target), random_(random) {}

void GraphBuilder::build(int64_t operations, Outputs outputs) {
  add_inputs();
  // Something is trained, whatever follows.
  do {
    grow_layer(last_batched());
  } while (!at(last_batched()).is_trained);
  for (int64_t i = 0; i < operations; ++i) grow();
  add_odd_parameters();
  choose_outputs(outputs);
}

void GraphBuilder::add_inputs() {
  const auto add_input = [&](InputSpec spec, bool is_usable) {
    values_.push_back(
        {.is_batched = true, .shape = spec.shape, .is_usable = is_usable});
    case_.inputs.push_back(std::move(spec));
  };
  Shape shape{random_.between(1, 4)};
  if (random_.once_in(2)) shape.insert(shape.begin(), random_.between(1, 3));
  const bool has_gradient = random_.once_in(5);
  add_input({.kind = "real", .shape = shape, .requires_grad = has_gradient},
            true);
  if (random_.once_in(3)) {
    add_input(
        {.kind = "real", .shape = shape, .requires_grad = random_.once_in(5)},
        true);
  }
  if (random_.once_in(4)) {
    add_input(
        {.kind = "index", .shape = random_.once_in(2) ? Shape{} : Shape{2}},
        false);
  }
  if (random_.once_in(8)) add_input({.kind = "undefined"}, false);
  if (random_.once_in(16)) add_input({.kind = "none"}, false);
  static const std::vector<std::string> nestings{"tuple", "tuple", "list",
                                                 "nested", "dict"};
  case_.input_nesting = random_.pick(nestings);
}

int GraphBuilder::add(const std::string& operation, std::vector<int> arguments,
                      std::vector<int64_t> numbers, Value value) {
  value.is_trained = false;
  if (operation == "parameter") {
    value.is_trained =
        case_.parameters[static_cast<size_t>(numbers[0])].requires_grad;
  } else if (operation != "detach") {
    for (const int argument : arguments) {
      value.is_trained = value.is_trained || at(argument).is_trained;
    }
  }
  case_.nodes.push_back({operation, std::move(arguments), std::move(numbers)});
  values_.push_back(std::move(value));
  return static_cast<int>(values_.size()) - 1;
}

int GraphBuilder::add_parameter(const Shape& shape) {
  ParameterSpec spec{.shape = shape};
  spec.requires_grad = !random_.once_in(12);
  if (random_.once_in(3)) {
    case_.parts = std::max<int64_t>(case_.parts, 1 + random_.below(2));
    spec.part = static_cast<int>(random_.below(case_.parts));
    case_.registers_twice = case_.registers_twice || random_.once_in(6);
  }
  case_.parameters.push_back(spec);
  const auto place = static_cast<int64_t>(case_.parameters.size()) - 1;
  if (spec.part < 0 && random_.once_in(10)) {
    spec.tied_to = static_cast<int>(place);
    case_.parameters.push_back(spec);
  }
  return add("parameter", {}, {place}, {.is_batched = false, .shape = shape});
}

int GraphBuilder::parameter(const Shape& shape) {
  if (random_.once_in(3)) {
    std::vector<int> fitting;
    for (size_t i = 0; i < values_.size(); ++i) {
      const Value& value = values_[i];
      if (!value.is_batched && value.is_usable && value.shape == shape) {
        fitting.push_back(static_cast<int>(i));
      }
    }
    if (!fitting.empty()) return random_.pick(fitting);
  }
  return add_parameter(shape);
}

int GraphBuilder::addend(const Shape& shape) {
  Shape own = shape;
  switch (random_.below(4)) {
    case 0:
      if (!own.empty()) own.erase(own.begin());
      break;
    case 1:
      if (!own.empty()) own[0] = 1;
      break;
    default:
      break;
  }
  int result = parameter(own);
  if (own != shape) return result;
  const auto lift = [&](int x) {
    Shape lifted = own;
    lifted.insert(lifted.begin(), 1);
    return add("unsqueeze", {x}, {0}, {.is_batched = false, .shape = lifted});
  };
  switch (random_.below(5)) {
    case 0:
      return lift(result);
    case 1: {
      result = lift(result);
      const int other = lift(parameter(own));
      return add("add", {result, other}, {}, at(result));
    }
    case 2: {
      const int other = parameter(own);
      return add("add", {result, other}, {}, at(result));
    }
    default:
      return result;
  }
}

int GraphBuilder::random_value(bool is_batched) {
  std::vector<int> fitting;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].is_usable && values_[i].is_batched == is_batched) {
      fitting.push_back(static_cast<int>(i));
    }
  }
  if (fitting.empty()) return last_batched();
  // Mostly the last, so that the graph is deep as well as wide.
  return random_.once_in(2) ? fitting.back() : random_.pick(fitting);
}

int GraphBuilder::last_batched(bool is_trained) const {
  for (size_t i = values_.size(); i-- > 0;) {
    if (is_trained && !values_[i].is_trained) continue;
    if (values_[i].is_usable && values_[i].is_batched) {
      return static_cast<int>(i);
    }
  }
  return 0;
}

void GraphBuilder::grow() {
  switch (random_.below(16)) {
    case 0:
    case 1:
      return grow_unary(random_value(true));
    case 2:
      return grow_unary(random_value(false));
    case 3:
    case 4:
      return grow_view(random_value(true));
    case 5:
    case 6:
      return grow_view(random_value(false));
    case 7:
    case 8:
    case 9:
      return grow_binary(random_value(true));
    case 10:
      return grow_in_place(random_value(true));
    case 11:
      return grow_structure(random_value(true));
    case 12:
      return random_.once_in(2) ? grow_coupled(random_value(true))
                                : grow_layer(random_value(true));
    case 13:
      return grow_shared(random_value(false));
    default:
      return grow_layer(random_value(true));
  }
}

void GraphBuilder::add_odd_parameters() {
  const int x = last_batched();
  if (random_.once_in(6)) {  // without dimensions
    const int p = add_parameter({});
    add("mul", {x, p}, {}, at(x));
  }
  if (random_.once_in(10)) {  // without elements
    const int p = add_parameter({0});
    const int sum = add("sum_all", {p}, {}, {.is_batched = false, .shape = {}});
    add("add", {x, sum}, {}, at(x));
  }
  if (random_.once_in(8)) {  // unused
    case_.parameters.push_back({.shape = {random_.between(1, 3)}});
  }
  if (random_.once_in(12)) {  // of another type
    ParameterSpec spec{.shape = at(x).shape};
    spec.dtype = is_complex()             ? ""
                 : case_.dtype == "float" ? "double"
                                          : "float";
    case_.parameters.push_back(spec);
    const auto place = static_cast<int64_t>(case_.parameters.size()) - 1;
    const int p = add("parameter", {}, {place},
                      {.shape = spec.shape, .is_usable = false});
    const int cast = add("to_type_of", {p, x}, {}, {.shape = spec.shape});
    add("add", {x, cast}, {}, at(x));
  }
}

void GraphBuilder::choose_outputs(Outputs outputs) {
  case_.outputs = {last_batched(true)};
  if (random_.once_in(3)) case_.outputs.push_back(random_value(true));
  if (outputs != Outputs::kSamples && random_.once_in(6)) {
    const int u = random_value(false);
    if (!at(u).is_batched) {
      case_.outputs.push_back(
          outputs == Outputs::kGathered
              ? add("sum_all", {u}, {}, {.is_batched = false})
              : u);
    }
  }
  if (random_.once_in(8)) {
    case_.outputs.push_back(add("undefined", {}, {}, {.is_usable = false}));
  }
  static const std::vector<std::string> nestings{"tuple", "tuple", "list",
                                                 "nested", "dict"};
  case_.output_nesting = random_.pick(nestings);
}

}  // namespace lockstep::differential
