// The operations that a GraphBuilder chooses from.
#include <algorithm>

#include "tests/differential/graph_builder.h"

namespace lockstep::differential {

namespace {

int64_t elements(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

constexpr int64_t kMaxElements = 64;
constexpr size_t kMaxDimensions = 3;

}  // namespace

void GraphBuilder::grow_unary(int x) {
  static const std::vector<std::string> any{"tanh", "sin",   "neg",
                                            "half", "clone", "tanh"};
  static const std::vector<std::string> real{"relu", "gelu", "sigmoid"};
  if (!is_complex() && random_.once_in(3)) {
    add(random_.pick(real), {x}, {}, at(x));
  } else if (!is_complex() && !at(x).shape.empty() && random_.once_in(6)) {
    add("softmax", {x}, {}, at(x));
  } else if (random_.once_in(20)) {
    add("detach", {x}, {}, at(x));
  } else {
    add(random_.pick(any), {x}, {}, at(x));
  }
}

void GraphBuilder::grow_view(int x) {
  Value value = at(x);
  Shape& shape = value.shape;
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t d = rank == 0 ? 0 : random_.below(rank);
  const auto place = shape.begin() + d;
  switch (random_.below(9)) {
    case 0:
      if (rank < 2) break;
      {
        const int64_t e = random_.below(rank);
        std::swap(shape[static_cast<size_t>(d)], shape[static_cast<size_t>(e)]);
        add("transpose", {x}, {dim(x, d), dim(x, e)}, value);
        return;
      }
    case 1:
    case 2:
      if (shape.size() >= kMaxDimensions) break;
      shape.insert(place, 1);
      add("unsqueeze", {x}, {dim(x, d)}, value);
      return;
    case 3:
      if (rank == 0 || *place < 2) break;
      {
        const int64_t begin = random_.below(*place);
        const int64_t end = random_.between(begin + 1, *place);
        const int64_t step = random_.between(1, 2);
        *place = (end - begin + step - 1) / step;
        add("slice", {x}, {dim(x, d), begin, end, step}, value);
        return;
      }
    case 4:
      if (rank == 0) break;
      {
        const int64_t index = random_.below(*place);
        shape.erase(place);
        add("select", {x}, {dim(x, d), index}, value);
        return;
      }
    case 5:
      // Sizes 1 grow; for what has samples the batch would be unknown.
      if (value.is_batched || shape.size() >= kMaxDimensions) break;
      for (int64_t& size : shape) {
        if (size == 1 && random_.once_in(2)) size = random_.between(1, 3);
      }
      if (random_.once_in(2)) shape.insert(shape.begin(), 2);
      if (elements(shape) > kMaxElements) break;
      add("expand", {x}, shape, value);
      return;
    case 6:
      shape = random_.once_in(2) || elements(shape) % 2 != 0
                  ? Shape{elements(shape)}
                  : Shape{elements(shape) / 2, 2};
      add(value.is_batched ? "reshape_samples" : "reshape", {x}, shape, value);
      return;
    case 7:
      if (value.is_batched || rank != 2) break;
      shape = {std::min(shape[0], shape[1])};
      add("diagonal", {x}, {}, value);
      return;
    case 8:
      if (rank == 0 || *place < 2 || shape.size() >= kMaxDimensions) break;
      *place -= 1;
      shape.push_back(2);
      add("unfold", {x}, {dim(x, d), 2}, value);
      return;
    default:
      break;
  }
  add("alias", {x}, {}, at(x));
}

void GraphBuilder::grow_shared(int x) {
  if (at(x).is_batched) return grow_binary(x);
  const int other = parameter(at(x).shape);
  static const std::vector<std::string> names{"add", "sub", "mul",
                                              "shared_gradient"};
  add(random_.pick(names), {x, other}, {}, at(x));
}

void GraphBuilder::grow_binary(int x) {
  const Value value = at(x);
  std::vector<int> alike;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].is_usable && values_[i].is_batched &&
        values_[i].shape == value.shape) {
      alike.push_back(static_cast<int>(i));
    }
  }
  static const std::vector<std::string> names{"add", "add", "sub", "mul",
                                              "shared_gradient"};
  const std::string& name = random_.pick(names);
  for (size_t i = 0; i < case_.inputs.size(); ++i) {
    if (case_.inputs[i].kind != "undefined" && case_.inputs[i].kind != "none") {
      continue;
    }
    if (!random_.once_in(4)) continue;
    add("add_if_defined", {x, static_cast<int>(i)}, {}, value);
    return;
  }
  if (alike.size() > 1 && random_.once_in(2)) {
    add(name, {x, random_.pick(alike)}, {}, value);
  } else {
    add(name == "shared_gradient" ? "add" : name, {x, addend(value.shape)}, {},
        value);
  }
}

