#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

namespace lockstep {

/// Every tensor in `value`, which may nest tuples, lists and dicts, in order,
/// with where it stands in it: "[1]['mask']".
void for_each_tensor(
    const c10::IValue& value,
    const std::function<void(const torch::Tensor&, const std::string&)>& visit);

/// A copy of `value` with every tensor replaced by `map(tensor)`. What is not
/// a tensor, tuple, list or dict is shared.
c10::IValue map_tensors(
    const c10::IValue& value,
    const std::function<torch::Tensor(const torch::Tensor&)>& map);

/// A copy of `prototype`'s structure whose i-th child is `children[i]`.
/// `prototype` is a tuple, list or dict.
c10::IValue rebuild(const c10::IValue& prototype,
                    std::vector<c10::IValue> children);

/// The elements of a tuple or list, or a dict's values in its order; with a
/// label for each.
struct Child {
  c10::IValue value;
  std::string label;
};
bool is_nested(const c10::IValue& value);
std::vector<Child> children_of(const c10::IValue& value);

}  // namespace lockstep
