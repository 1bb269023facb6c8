// A run goes on from its checkpoint on another number and type of devices, with
// the bits of a run that was not interrupted.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::sim {
namespace data_parallel_checkpoint {

using torch::Tensor;

/// Makes steps from `begin` to `end` on the devices in `list`. Loads a
/// checkpoint of `dir` first, if there is one, and saves another one at the
/// end. Returns the digest of the parameters.
std::string train(const std::string& list, int64_t begin, int64_t end,
                  const std::string& dir) {
  const auto devices = devices_of(list);
  torch::manual_seed(3);
  ConvNet net;
  lockstep::to(*net, devices.front());
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  const DataParallel model(net, devices,
                           wrap_options().seed(5).divide_state(true));
  if (has_checkpoint(dir)) {
    load_checkpoint(find_checkpoint(dir), *net, &adamw);
  }
  for (int64_t step = begin; step < end; ++step) {
    torch::manual_seed(static_cast<uint64_t>(100 + step));
    const Batch batch = images();
    model->set_step(step);
    model->train_step(batch.x, batch.y, &class_loss, adamw);
  }
  model->unshare_parameters();
  save_checkpoint(dir, *net, adamw, {.step = end});
  EXPECT_EQ(parameter_digest(*net),
            read_checkpoint_info(find_checkpoint(dir)).parameter_sha256);
  return digest_of(*net);
}

TEST(DataParallelCheckpoint, IsResumedOnOtherDevices) {
  const TemporaryFolder whole;
  const std::string expected = train("4xcpu", 0, 4, whole.path());
  const std::vector<std::pair<const char*, const char*>> changes{
      {"2xsim", "4xcpu"},
      {"4xcpu", "3xsim"},
      {"4xsim", "sim:0"},
      {"sim:0", "2xsim"}};
  for (const auto& [first, second] : changes) {
    const TemporaryFolder parts;
    train(first, 0, 2, parts.path());
    EXPECT_EQ(train(second, 2, 4, parts.path()), expected)
        << first << ", then " << second;
  }
}

TEST(DataParallelCheckpoint, KeepsTheRandomNumbersOfEachDevice) {
  const auto devices = devices_of("2xsim");
  const auto drawn = [] {
    std::vector<Tensor> values;
    for (int index : {0, 1}) {
      const c10::Device device(kSim, static_cast<c10::DeviceIndex>(index));
      values.push_back(torch::randn({5}, device).cpu());
    }
    values.push_back(torch::randn({5}));
    return values;
  };
  drawn();
  const auto state = random_state(devices);
  EXPECT_EQ(state.size(), 3);
  const auto expected = drawn();
  drawn();
  set_random_state(state, devices);
  const auto again = drawn();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(again[i], expected[i]));
  }
}

TEST(DataParallelCheckpoint, IsOneFileForAModel) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/net.safetensors";
  torch::manual_seed(3);
  ConvNet saved, loaded;
  saved->to(c10::Device(kSim, 1));
  loaded->to(c10::Device(kSim, 3));
  lockstep::save(*saved, path);
  lockstep::load(*loaded, path);
  EXPECT_EQ(digest_of(*loaded), digest_of(*saved));
  EXPECT_EQ(loaded->parameters().front().device(), c10::Device(kSim, 3));
}

}  // namespace data_parallel_checkpoint
}  // namespace lockstep::sim