void GraphBuilder::grow_in_place(int x) {
  const Value value = at(x);
  // Usually writes to a value that nothing else uses.
  if (static_cast<size_t>(x) < case_.inputs.size() || !random_.once_in(4)) {
    static const std::vector<std::string> copies{"clone", "half", "sin"};
    x = add(random_.pick(copies), {x}, {}, value);
  }
  switch (random_.below(4)) {
    case 0:
      add("add_", {x, addend(value.shape)}, {}, value);
      return;
    case 1:
      add("mul_", {x, addend(value.shape)}, {}, value);
      return;
    case 2:
      if (!value.shape.empty()) {
        add("halve_slice_", {x}, {1}, value);
        return;
      }
      break;
    default:
      break;
  }
  add("tanh_", {x}, {}, value);
}

void GraphBuilder::grow_structure(int x) {
  Value value = at(x);
  Shape& shape = value.shape;
  if (shape.empty()) return grow_unary(x);
  const int64_t d = random_.below(static_cast<int64_t>(shape.size()));
  const auto place = shape.begin() + d;
  switch (random_.below(5)) {
    case 0:
      add("flip", {x}, {dim(x, d)}, value);
      return;
    case 1:
      if (elements(shape) * 2 > kMaxElements) break;
      *place *= 2;
      add("cat", {x, x}, {dim(x, d)}, value);
      return;
    case 2:
      if (elements(shape) * 2 > kMaxElements ||
          shape.size() >= kMaxDimensions) {
        break;
      }
      shape.insert(place, 2);
      add("stack", {x, x}, {dim(x, d)}, value);
      return;
    case 3:
    case 4:
      shape.erase(place);
      add(random_.once_in(2) ? "sum" : "mean", {x}, {dim(x, d)}, value);
      return;
    default:
      break;
  }
  grow_unary(x);
}

void GraphBuilder::grow_layer(int x) {
  Value value = at(x);
  Shape& shape = value.shape;
  const int64_t features = shape.empty() ? 0 : shape.back();
  for (size_t i = 0; i < case_.inputs.size(); ++i) {
    const InputSpec& input = case_.inputs[i];
    if (input.kind != "index" || !random_.once_in(2)) continue;
    const int64_t width = random_.between(1, 3);
    const int table = parameter({4, width});
    Shape found = input.shape;
    found.push_back(width);
    const auto index = static_cast<int>(i);
    add(!is_complex() && random_.once_in(2) ? "embedding" : "index",
        {table, index}, {}, {.is_batched = true, .shape = found});
    return;
  }
  if (features == 0) return grow_binary(x);
  switch (random_.below(7)) {
    case 0:
      if (is_complex()) break;
      {
        const int weight = parameter({features});
        const int bias = parameter({features});
        add("layer_norm", {x, weight, bias}, {}, value);
        return;
      }
    case 1:
      if (is_complex() || shape.size() != 2) break;
      add("attention", {x, x, x}, {}, value);
      return;
    case 2: {
      const int64_t out = random_.between(1, 4);
      const int weight = parameter({features, out});
      shape.back() = out;
      add("matmul", {x, weight}, {}, value);
      return;
    }
    default:
      break;
  }
  const int64_t out = random_.between(1, 4);
  const int weight = parameter({out, features});
  std::vector<int> arguments{x, weight};
  if (random_.once_in(2)) arguments.push_back(parameter({out}));
  shape.back() = out;
  add("linear", arguments, {}, value);
}

void GraphBuilder::grow_coupled(int x) {
  const Value value = at(x);
  switch (random_.below(6)) {
    case 0:
      add("center", {x}, {}, value);
      return;
    case 1:
      add("track", {x}, {case_.trackers++}, value);
      return;
    case 2:
      if (is_complex()) break;
      add("dropout", {x}, {}, value);
      return;
    default:
      break;
  }
  if (is_complex() || value.shape.size() != 1) return grow_unary(x);
  case_.norms.push_back(value.shape[0]);
  add("batch_norm", {x}, {static_cast<int64_t>(case_.norms.size()) - 1}, value);
}

}  // namespace lockstep::differential
