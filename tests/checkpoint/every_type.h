#pragma once

#include <string>

#include <torch/types.h>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

/// Returns tensors of every type that a file may hold, a scalar and an empty
/// one.
inline SafeTensors every_type() {
  SafeTensors content;
  content.metadata = {{"format", "pt"}, {"note", "a \"quoted\" \n line"}};
  for (const auto dtype :
       {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32,
        torch::kInt64, torch::kFloat16, torch::kBFloat16, torch::kFloat32,
        torch::kFloat64}) {
    content.tensors.emplace_back(
        std::string("of ") + c10::toString(dtype),
        torch::arange(15).remainder(2).reshape({3, 5}).to(dtype));
  }
  content.tensors.emplace_back("scalar", torch::tensor(-2.5));
  content.tensors.emplace_back("empty", torch::empty({0, 7}));
  return content;
}

}  // namespace lockstep
