#include "lockstep/checkpoint/tensor_layout.h"

#include <c10/util/accumulate.h>

#include "lockstep/base/json.h"

namespace lockstep {

using nlohmann::json;

size_t TensorLayout::bytes() const {
  return static_cast<size_t>(c10::multiply_integers(sizes)) *
         c10::elementSize(type);
}

torch::Tensor TensorLayout::make() const {
  return torch::empty_strided(sizes, strides, type);
}

torch::Tensor TensorLayout::view(std::byte* data) const {
  return torch::from_blob(data, sizes, strides, type);
}

std::vector<TensorLayout> layouts_of(const NamedTensors& tensors) {
  std::vector<TensorLayout> layouts;
  layouts.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    layouts.push_back({.name = name,
                       .type = tensor.scalar_type(),
                       .sizes = tensor.sizes().vec(),
                       .strides = tensor.is_non_overlapping_and_dense()
                                      ? tensor.strides().vec()
                                      : c10::TensorType::contiguousStridesOf(
                                            tensor.sizes())});
  }
  return layouts;
}

std::string format_layouts(const std::vector<TensorLayout>& layouts) {
  json list = json::array();
  for (const TensorLayout& layout : layouts) {
    list.push_back({layout.name, static_cast<int>(layout.type), layout.sizes,
                    layout.strides});
  }
  return list.dump(-1, ' ', /*ensure_ascii=*/false,
                   json::error_handler_t::replace);
}

std::vector<TensorLayout> parse_layouts(std::string_view text) {
  std::vector<TensorLayout> layouts;
  for (const json& entry : parse_json(text)) {
    layouts.push_back(
        {.name = entry.at(0),
         .type = static_cast<c10::ScalarType>(entry.at(1).get<int>()),
         .sizes = entry.at(2),
         .strides = entry.at(3)});
  }
  return layouts;
}

}  // namespace lockstep
