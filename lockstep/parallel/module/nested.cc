#include "lockstep/parallel/module/nested.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/parallel/module/shared.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

bool is_nested(const IValue& value) {
  return value.isTuple() || value.isList() || value.isGenericDict();
}

std::vector<Child> children_of(const IValue& value) {
  std::vector<Child> children;
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) {
      children.push_back({element, fmt::format("[{}]", children.size())});
    }
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      children.push_back({element, fmt::format("[{}]", children.size())});
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      children.push_back(
          {entry.value(), fmt::format("[{}]", c10::str(entry.key()))});
    }
  }
  return children;
}

namespace {

bool has_undefined(const IValue& value) {
  if (value.isTensor()) return !value.toTensor().defined();
  for (const Child& child : children_of(value)) {
    if (has_undefined(child.value)) return true;
  }
  return false;
}

/// Returns the element type of a list or dict that gets `children` in place of
/// those of `prototype`. Only a container with the element type Any can hold a
/// Shared, but a function that takes a list or dict of tensors needs one with
/// the element type Tensor.
c10::TypePtr element_type(const c10::TypePtr& declared, const IValue& prototype,
                          const std::vector<IValue>& children) {
  if (declared->kind() != c10::TypeKind::AnyType) return declared;
  const std::vector<Child> before = children_of(prototype);
  const bool had_shared = std::any_of(
      before.begin(), before.end(),
      [](const Child& child) { return Shared::in(child.value).has_value(); });
  const bool are_tensors =
      std::all_of(children.begin(), children.end(),
                  [](const IValue& child) { return child.isTensor(); });
  return had_shared && are_tensors ? c10::TensorType::get() : declared;
}

}  // namespace

IValue rebuild(const IValue& prototype, std::vector<IValue> children) {
  if (prototype.isTuple()) {
    const auto tuple = prototype.toTuple();
    // The names of a named tuple are in its type, which fits the copy if every
    // element keeps its own type. The names are kept only then. type() of an
    // unnamed tuple reads the strides of every tensor in it, which an undefined
    // tensor does not have. A named tuple never holds an undefined tensor: it
    // holds None instead.
    if (!has_undefined(prototype) && tuple->type()->schema()) {
      return c10::ivalue::Tuple::createNamed(std::move(children),
                                             tuple->type<c10::TupleType>());
    }
    return c10::ivalue::Tuple::create(std::move(children));
  }
  if (prototype.isList()) {
    c10::impl::GenericList list(
        element_type(prototype.toList().elementType(), prototype, children));
    list.reserve(children.size());
    for (IValue& child : children) list.push_back(std::move(child));
    return list;
  }
  const auto dict = prototype.toGenericDict();
  c10::impl::GenericDict copy(
      dict.keyType(), element_type(dict.valueType(), prototype, children));
  size_t at = 0;
  for (const auto& entry : dict) {
    copy.insert(entry.key(), std::move(children[at++]));
  }
  return copy;
}

namespace {

void add_tensors(const IValue& value, const std::string& path,
                 std::vector<TensorAtPath>& found) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) found.push_back({value.toTensor(), path});
    return;
  }
  if (const auto shared = Shared::in(value)) {
    if (shared->defined()) found.push_back({*shared, path, true});
    return;
  }
  for (const Child& child : children_of(value)) {
    add_tensors(child.value, path + child.label, found);
  }
}

}  // namespace

std::vector<TensorAtPath> tensors_in(const IValue& value) {
  std::vector<TensorAtPath> found;
  add_tensors(value, "", found);
  return found;
}

namespace {

using MapValue = std::function<IValue(const Tensor&)>;

IValue map_values(const IValue& value, const MapValue& map,
                  const MapValue& map_shared) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? map(value.toTensor()) : value;
  }
  if (const auto shared = Shared::in(value)) {
    return shared->defined() ? map_shared(*shared) : IValue(*shared);
  }
  if (!is_nested(value)) return value;
  std::vector<IValue> mapped;
  for (const Child& child : children_of(value)) {
    mapped.push_back(map_values(child.value, map, map_shared));
  }
  return rebuild(value, std::move(mapped));
}

}  // namespace

IValue map_tensors(const IValue& value, const MapTensor& map) {
  return map_values(value, map, map);
}

IValue map_tensors(const IValue& value, const MapTensor& map,
                   const MapTensor& map_shared) {
  return map_values(value, map, map_shared);
}

IValue map_split_tensors(const IValue& value, const MapTensor& map) {
  return map_values(value, map, [](const Tensor& tensor) -> IValue {
    return shared(tensor);
  });
}

IValue unshared(const IValue& value) {
  return map_tensors(value, [](const Tensor& tensor) { return tensor; });
}

IValue detached(const IValue& value) {
  return map_tensors(value,
                     [](const Tensor& tensor) { return tensor.detach(); });
}

IValue cloned(const IValue& value) {
  return map_tensors(
      value, [](const Tensor& tensor) { return tensor.detach().clone(); });
}

}  // namespace lockstep
