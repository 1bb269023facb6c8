// A user's program with the command line of `lockstep train`.
#include <lockstep/lockstep.h>

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    out = register_module("out", torch::nn::Linear(2, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(x); }
  torch::nn::Linear out{nullptr};
};

struct Points {
  size_t size() const { return 16; }
  torch::data::Example<> get(size_t index) const {
    return {torch::full({2}, static_cast<double>(index) / 16),
            torch::tensor(static_cast<int64_t>(index % 2))};
  }
};

int main(int argc, char** argv) {
  lockstep::Trainer trainer([] { return std::make_shared<Net>(); });
  trainer.data(std::make_shared<Points>())
      .loss([](const torch::Tensor& logits, const torch::Tensor& target) {
        return torch::nn::functional::cross_entropy(logits, target);
      })
      .optimizer([](Net& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), 0.1);
      });
  return lockstep::train_main(argc, argv, trainer);
}
