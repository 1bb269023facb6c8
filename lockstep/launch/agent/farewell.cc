#include "lockstep/launch/agent/farewell.h"

#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

constexpr double kLeavePatienceS = 5;
// It waits for the reports of nodes that may be lost.
constexpr double kDecisionPatienceS = 60;

std::string report_key(int node_rank) {
  return fmt::format("report/{}", node_rank);
}

std::string leaving_key(int node_rank) {
  return fmt::format("leaving/{}", node_rank);
}

}  // namespace

SharedEnd share_failures(Meeting& meeting, const Notice& notice,
                         std::vector<Failure> own, double patience_s) {
  const auto nodes = static_cast<int>(meeting.group.nodes.size());
  const int self = meeting.group.node_rank;
  SharedEnd end{.notice = notice, .failures = std::move(own)};
  try {
    end.notice =
        notice_from_text(meeting.store.claim("failed", to_text(notice)));
    meeting.store.set(report_key(self), to_json(end.failures).dump());
    end.staying = {self};
    bool is_complete = true;
    const Stopwatch watch;
    for (int node = 0; node < nodes; ++node) {
      if (node == self) continue;
      // Not waited for if the node is gone.
      const auto report = meeting.store.get_unless(
          meeting.gone_key(node), report_key(node),
          node == end.notice.lost_node ? 0 : patience_s - watch.seconds());
      for (auto& failure : failures_from_json(report.value_or("[]"))) {
        end.failures.push_back(std::move(failure));
      }
      is_complete = is_complete && report.has_value();
      if (report && !meeting.store.get(leaving_key(node))) {
        end.staying.push_back(node);
      }
    }
    end.is_complete = is_complete;
  } catch (const LaunchError& error) {
    log_debug("launch", error.what());  // what we have is what can be said
  }
  return end;
}

void tell_leaving(Meeting& meeting) {
  try {
    meeting.store.set(leaving_key(meeting.group.node_rank), "1");
  } catch (const LaunchError& error) {
    log_debug("launch", error.what());
  }
}

Decision decide_together(Meeting& meeting, const Decision& own,
                         bool is_elastic) {
  if (meeting.group.nodes.size() == 1) return own;
  try {
    if (is_elastic && !meeting.serves_store) {
      const auto decision = meeting.store.get("decision", kDecisionPatienceS);
      return decision ? decision_from_text(*decision) : Decision();
    }
    return decision_from_text(meeting.store.claim("decision", to_text(own)));
  } catch (const LaunchError& error) {
    log_debug("launch", error.what());
    return {};
  }
}

void leave(Meeting& meeting, int lost_node) {
  const auto key = [](int node) { return fmt::format("left/{}", node); };
  const auto nodes = static_cast<int>(meeting.group.nodes.size());
  try {
    meeting.store.set(key(meeting.group.node_rank), "1");
    if (!meeting.serves_store) return;
    std::vector<std::string> all;
    for (int node = 0; node < nodes; ++node) {
      if (node != lost_node) all.push_back(key(node));
    }
    meeting.store.has_all(all, kLeavePatienceS);
  } catch (const LaunchError& error) {
    log_debug("launch", error.what());
  }
}

}  // namespace lockstep::launch
