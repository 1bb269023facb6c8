// Compares --numa-binding with torch/numa/binding.py on the same fake host.
// Tier: nightly. It loads PyTorch.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/launch/options/numa_binding.h"
#include "tests/checkpoint/python.h"
#include "tests/launch/options/fake_host.h"

namespace lockstep::launch {
namespace {

// Prints a line for each mode and GPU: "node 0 1,2,3".
constexpr const char* kAskTorch = R"(
import builtins, os, sys, types
from torch.numa import binding

root = sys.argv[1]
nodes = [int(n) for n in sys.argv[2].split(",")]
allowed = {int(c) for c in sys.argv[3].split(",")}
binding.open = lambda path: builtins.open(root + path)
binding.os = types.SimpleNamespace(
    listdir=lambda path: os.listdir(root + path), path=os.path)
binding._get_device_count = lambda: len(nodes)
binding._get_numa_node_index_for_device_index = lambda *, device_index: nodes[
    device_index]
binding._get_allowed_cpu_indices_for_current_thread = lambda: allowed
for mode in binding.AffinityMode:
    for index in range(len(nodes)):
        cores = binding._get_logical_cpus_to_bind_to(
            device_index=index,
            numa_options=binding.NumaOptions(affinity_mode=mode))
        print(mode.value, index, ",".join(map(str, sorted(cores))))
)";

TEST(NumaBindingAndTorch, ChooseTheSameCores) {
  if (!python_has("torch.numa.binding")) GTEST_SKIP() << "no torch in Python";
  FakeHost host;
  // PyTorch reads no node that is not present.
  host.write("node/possible", "0-3");
  const std::vector<int> nodes{0, 0, 1, 3, 3, 0};
  std::vector<std::string> gpus;
  for (const int node : nodes) gpus.push_back(host.add_gpu(node));
  auto allowed = FakeHost::all_cores();
  std::erase_if(allowed, [](int core) { return core == 0 || core == 21; });
  std::string ours;
  const std::vector<std::pair<const char*, NumaBinding>> modes{
      {"node", NumaBinding::kNode},
      {"socket", NumaBinding::kSocket},
      {"exclusive", NumaBinding::kExclusive},
      {"core-complex", NumaBinding::kCoreComplex}};
  for (const auto& [name, mode] : modes) {
    const auto bound = bind_to_numa(mode, static_cast<int>(gpus.size()), gpus,
                                    allowed, host.root());
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      ours += fmt::format("{} {} {}\n", name, rank,
                          fmt::join(bound.per_worker[rank], ","));
    }
  }
  const TemporaryFolder folder;
  const std::string script = folder.path("ask.py");
  write_text(script, kAskTorch);
  EXPECT_EQ(run_python_file(
                script, {host.root(), fmt::format("{}", fmt::join(nodes, ",")),
                         fmt::format("{}", fmt::join(allowed, ","))}),
            ours);
}

}  // namespace
}  // namespace lockstep::launch
