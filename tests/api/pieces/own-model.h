#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

#include "lockstep/lockstep.h"

// Declarations that the code in docs/own-model.md uses.
using torch::Tensor;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(2, 3));
  }
  Tensor forward(Tensor x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};

struct Spirals {
  size_t size() const { return 3000; }
  std::pair<Tensor, Tensor> get(size_t index) const {
    return {torch::rand({2}), torch::tensor(static_cast<int64_t>(index % 3))};
  }
};

struct Lines {
  void reset() { at = 0; }
  std::optional<std::pair<Tensor, Tensor>> next() {
    return std::pair{torch::rand({2}), torch::tensor(at++ % 3)};
  }
  int64_t at = 0;
};

inline std::vector<torch::data::Example<>> batches;
inline auto* loader = &batches;
inline lockstep::Trainer<Net> trainer([] { return std::make_shared<Net>(); });
