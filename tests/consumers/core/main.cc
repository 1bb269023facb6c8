// A user's program that links lockstep::core only.
// DataParallel and DistributedDataParallel must give the same bits.
#include <cstdio>
#include <lockstep/core.h>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace {

torch::nn::Linear new_net() {
  torch::manual_seed(1);
  return torch::nn::Linear(8, 3);
}

}  // namespace

int main() {
  const auto x =
      torch::sin(torch::arange(96).to(torch::kFloat32).view({12, 8}));

  const auto net = new_net();
  lockstep::DataParallel<torch::nn::LinearImpl> replicated(
      net.ptr(), lockstep::devices("2xcpu"));
  replicated->forward(x).square().mean().backward();
  const auto expected = net->weight.grad().clone();

  // Made here, because ranks that are threads share the random generator.
  std::vector<torch::nn::Linear> nets{new_net(), new_net()};
  bool is_same = true;
  lockstep::spawn(2, [&](const lockstep::ProcessGroup& group) {
    const auto& own = nets[static_cast<size_t>(group.rank())];
    lockstep::DistributedDataParallel<torch::nn::LinearImpl> synced(own.ptr(),
                                                                    group);
    const auto part = x.chunk(2)[static_cast<size_t>(group.rank())];
    synced->forward(part).square().mean().backward();
    std::vector<torch::Tensor> sums{torch::ones({3})};
    group.backend()->allreduce(sums, {})->wait();
    if (group.rank() != 0) return;
    is_same = torch::equal(own->weight.grad(), expected) &&
              torch::equal(sums[0], torch::full({3}, 2.0));
  });
  std::printf("%s\n", is_same ? "the same bits" : "different bits");
  return is_same ? 0 : 1;
}
