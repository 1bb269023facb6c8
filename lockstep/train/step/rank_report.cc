#include "lockstep/train/step/rank_report.h"

#include <array>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::train {
namespace {

constexpr std::array kPhases{&PhaseReport::scatter,  &PhaseReport::replicate,
                             &PhaseReport::forward,  &PhaseReport::gather,
                             &PhaseReport::backward, &PhaseReport::reduce,
                             &PhaseReport::update};

nlohmann::json to_json(const RankReport& report) {
  nlohmann::json json{{"pid", report.pid},
                      {"sent_bytes", report.sent_bytes},
                      {"peak_flops_per_s", report.peak_flops_per_s},
                      {"host_memory_bytes", report.host_memory_bytes}};
  for (const auto& device : report.devices) {
    json["devices"].push_back(
        {{"name", device.name},
         {"samples", device.samples},
         {"busy_fraction", device.busy_fraction},
         {"memory_peak_bytes", device.memory_peak_bytes},
         {"gradient_copy_bytes", device.gradient_copy_bytes}});
  }
  for (const auto phase : kPhases) {
    json["phases"].push_back(report.phases_s.*phase);
  }
  return json;
}

RankReport from_json(const nlohmann::json& json) {
  RankReport report;
  report.pid = json.at("pid");
  report.sent_bytes = json.at("sent_bytes");
  report.peak_flops_per_s = json.at("peak_flops_per_s");
  report.host_memory_bytes = json.at("host_memory_bytes");
  for (const auto& device : json.at("devices")) {
    report.devices.push_back(
        {.name = device.at("name"),
         .samples = device.at("samples"),
         .busy_fraction = device.at("busy_fraction"),
         .memory_peak_bytes = device.at("memory_peak_bytes"),
         .gradient_copy_bytes = device.at("gradient_copy_bytes")});
  }
  for (size_t i = 0; i < kPhases.size(); ++i) {
    report.phases_s.*kPhases[i] = json.at("phases").at(i);
  }
  return report;
}

}  // namespace

std::vector<RankReport> gather_reports(const World& world,
                                       const RankReport& own) {
  std::vector<RankReport> reports;
  for (const auto& text : world.all_gather_text(to_json(own).dump())) {
    try {
      reports.push_back(from_json(parse_json(text)));
    } catch (const nlohmann::json::exception& error) {
      throw TrainError({.code = ErrorCode::kMalformedReport,
                        .what = "a rank's report can't be read",
                        .got = lockstep::text_of(error),
                        .fix = "run the same build of Lockstep on every rank"});
    }
  }
  return reports;
}

}  // namespace lockstep::train
