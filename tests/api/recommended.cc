// The code that messages recommend: each piece is in SAYS(), as in the message.
// compile_test.py compiles it, and compares it with the messages.

#include <torch/optim/sgd.h>

#include "lockstep/lockstep.h"

#define SAYS(...) __VA_ARGS__

using namespace lockstep;  // NOLINT: as a user's program has it

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    embedding = register_module("embedding", torch::nn::Embedding(4, 3));
  }
  SAYS(torch::Tensor forward(torch::Tensor x)) { return embedding(x); }
  torch::nn::Embedding embedding{nullptr};
};

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

struct TwoInputs : torch::nn::Cloneable<TwoInputs> {
  void reset() override {}
  torch::Tensor forward(torch::Tensor a, torch::Tensor b) { return a + b; }
};

struct Points {
  size_t size() const { return 4; }
  torch::data::Example<> get(size_t) const {
    return {torch::rand(2), torch::rand(2)};
  }
};

// clang-format off

void wrap(std::shared_ptr<Net> module, std::vector<Device> devices,
          ProcessGroup world) {
  SAYS(DataParallel(module, [] { return std::make_shared<Net>(); }, devices));
  DataParallel(module, SAYS(lockstep::devices("2xcpu")));
  lockstep::devices("cpu:9,cpu:9", SAYS(Duplicates::kAllow),
                    SAYS(Oversubscription::kAllow));
  ProcessGroupOptions().bad_links(SAYS(BadLinks::kStage));
  SAYS(ProcessGroupOptions().device_type(torch::kCUDA));
  SAYS(init(ProcessGroupOptions().device_type(torch::kCUDA)));
  training::SAYS(TrainOptions().devices(lockstep::devices("auto")));
  training::TrainOptions().SAYS(strategy(training::Strategy::kDistributed));
  Net* model = module.get();
  SAYS(lockstep::to(*model, devices[0]));
  DistributedDataParallel(module, world, DistributedDataParallelOptions()
      .SAYS(find_unused_parameters(true)).SAYS(static_graph(true))
      .SAYS(broadcast_buffers(false))
      .zero(SAYS(ZeroStage::kOptimizerState))
      .SAYS(verify(Verify::kNever))
      .SAYS(verify_ranks(false)));
}

void wrap_on_ranks(std::shared_ptr<Net> module, ProcessGroup group) {
  SAYS(DistributedDataParallel(module, group));
}

void save_script(DataParallel<torch::jit::Module> model, std::string path) {
  SAYS(model->module().save(path));
  SAYS(torch::jit::load(path));
}

void wrap_for_all_devices(std::shared_ptr<Net> module) {
  DataParallel(module, SAYS(devices("auto")), DataParallelOptions()
               .SAYS(verify(Verify::kNever)));
}

void change_module(std::shared_ptr<Net> module, Device one,
                   torch::Dtype dtype) {
  const auto device = torch_device(one);
  SAYS(module->to(device));
  module->SAYS(to(device));
  module->SAYS(to(dtype));
  for (auto& parameter : module->parameters()) {
    parameter.SAYS(requires_grad_(true));
    parameter.SAYS(requires_grad_(false));
    SAYS(parameter.set_data(parameter.contiguous()));
    const torch::Tensor value = parameter.detach() * 2;
    SAYS({ torch::NoGradGuard no_grad; parameter.copy_(value); })
  }
  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(4, 3)
                                  .SAYS(sparse(false)));
}

void train(DataParallel<Net> model, torch::optim::LBFGS& optimizer,
           torch::Tensor x, torch::Tensor y) {
  SAYS(optimizer.step([&] { optimizer.zero_grad(); auto l =
       loss(model->forward(x), y); l.backward(); return l; }));
  torch::optim::SGD one(SAYS(model->parameters()), 0.1);
  torch::optim::SGD other(SAYS(lockstep::optim::unique(model->parameters())),
                          0.1);
  SAYS(model->module());
  const std::string path;
  SAYS(lockstep::load(*model->module(), path));
  SAYS(lockstep::save(*model->module(), path));
  SAYS(x.to(model->module()->parameters()[0].device()));
  TrainStepOptions().SAYS(loss_reduction(LossReduction::kSum));
  TrainStepOptions().loss_reduction(SAYS(LossReduction::kSum));
  SAYS(TrainStepOptions().loss_reduction(LossReduction::kSum));
  TrainStepOptions().SAYS(empty_batch(EmptyBatch::kSkip));
  SAYS(TrainStepOptions().clip_grad_norm(1.0));
  Trainer<Net>([] { return std::make_shared<Net>(); })
      .SAYS(empty_batch(EmptyBatch::kSkip));
  Trainer<Net>([] { return std::make_shared<Net>(); }).optimizer([](Net& net) {
    return SAYS(std::make_unique<torch::optim::SGD>(net.parameters(), 0.1));
  });
  const double weight = 1;
  SAYS(TrainStepOptions().total_weight(weight));
}

// A program's own functions may be called train and so on.
void call_train(DataParallel<Net> model, torch::optim::LBFGS& optimizer) {
  train(model, optimizer, torch::rand({2, 3}), torch::zeros(2, torch::kLong));
}

void train_two(DataParallel<TwoInputs> model, torch::Tensor a, torch::Tensor b,
               torch::Tensor target, torch::optim::SGD& optimizer) {
  const auto loss = SAYS([](const torch::Tensor& output,
                            const torch::Tensor& target) {
    return torch::cross_entropy_loss(output, target); });
  model->SAYS(train_step(std::make_tuple(a, b), target, loss, optimizer));
}

void train_ranks(DistributedDataParallel<Net> model, torch::Tensor weight,
                 double max_norm, GradBucket& bucket, torch::Tensor result) {
  SAYS(model->unshare_parameters());
  SAYS({ torch::NoGradGuard no_grad;
         weight.copy_(weight.renorm(2, 0, max_norm)); })
  SAYS(bucket.buffer.copy_(result));
  data::LoaderOptions().SAYS(workers(0));
  data::DatasetSource<Points> source(std::make_shared<Points>());
  source.set_collate([](const std::vector<torch::data::Example<>>& samples) {
    return std::pair(samples[0].data, samples[0].target);
  });
  data::Loader loader(std::make_shared<Points>());
}

void compute(ProcessGroup world, Net& net, torch::Tensor x,
             torch::Tensor output, torch::Tensor target, torch::Tensor t,
             torch::Tensor y) {
  auto embedding = net.embedding;
  auto targets = target;
  const int64_t value = 0;
  SAYS(lockstep::shared(t));
  SAYS(t.to_padded_tensor(0));
  SAYS(y.to_padded_tensor(0));
  t.SAYS(unsqueeze(0));
  SAYS(lockstep::cross_entropy(output, target));
  SAYS(lockstep::all_gather_with_grad(world, output));
  SAYS(torch::nn::functional::linear(x, embedding->weight));
  SAYS(targets.masked_fill(targets == value, 0));
}
