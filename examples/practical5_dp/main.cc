// Practical 5: trains a network. `show` prints its inputs: 2xcpu 64 20 show
#include "../arguments.h"
#include "lockstep/lockstep.h"
using namespace lockstep;
// Prints a line with one call, because replicas print at the same time.
void print(const auto&... parts) { std::puts(c10::str(parts...).c_str()); }
bool is_shown = false;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(3072, 1024));
    out = register_module("out", torch::nn::Linear(1024, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto on = current_device().name();
    if (is_shown) print("Inside model on device ", on, ", shape ", x.sizes());
    return out(hidden(x.flatten(1)).relu());
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "DEVICES BATCH_SIZE STEPS show");
  const auto list = arguments.devices();
  const int64_t batch_size = arguments.number(64);
  const int64_t steps = arguments.number(20);
  is_shown = arguments.word();
  install_accounting_allocator();
  const MemoryScope on_first_device(list.front());
  torch::manual_seed(0);
  auto net = std::make_shared<Net>();
  to(*net, list.front());
  auto model = DataParallel(net, list);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  data::Loader loader(data::open({}, data::Split::kTrain),
                      data::LoaderOptions().batch_size(batch_size));
  const auto now = std::chrono::steady_clock::now;
  const auto start = now();
  for (int64_t step = 0; step < steps;) {
    for (const auto& batch : loader) {
      const auto x = batch.data.to(torch_device(list.front()));
      const auto y = batch.target.to(x.device());
      if (is_shown) print("In the loop on ", x.device(), ", shape ", x.sizes());
      sgd.zero_grad();
      torch::cross_entropy_loss(model->forward(x), y).backward();
      sgd.step();
      if (++step == steps) break;
    }
  }
  const std::chrono::duration<double> t = now() - start;
  print("Step time: ", t.count() / steps, " s | Total time: ", t.count(), " s");
  for (const auto& device : list) {
    const double mib = memory_stats(device).peak_bytes / 1048576.0;
    print(device.name(), " memory peak: ", mib, " MiB");
  }
  print("parameter_sha256 ", parameter_digest(*net));
} catch (const std::exception& error) {
  return end_with(error);
}
