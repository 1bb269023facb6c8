#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep {

using MapTensor = std::function<torch::Tensor(const torch::Tensor&)>;

/// A tensor in a value that may nest tuples, lists and dicts.
struct TensorAtPath {
  torch::Tensor tensor;
  std::string path;        ///< its position: "[1]['mask']"
  bool is_shared = false;  ///< whether it is shared()
};
/// Returns the defined tensors in `value`, in order.
std::vector<TensorAtPath> tensors_in(const c10::IValue& value);

/// Returns a copy of `value` with every tensor replaced by `map(tensor)`. Other
/// values are shared by reference.
c10::IValue map_tensors(const c10::IValue& value, const MapTensor& map);
/// Same, but replaces the tensors that are shared() by `map_shared(tensor)`.
/// The copy has plain tensors in their place.
c10::IValue map_tensors(const c10::IValue& value, const MapTensor& map,
                        const MapTensor& map_shared);
/// Returns a copy of `value` with every tensor that is not shared() replaced by
/// `map(tensor)`. Those that are shared() stay as they are.
c10::IValue map_split_tensors(const c10::IValue& value, const MapTensor& map);
/// Returns a copy of `value` with plain tensors in place of those that are
/// shared(), which is what a module without a wrapper takes.
c10::IValue unshared(const c10::IValue& value);

/// Same, with tensors that are detached from their graphs.
c10::IValue detached(const c10::IValue& value);
/// Same, with copies of the tensors, without graphs.
c10::IValue cloned(const c10::IValue& value);

/// Returns a copy of `prototype`'s structure whose i-th child is `children[i]`.
/// `prototype` is a tuple, list or dict.
c10::IValue rebuild(const c10::IValue& prototype,
                    std::vector<c10::IValue> children);

/// An element of a tuple or list, or a value of a dict, with its label.
struct Child {
  c10::IValue value;
  std::string label;
};
bool is_nested(const c10::IValue& value);
/// Returns the children of a tuple, list or dict, in its order.
std::vector<Child> children_of(const c10::IValue& value);

}  // namespace lockstep
