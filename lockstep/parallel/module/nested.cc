#include "lockstep/parallel/module/nested.h"

#include <fmt/format.h>

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

}  // namespace

IValue rebuild(const IValue& prototype, std::vector<IValue> children) {
  if (prototype.isTuple()) {
    const auto tuple = prototype.toTuple();
    // Names of a named tuple live in its type, which holds for the copy when
    // every element keeps its own type; the names are worth keeping only then.
    // type() of an unnamed tuple reads the strides of every tensor in it, which
    // an undefined tensor does not have. A named tuple never holds an undefined
    // tensor: it holds None instead.
    if (!has_undefined(prototype) && tuple->type()->schema()) {
      return c10::ivalue::Tuple::createNamed(std::move(children),
                                             tuple->type<c10::TupleType>());
    }
    return c10::ivalue::Tuple::create(std::move(children));
  }
  if (prototype.isList()) {
    c10::impl::GenericList list(prototype.toList().elementType());
    list.reserve(children.size());
    for (IValue& child : children) list.push_back(std::move(child));
    return list;
  }
  const auto dict = prototype.toGenericDict();
  c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
  size_t at = 0;
  for (const auto& entry : dict) {
    copy.insert(entry.key(), std::move(children[at++]));
  }
  return copy;
}

namespace {

void visit_tensors(
    const IValue& value, const std::string& path,
    const std::function<void(const Tensor&, const std::string&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor(), path);
    return;
  }
  for (const Child& child : children_of(value)) {
    visit_tensors(child.value, path + child.label, visit);
  }
}

}  // namespace

void for_each_tensor(
    const IValue& value,
    const std::function<void(const Tensor&, const std::string&)>& visit) {
  visit_tensors(value, "", visit);
}

IValue map_tensors(const IValue& value,
                   const std::function<Tensor(const Tensor&)>& map) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? IValue(map(value.toTensor())) : value;
  }
  if (!is_nested(value)) return value;
  std::vector<IValue> mapped;
  for (const Child& child : children_of(value)) {
    mapped.push_back(map_tensors(child.value, map));
  }
  return rebuild(value, std::move(mapped));
}

}  // namespace lockstep
