// Compares --numa-binding with torch/numa/binding.py on the same host.
// Tier: nightly. It loads PyTorch.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "lockstep/cli/start/numa_binding.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/numa_host.h"

namespace lockstep::cli {
namespace {

// Prints a line for each mode and GPU: "node 0 1,2,3". PyTorch reads the files
// of a host like NumaHost.
constexpr const char* kAskTorch = R"(
import io, os, re, sys, types
from torch.numa import binding

nodes = [int(n) for n in sys.argv[1].split(",")]
allowed = {int(c) for c in sys.argv[2].split(",")}

def content(path):
    if path.endswith("node/possible"):
        return "0-3"
    number = int(re.search(r"(?:node|cpu)(\d+)/", path)[1])
    first = {"cpulist": 4 * number, "thread_siblings_list": number % 16,
             "shared_cpu_list": number % 16 // 2 * 2}
    count = {"cpulist": 4, "thread_siblings_list": 1, "shared_cpu_list": 2}
    name = os.path.basename(path)
    if name in first:
        a, b = first[name], first[name] + count[name] - 1
        return f"{a}-{b},{a + 16}-{b + 16}"
    return {"physical_package_id": str(number % 16 // 8), "type": "Unified",
            "level": "3"}[name]

binding.open = lambda path: io.StringIO(content(path))
binding.os = types.SimpleNamespace(listdir=lambda path: ["index3"],
                                   path=os.path)
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
  NumaHost host;
  const std::vector<int> nodes{0, 0, 1, 3, 3, 0};
  std::vector<std::string> gpus;
  for (const int node : nodes) gpus.push_back(host.add_gpu(node));
  auto allowed = NumaHost::all_cores();
  std::erase_if(allowed, [](int core) {
    return core == 0 || core == 21 || core == 12 || core == 28;
  });
  std::string ours;
  for (const char* mode : {"node", "socket", "exclusive", "core-complex"}) {
    const auto bound =
        bind_to_numa(mode, static_cast<int>(gpus.size()), gpus, allowed);
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      ours +=
          fmt::format("{} {} {}\n", mode, rank, fmt::join(bound[rank], ","));
    }
  }
  const TemporaryFolder folder;
  const std::string script = folder.path("ask.py");
  write_text(script, kAskTorch);
  EXPECT_EQ(
      run_python_file(script, {fmt::format("{}", fmt::join(nodes, ",")),
                               fmt::format("{}", fmt::join(allowed, ","))}),
      ours);
}

}  // namespace
}  // namespace lockstep::cli
