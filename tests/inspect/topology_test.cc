#include "lockstep/inspect/topology.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/inspect/device_topology.h"
#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/nvml.h"
#include "lockstep/inspect/recorded_topology.h"
#include "tests/base/damaged_json.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::inspect {
namespace {

// Reports the GPUs in another order than CUDA: GPU-7 first.
const std::string kFakeNvml = LOCKSTEP_BINARY_DIR "/tests/libfake_nvml.so";
const std::string kRecorded = LOCKSTEP_SOURCE_DIR "/examples/topologies/";

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> cells(const Topology& topology) {
  std::vector<std::string> texts;
  for (const auto& row : topology.connections) {
    for (const Connection& cell : row) texts.push_back(cell.text());
  }
  return texts;
}

TEST(Topology, OfEightGpusIsReproducedToTheCharacter) {
  const std::string path = kRecorded + "eight_gpus_nvlink_pairs.txt";
  EXPECT_EQ(render_matrix(read_topology(path)), text_of(path));
}

// The format that drivers write today: with network cards, affinity, blanks and
// escapes.
TEST(Topology, OfAMachineWithASwitchAndCardsIsRead) {
  const Topology topology = read_topology(kRecorded + "four_gpus_switch.txt");
  ASSERT_EQ(topology.devices.size(), 4U);
  EXPECT_EQ(topology.devices[3].cpu_affinity, "56-111,168-223");
  EXPECT_EQ(topology.devices[3].numa_affinity, "1");
  EXPECT_EQ(topology.connections[0][3].text(), "NV18");
  EXPECT_EQ(render_matrix(topology),
            "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
            "GPU0\tX\tNV18\tNV18\tNV18\t0-55,112-167\t0\n"
            "GPU1\tNV18\tX\tNV18\tNV18\t0-55,112-167\t0\n"
            "GPU2\tNV18\tNV18\tX\tNV18\t56-111,168-223\t1\n"
            "GPU3\tNV18\tNV18\tNV18\tX\t56-111,168-223\t1\n");
}

TEST(Topology, OfAPcieBoxIsRead) {
  const Topology topology = read_topology(kRecorded + "four_gpus_pcie.txt");
  EXPECT_EQ(topology.connections[0][1].text(), "PIX");
  EXPECT_EQ(topology.connections[0][2].text(), "PXB");
  EXPECT_EQ(topology.connections[1][3].text(), "PHB");
}

TEST(Topology, GoesThroughJsonUnchanged) {
  for (const char* name : {"eight_gpus_nvlink_pairs.txt",
                           "four_gpus_switch.txt", "four_gpus_pcie.txt"}) {
    const Topology topology = read_topology(kRecorded + name);
    const Topology again = parse_topology(to_json(topology).dump());
    EXPECT_EQ(render_matrix(again), render_matrix(topology)) << name;
  }
}

TEST(Topology, NamesNoLibraryIfItsJsonIsDamaged) {
  expect_own_errors(
      to_json(read_topology(kRecorded + "four_gpus_pcie.txt")),
      [](const nlohmann::json& json) { parse_topology(json.dump()); });
}

TEST(Topology, HasALegendOfWhatIsInIt) {
  const std::string legend =
      render_legend(read_topology(kRecorded + "four_gpus_pcie.txt"));
  for (const char* cell : {"X ", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#"}) {
    EXPECT_NE(legend.find(std::string("\n  ") + cell), std::string::npos)
        << cell;
  }
  EXPECT_EQ(legend.find("L3"), std::string::npos);
}

TEST(Topology, HasNoLegendOfGpusForOneCpu) {
  const Topology host{.devices = {{.name = "cpu:0",
                                   .cpu_affinity = "0-1",
                                   .numa_affinity = "0"}},
                      .connections = {{{ConnectionKind::kSelf}}}};
  EXPECT_EQ(render_legend(host), "Legend:\n\n  X    = the device itself\n");
}

TEST(Topology, IsAGraph) {
  const std::string dot =
      to_dot(read_topology(kRecorded + "eight_gpus_nvlink_pairs.txt"));
  EXPECT_NE(dot.find("\"GPU0\" -- \"GPU1\" [label = \"NV4\""),
            std::string::npos);
  EXPECT_EQ(dot.find("\"GPU1\" -- \"GPU0\""), std::string::npos);
}

TEST(Topology, ThatContradictsItselfIsRefused) {
  for (const char* text :
       {"", "nothing of the kind", "\tGPU0\tGPU1\nGPU0\tX\tNV4\n",
        "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tSYS\tX\n",
        "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU2\tNV4\tX\n",
        "\tGPU0\tGPU1\nGPU0\tX\nGPU1\tNV4\tX\n",
        "\tGPU0\tGPU1\nGPU0\tX\tNV99999\nGPU1\tNV99999\tX\n",
        "\tGPU0\nGPU0\tSYS\n", "{}", "{\"format\": \"lockstep-topology\"}",
        R"({"format": "lockstep-topology", "devices": [{"name": "GPU0"}],
            "connections": []})",
        R"({"format": "lockstep-topology", "devices": [{"name": 5}],
            "connections": [["X"]]})"}) {
    EXPECT_EQ(error_code_of([&] { parse_topology(text); }),
              ErrorCode::kMalformedData)
        << text;
  }
}

