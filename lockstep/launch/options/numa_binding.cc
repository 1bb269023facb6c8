#include "lockstep/launch/options/numa_binding.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using Cores = std::vector<int>;

// No kernel has more cores or nodes, so a larger number is damaged.
constexpr int kMaxCores = 1 << 20;

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw LaunchError(
      {.code = ErrorCode::kNoSuchDevice,
       .what = "can't bind the workers to cores: " + what,
       .expected = expected,
       .got = got,
       .fix = "leave out --numa-binding; --pin-cores on divides the cores "
              "equally instead"});
}

// Returns the content of a file in /sys without the newline at its end.
std::string read(const fs::path& path) {
  const RegularFile file = open_regular_file(path.string());
  std::array<char, 4096> text{};
  const ssize_t size = ::pread(file.descriptor.get(), text.data(), 4096, 0);
  std::string result(text.data(),
                     static_cast<size_t>(std::max<ssize_t>(size, 0)));
  result.erase(result.find_last_not_of(" \t\n") + 1);
  return result;
}

int read_number(const fs::path& path) {
  const std::string text = read(path);
  const auto value = parse_number<int>(text);
  if (value && *value >= -1 && *value < kMaxCores) return *value;
  refuse(path.string() + " is damaged", "a number",
         "'" + printable(text, 100) + "'");
}

// Parses "0-2,4".
Cores parse_core_list(const std::string& text, const std::string& path) {
  Cores cores;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const auto first = parse_number<int>(part.substr(0, dash));
    const auto last = dash == std::string::npos
                          ? first
                          : parse_number<int>(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *first > *last || *last >= kMaxCores ||
        cores.size() > static_cast<size_t>(kMaxCores)) {
      refuse(path + " is damaged", "numbers and ranges such as 0-2,4",
             "'" + printable(text, 100) + "'");
    }
    for (int core = *first; core <= *last; ++core) cores.push_back(core);
  }
  std::ranges::sort(cores);
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

Cores read_list(const fs::path& path) {
  return parse_core_list(read(path), path.string());
}

Cores common(const Cores& a, const Cores& b) {
  Cores result;
  std::ranges::set_intersection(a, b, std::back_inserter(result));
  return result;
}

/// The parts of /sys that say which cores belong together.
class Host {
 public:
  Host(const fs::path& root, const Cores& allowed)
      : system_(root / "sys/devices/system"),
        pci_(root / "sys/bus/pci/devices"),
        allowed_(allowed) {
    std::ranges::sort(allowed_);
    const fs::path nodes = system_ / "node";
    // A kernel without NUMA has one node, and no folder for it.
    if (!fs::exists(nodes)) {
      cores_of_node_[0] = allowed_;
      return;
    }
    for (const int node : read_list(nodes / "possible")) {
      const fs::path list = nodes / fmt::format("node{}", node) / "cpulist";
      if (!fs::exists(list)) continue;  // possible, but not present
      Cores cores = common(read_list(list), allowed_);
      if (!cores.empty()) cores_of_node_[node] = std::move(cores);
    }
  }

  // Returns the nodes that have allowed cores.
  Cores nodes() const {
    Cores nodes;
    for (const auto& [node, cores] : cores_of_node_) nodes.push_back(node);
    return nodes;
  }

  int node_of_gpu(const std::string& address) const {
    // -1 is common on hosts with a single node.
    return std::max(0, read_number(pci_ / address / "numa_node"));
  }

  const Cores& cores_of_node(int node) const {
    const auto found = cores_of_node_.find(node);
    if (found != cores_of_node_.end()) return found->second;
    refuse(fmt::format("NUMA node {} has no core that may be used", node),
           fmt::format("cores of the nodes {}", fmt::join(nodes(), ", ")),
           fmt::format("node {}", node));
  }

  Cores cores_of_socket(int node) const {
    const int socket = socket_of(cores_of_node(node).front());
    Cores result;
    for (const auto& [other, cores] : cores_of_node_) {
      if (socket_of(cores.front()) != socket) continue;
      result.insert(result.end(), cores.begin(), cores.end());
    }
    std::ranges::sort(result);
    return result;
  }

  // Returns the logical cores of a node, grouped by physical core.
  std::vector<Cores> physical_cores(int node) const {
    return grouped(node, [this](int core) {
      return read_list(cpu(core) / "topology/thread_siblings_list");
    });
  }

  // Returns the cores of a node, grouped by last-level cache. The groups with
  // the most cores come first.
  std::vector<Cores> core_complexes(int node) const {
    auto groups =
        grouped(node, [this](int core) { return sharing_last_cache(core); });
    std::ranges::stable_sort(groups, [](const Cores& a, const Cores& b) {
      return a.size() > b.size();
    });
    return groups;
  }

 private:
  fs::path cpu(int core) const {
    return system_ / "cpu" / fmt::format("cpu{}", core);
  }

  int socket_of(int core) const {
    return read_number(cpu(core) / "topology/physical_package_id");
  }

  // Groups the cores of a node by the first core of what `belonging(core)`
  // returns. The groups are in the order of that core.
  template <class Belonging>
  std::vector<Cores> grouped(int node, Belonging belonging) const {
    std::map<int, Cores> groups;
    for (const int core : cores_of_node(node)) {
      const Cores together = belonging(core);
      groups[together.empty() ? core : together.front()].push_back(core);
    }
    std::vector<Cores> result;
    for (auto& [first, cores] : groups) result.push_back(std::move(cores));
    return result;
  }

