#include "lockstep/inspect/recorded_topology.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"

namespace lockstep::inspect {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxDevices = 1024;
constexpr const char* kFormat = "lockstep-topology";

[[noreturn]] void fail(const std::string& what, const std::string& expected,
                       const std::string& got) {
  throw InvalidArgument(
      "topo", {.code = ErrorCode::kMalformedData,
               .what = what,
               .expected = expected,
               .got = got.substr(0, 80),
               .fix = "give the output of `nvidia-smi topo -m`, or of "
                      "`lockstep topo --json`"});
}

// Splits a line into cells. They are separated by tabs. nvidia-smi also pads
// them with blanks, and terminals turn tabs into blanks. "CPU Affinity" is one
// cell.
std::vector<std::string> cells_of(const std::string& line) {
  const bool has_tabs = line.find('\t') != std::string::npos;
  std::vector<std::string> cells;
  if (!has_tabs) {
    std::istringstream words(line);
    for (std::string word; words >> word;) cells.push_back(word);
    return cells;
  }
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    std::string cell = line.substr(begin, end - begin);
    cell.erase(0, cell.find_first_not_of(" \r"));
    cell.erase(cell.find_last_not_of(" \r") + 1);
    cells.push_back(std::move(cell));
    begin = end + 1;
  }
  if (!cells.empty() && cells.front().empty()) cells.erase(cells.begin());
  return cells;
}

// Removes escape sequences for terminals: nvidia-smi underlines its header.
std::string without_escapes(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\033') {
      plain += text[i];
      continue;
    }
    while (i < text.size() && text[i] != 'm') ++i;
  }
  return plain;
}

// Returns true for "GPU0", "cpu:1" and "xpu:1", but not for "GPU NUMA ID",
// which is a column after the matrix.
bool is_device(const std::string& name) {
  const size_t colon = name.find(':');
  const size_t kind = colon != std::string::npos ? colon + 1
                      : name.starts_with("GPU")  ? 3
                                                 : name.size();
  return kind < name.size() &&
         std::all_of(name.begin() + static_cast<ptrdiff_t>(kind), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

void check(const Topology& topology) {
  const size_t count = topology.devices.size();
  if (count == 0) fail("there is no matrix in it", "a line of devices", "none");
  for (size_t i = 0; i < count; ++i) {
    if (topology.connections[i].size() != count) {
      fail(fmt::format("the row of {} is of another length",
                       topology.devices[i].name),
           counted(static_cast<int64_t>(count), "cell"),
           fmt::format("{}", topology.connections[i].size()));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      const Connection& cell = topology.connections[i][j];
      const bool is_self = cell.kind == ConnectionKind::kSelf;
      if (is_self == (i == j) && cell == topology.connections[j][i]) continue;
      fail(fmt::format("the matrix contradicts itself at {} and {}",
                       topology.devices[i].name, topology.devices[j].name),
           "X on the diagonal alone, and the same in both directions",
           cell.text());
    }
  }
}

Topology parse_matrix(const std::string& text) {
  Topology topology;
  std::istringstream lines(text);
  std::vector<std::string> header;
  std::string line;
  while (header.empty() && std::getline(lines, line)) {
    const auto cells = cells_of(line);
    if (!cells.empty() && is_device(cells.front())) header = cells;
  }
  std::vector<size_t> columns;
  for (size_t i = 0; i < header.size(); ++i) {
    if (is_device(header[i])) columns.push_back(i);
  }
  if (columns.size() > kMaxDevices) {
    fail("there are too many devices", fmt::format("at most {}", kMaxDevices),
         fmt::format("{}", columns.size()));
  }
  const auto cell_named = [&](const std::vector<std::string>& cells,
                              const char* name) {
    const auto found = std::ranges::find(header, name);
    const auto at = static_cast<size_t>(found - header.begin()) + 1;
    return found != header.end() && at < cells.size() ? cells[at] : "";
  };
  while (topology.devices.size() < columns.size() &&
         std::getline(lines, line)) {
    const auto cells = cells_of(line);
    if (cells.empty() || !is_device(cells.front())) continue;
    const std::string& expected = header[columns[topology.devices.size()]];
    if (cells.front() != expected) {
      fail("the rows are in another order than the columns", expected,
           cells.front());
    }
    std::vector<Connection> row;
    for (const size_t column : columns) {
      if (column + 1 < cells.size()) {
        row.push_back(parse_connection(cells[column + 1]));
      }
    }
    topology.connections.push_back(std::move(row));
    topology.devices.push_back(
        {.name = cells.front(),
         .cpu_affinity = cell_named(cells, "CPU Affinity"),
         .numa_affinity = cell_named(cells, "NUMA Affinity")});
  }
  if (topology.devices.size() != columns.size()) {
    fail("the matrix lacks rows", fmt::format("{}", columns.size()),
         fmt::format("{}", topology.devices.size()));
  }
  return topology;
}

Topology topology_of_json(const std::string& text) {
  Topology topology;
  try {
    const auto json = parse_json(text);
    if (json.at("format") != kFormat) {
      fail("this JSON is no topology", kFormat, json.at("format").dump());
    }
    for (const auto& device : json.at("devices")) {
      topology.devices.push_back(
          {.name = device.at("name"),
           .cpu_affinity = device.value("cpu_affinity", ""),
           .numa_affinity = device.value("numa_affinity", "")});
    }
    for (const auto& row : json.at("connections")) {
      auto& cells = topology.connections.emplace_back();
      for (const auto& cell : row) {
        cells.push_back(parse_connection(cell.get<std::string>()));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    fail("this JSON is no topology", "devices and connections", text_of(error));
  }
  if (topology.devices.size() > kMaxDevices ||
      topology.connections.size() != topology.devices.size()) {
    fail("the matrix has another number of rows than there are devices",
         fmt::format("{}", topology.devices.size()),
         fmt::format("{}", topology.connections.size()));
  }
  return topology;
}

}  // namespace

Topology parse_topology(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  Topology topology =
      is_json ? topology_of_json(text) : parse_matrix(without_escapes(text));
  check(topology);
  return topology;
}

Topology read_topology(const std::string& path) {
  return parse_topology(read_file(path, kMaxBytes));
}

nlohmann::ordered_json to_json(const Topology& topology) {
  nlohmann::ordered_json json = {{"format", kFormat}};
  json["devices"] = nlohmann::ordered_json::array();
  for (const auto& [name, cpu_affinity, numa_affinity] : topology.devices) {
    json["devices"].push_back({{"name", name},
                               {"cpu_affinity", cpu_affinity},
                               {"numa_affinity", numa_affinity}});
  }
  json["connections"] = nlohmann::ordered_json::array();
  for (const auto& row : topology.connections) {
    nlohmann::ordered_json cells = nlohmann::ordered_json::array();
    for (const Connection& cell : row) cells.push_back(cell.text());
    json["connections"].push_back(std::move(cells));
  }
  return json;
}

}  // namespace lockstep::inspect