TEST(HostTopology, IsWhatTheCoresOfSlicesShare) {
  // Two sockets, each with two L3 caches over two cores with an L2 and two
  // threads each.
  const std::string host = "numa:2 l3:2 l2:2 core:1 pu:2";
  EXPECT_EQ(cells(synthetic_topology(host, {{0}, {1}, {2}, {4}, {8}})),
            (std::vector<std::string>{"X",    "CORE", "L3",   "NODE", "SYS",  //
                                      "CORE", "X",    "L3",   "NODE", "SYS",  //
                                      "L3",   "L3",   "X",    "NODE", "SYS",  //
                                      "NODE", "NODE", "NODE", "X",    "SYS",  //
                                      "SYS",  "SYS",  "SYS",  "SYS",  "X"}));
  // Two cores on one L2, and slices of several cores.
  EXPECT_EQ(cells(synthetic_topology("l2:2 core:2 pu:1", {{0}, {1}})),
            (std::vector<std::string>{"X", "L2", "L2", "X"}));
  const Topology topology =
      synthetic_topology(host, {{0, 1, 2, 3}, {8, 9, 10, 11}});
  EXPECT_EQ(topology.connections[0][1].text(), "SYS");
  EXPECT_EQ(topology.devices[1].cpu_affinity, "8-11");
  EXPECT_EQ(topology.devices[1].numa_affinity, "1");
  EXPECT_EQ(error_code_of([] { synthetic_topology("core:x", {{0}}); }),
            ErrorCode::kMalformedData);
}

TEST(HostTopology, OfThisHostIsThere) {
  const auto slices = devices("cpu");
  const Topology topology = device_topology(slices);
  ASSERT_EQ(topology.devices.size(), 1U);
  EXPECT_EQ(topology.connections[0][0].text(), "X");
  EXPECT_FALSE(topology.devices[0].cpu_affinity.empty());
}

