// Your own module, dataset and loss, with one of LibTorch's optimizers:
//   ./own_model --strategy ddp --devices 2xcpu --epochs 20 --out-dir /tmp/run
#include "lockstep/lockstep.h"

using torch::Tensor;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(2, 64));
    out = register_module("out", torch::nn::Linear(64, 2));
  }
  Tensor forward(Tensor x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

// Points on two spirals. The network learns to tell the spirals apart.
struct Spirals {
  size_t size() const { return 2000; }
  torch::data::Example<> get(size_t index) const {
    const double turn = static_cast<double>(index) / 2000;
    const double angle = 6.28 * turn + (index % 2 == 0 ? 0 : 3.14);
    const std::vector<float> point{static_cast<float>(turn * std::cos(angle)),
                                   static_cast<float>(turn * std::sin(angle))};
    return {torch::tensor(point), torch::tensor(int64_t(index % 2))};
  }
};

lockstep::LossAndMetrics loss(const Tensor& logits, const Tensor& spiral) {
  return {torch::nn::functional::cross_entropy(logits, spiral),
          {{"accuracy", lockstep::training::accuracy(logits, spiral)}}};
}

// Weight decay applies to weights, but not to biases.
std::unique_ptr<torch::optim::AdamW> make_optimizer(Net& net) {
  using Options = torch::optim::AdamWOptions;
  using Group = torch::optim::OptimizerParamGroup;
  std::vector<Tensor> weights{net.hidden->weight, net.out->weight};
  std::vector<Tensor> biases{net.hidden->bias, net.out->bias};
  std::vector<Group> groups{
      {weights, std::make_unique<Options>(Options(1e-2).weight_decay(0.01))},
      {biases, std::make_unique<Options>(Options(1e-2).weight_decay(0))}};
  return std::make_unique<torch::optim::AdamW>(groups, Options(1e-2));
}

int main(int argc, char** argv) {
  lockstep::Trainer trainer([] { return std::make_shared<Net>(); });
  trainer.name("spirals")
      .data(std::make_shared<Spirals>())
      .test_data(std::make_shared<Spirals>())
      .loss(loss)
      .optimizer(make_optimizer)
      .schedule_per_epoch([](torch::optim::Optimizer& optimizer) {
        return std::make_shared<torch::optim::StepLR>(optimizer, 10, 0.5);
      });
  return lockstep::train_main(argc, argv, trainer);
}