  Cores sharing_last_cache(int core) const {
    int highest = -1;
    Cores sharing;
    for (const auto& entry : fs::directory_iterator(cpu(core) / "cache")) {
      if (!entry.path().filename().string().starts_with("index")) continue;
      const std::string type = read(entry.path() / "type");
      if (type != "Unified" && type != "Data") continue;
      const int level = read_number(entry.path() / "level");
      if (level <= highest) continue;
      highest = level;
      sharing = read_list(entry.path() / "shared_cpu_list");
    }
    return sharing;
  }

  fs::path system_;
  fs::path pci_;
  Cores allowed_;
  std::map<int, Cores> cores_of_node_;
};

// Returns the NUMA node of each GPU, or of each worker if there are no GPUs.
Cores places_on(const Host& host, int workers,
                const std::vector<std::string>& gpus) {
  Cores places;
  for (const auto& address : gpus) places.push_back(host.node_of_gpu(address));
  if (!gpus.empty()) return places;
  const Cores nodes = host.nodes();
  if (nodes.empty()) {
    refuse("no NUMA node has a core that may be used", "a node with cores",
           "none");
  }
  for (size_t rank = 0; rank < static_cast<size_t>(workers); ++rank) {
    places.push_back(nodes[rank * nodes.size() / static_cast<size_t>(workers)]);
  }
  return places;
}

// Returns part `index` of `count` parts of the physical cores. The first parts
// have one core more if the cores can't be divided equally.
Cores exclusive_part(const std::vector<Cores>& physical, size_t index,
                     size_t count, int node) {
  const size_t width = physical.size() / count;
  if (width == 0) {
    refuse(fmt::format("NUMA node {} has too few cores for --numa-binding "
                       "exclusive",
                       node),
           fmt::format("at least {} physical cores", count),
           fmt::format("{}", physical.size()));
  }
  const size_t longer = physical.size() % count;
  const size_t begin = index * width + std::min(index, longer);
  const size_t end = begin + width + (index < longer ? 1 : 0);
  Cores cores;
  for (size_t k = begin; k < end; ++k) {
    cores.insert(cores.end(), physical[k].begin(), physical[k].end());
  }
  std::ranges::sort(cores);
  return cores;
}

Cores cores_near(const Host& host, NumaBinding binding, const Cores& places,
                 size_t rank) {
  const int node = places[rank];
  // The position among the GPUs of this node.
  const auto index = static_cast<size_t>(
      std::count(places.begin(),
                 places.begin() + static_cast<std::ptrdiff_t>(rank), node));
  const auto count =
      static_cast<size_t>(std::count(places.begin(), places.end(), node));
  switch (binding) {
    case NumaBinding::kNode:
      break;
    case NumaBinding::kSocket:
      return host.cores_of_socket(node);
    case NumaBinding::kExclusive:
      return exclusive_part(host.physical_cores(node), index, count, node);
    case NumaBinding::kCoreComplex: {
      const auto complexes = host.core_complexes(node);
      return complexes[index % complexes.size()];
    }
  }
  return host.cores_of_node(node);
}

}  // namespace

size_t BoundCores::share(int local_rank) const {
  const Cores& own = per_worker[static_cast<size_t>(local_rank)];
  const auto sharing = std::count(per_worker.begin(), per_worker.end(), own);
  return std::max<size_t>(1, own.size() / static_cast<size_t>(sharing));
}

std::vector<int> BoundCores::by_share() const {
  size_t width = kMaxCores;
  for (const Cores& cores : per_worker) {
    const auto sharing =
        std::count(per_worker.begin(), per_worker.end(), cores);
    width = std::min(width, cores.size() / static_cast<size_t>(sharing));
  }
  // Workers that have the same cores take them in turn.
  std::map<Cores, size_t> taken;
  Cores order;
  for (const Cores& cores : per_worker) {
    const auto begin =
        cores.begin() + static_cast<std::ptrdiff_t>(taken[cores] * width);
    order.insert(order.end(), begin,
                 begin + static_cast<std::ptrdiff_t>(width));
    ++taken[cores];
  }
  std::set<int> left_over;
  for (const Cores& cores : per_worker) {
    left_over.insert(cores.begin(), cores.end());
  }
  for (const int core : order) left_over.erase(core);
  order.insert(order.end(), left_over.begin(), left_over.end());
  // The cores that are left over must not make the shares larger.
  const bool fits = width > 0 && order.size() / per_worker.size() == width;
  return fits ? order : Cores();
}

BoundCores bind_to_numa(NumaBinding binding, int workers,
                        const std::vector<std::string>& gpus,
                        const std::vector<int>& allowed, const fs::path& root) {
  if (!gpus.empty() && gpus.size() < static_cast<size_t>(workers)) {
    refuse("there are fewer GPUs than workers",
           fmt::format("a GPU for each of {} workers", workers),
           fmt::format("{}", gpus.size()));
  }
  try {
    const Host host(root, allowed);
    const Cores places = places_on(host, workers, gpus);
    BoundCores bound;
    for (size_t rank = 0; rank < static_cast<size_t>(workers); ++rank) {
      bound.per_worker.push_back(cores_near(host, binding, places, rank));
    }
    return bound;
  } catch (const IoError& error) {
    refuse("the kernel does not say which cores belong together",
           "readable files in /sys", lockstep::text_of(error));
  } catch (const fs::filesystem_error& error) {
    refuse("the kernel does not say which cores belong together",
           "readable files in /sys", lockstep::text_of(error));
  }
}

}  // namespace lockstep::launch