TEST(GpuTopology, IsThatOfNvmlByUuid) {
  std::vector<std::string> uuids;
  for (int i = 0; i < 8; ++i) uuids.push_back("GPU-" + std::to_string(i));
  const TemporaryFolder root;
  const std::filesystem::path gpu =
      root.path("sys/bus/pci/devices/0000:a5:00.0");
  std::filesystem::create_directories(gpu);
  std::ofstream(gpu / "numa_node") << "1\n";

  const auto found = nvml_topology(uuids, kFakeNvml, root.path());
  ASSERT_TRUE(found);
  Topology topology = *found;
  EXPECT_EQ(topology.devices[5].cpu_affinity, "32-63");
  EXPECT_EQ(topology.devices[5].numa_affinity, "1");
  EXPECT_EQ(topology.devices[0].numa_affinity, "");
  for (auto& device : topology.devices) {
    device.cpu_affinity.clear();
    device.numa_affinity.clear();
  }
  EXPECT_EQ(render_matrix(topology),
            text_of(kRecorded + "eight_gpus_nvlink_pairs.txt"));
  // The GPUs of CUDA_VISIBLE_DEVICES=5,6.
  EXPECT_EQ(cells(*nvml_topology({"GPU-5", "GPU-6"}, kFakeNvml)),
            (std::vector<std::string>{"X", "NODE", "NODE", "X"}));
  EXPECT_EQ(error_code_of([] { nvml_topology({"GPU-9"}, kFakeNvml); }),
            ErrorCode::kNoSuchDevice);
}

TEST(GpuTopology, CountsTheLinksToASwitch) {
  ::setenv("LOCKSTEP_FAKE_NVML", "switch", 1);
  const auto topology = nvml_topology({"GPU-0", "GPU-3"}, kFakeNvml);
  ASSERT_TRUE(topology);
  EXPECT_EQ(cells(*topology),
            (std::vector<std::string>{"X", "NV18", "NV18", "X"}));
  ::unsetenv("LOCKSTEP_FAKE_NVML");
}

TEST(GpuTopology, NeedsALibrary) {
  EXPECT_FALSE(nvml_topology({}, "libno-such-nvml.so.1"));
  EXPECT_FALSE(nvml_topology({}, "libm.so.6"));  // without NVML's functions
}

TEST(LinkSpeed, IsMeasuredInBothDirections) {
  const auto slices =
      devices("2xcpu", Duplicates::kRefuse, Oversubscription::kAllow);
  const auto speeds =
      measure_links(links_between(slices), {.bytes = 1 << 20, .copies = 3});
  ASSERT_EQ(speeds.size(), 2U);
  for (const LinkSpeed& speed : speeds) {
    EXPECT_GT(speed.bytes_per_s, 0);
    EXPECT_GT(speed.both_bytes_per_s, 0);
    EXPECT_GT(speed.staged_bytes_per_s, 0);
    EXPECT_GT(speed.latency_s, 0);
  }
}

TEST(LinkSpeed, ShowsWhichDevicesReachEachOther) {
  const std::vector<Device> devices = {
      {c10::kXPU, 0, 0}, {c10::kXPU, 1, 0}, {c10::kXPU, 2, 0}};
  Topology topology = device_topology(devices);
  EXPECT_EQ(render_matrix(topology),
            "\txpu:0\txpu:1\txpu:2\nxpu:0\tX\tN/A\tN/A\n"
            "xpu:1\tN/A\tX\tN/A\nxpu:2\tN/A\tN/A\tX\n");
  std::vector<LinkSpeed> speeds;
  for (const Link& link : links_between(devices)) {
    // Between the first and the second, and from the third to the first.
    const bool is_direct = link.from.index + link.to.index == 1 ||
                           (link.from.index == 2 && link.to.index == 0);
    if (link.from.index == 1 && link.to.index == 2) continue;
    speeds.push_back({.link = link,
                      .bytes_per_s = is_direct ? 20e9 : 6e9,
                      .staged_bytes_per_s = 5e9});
  }
  add_measured_connections(topology, speeds);
  EXPECT_EQ(render_matrix(topology),
            "\txpu:0\txpu:1\txpu:2\nxpu:0\tX\tP2P\tHOST\n"
            "xpu:1\tP2P\tX\tN/A\nxpu:2\tHOST\tN/A\tX\n");
  EXPECT_EQ(parse_connection("P2P").kind, ConnectionKind::kPeer);
  const std::string legend = render_legend(topology);
  EXPECT_NE(legend.find("P2P"), std::string::npos) << legend;
  EXPECT_EQ(legend.find("NVLink"), std::string::npos) << legend;
}

}  // namespace
}  // namespace lockstep::inspect
