// A loop that resumes from its last checkpoint when ranks are restarted.
// Arguments: folder, steps, and a step at which the last rank is killed once:
//     lockstep run --nproc-per-node 2 --max-restarts 3 --
//         practical_faults runs/faults 40 25
#include <csignal>
#include <cstdlib>
#include <numeric>

#include "../arguments.h"
#include "lockstep/lockstep.h"
using namespace lockstep;
struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(3072, 10));
  }
  torch::Tensor forward(torch::Tensor x) { return fc(x.flatten(1)); }
  torch::nn::Linear fc{nullptr};
};
int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "FOLDER STEPS DEADLY_STEP");
  const std::string folder = arguments.text("practical_faults");
  const int64_t steps = arguments.number(40);
  const int64_t deadly = arguments.number(/*otherwise=*/-1, /*least=*/0);
  const ProcessGroup world = init();
  torch::manual_seed(0);
  auto net = std::make_shared<Net>();
  auto model = DistributedDataParallel(net, world);
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.01).momentum(0.9));
  int64_t step = 0;
  if (has_checkpoint(folder)) {  // none if the first save was killed
    const auto saved = open_checkpoint(folder);
    saved.load(*net, &sgd);
    step = saved.info().step;
  }
  std::puts(c10::str("Rank: ", world.rank(), " | from step ", step).c_str());
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool is_killed = step == 0 && (!restarts || *restarts == '0') &&
                         world.rank() == world.size() - 1;
  const data::ImageSource images(data::open({}, data::Split::kTrain));
  for (; step < steps; ++step) {
    if (step == deadly && is_killed) std::raise(SIGKILL);
    std::vector<int64_t> samples(64 / world.size());
    std::iota(samples.begin(), samples.end(),
              step * 64 + world.rank() * int64_t(samples.size()));
    const auto batch = images.read(samples, 0);
    const auto output = model->forward(batch.data);
    torch::cross_entropy_loss(output, batch.target).backward();
    sgd.step();
    sgd.zero_grad();
    if ((step + 1) % 10 == 0 && world.rank() == 0) {
      save_checkpoint(folder, *net, sgd, {.step = step + 1});
    }
  }
  if (world.rank() != 0) return 0;
  std::puts(("parameter_sha256 " + parameter_digest(*net)).c_str());
} catch (const std::exception& error) {
  return end_with(error);
}
