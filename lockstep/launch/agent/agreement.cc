#include "lockstep/launch/agent/agreement.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::launch {
namespace {

// The deciding agent first waits for the reports of nodes that may be lost, for
// up to keep_alive_s more.
constexpr double kDecisionTimeoutS = 60;

std::string report_key(int node_rank) {
  return fmt::format("report/{}", node_rank);
}

std::string leaving_key(int node_rank) {
  return fmt::format("leaving/{}", node_rank);
}

}  // namespace

SharedEnd share_failures(Rendezvous& rendezvous, const Notice& notice,
                         std::vector<Failure> own_failures, double timeout_s) {
  const auto nodes = static_cast<int>(rendezvous.group.nodes.size());
  const int self = rendezvous.group.node_rank;
  SharedEnd end{.notice = notice, .failures = std::move(own_failures)};
  try {
    end.notice =
        notice_from_text(rendezvous.store.claim("failed", to_text(notice)));
    rendezvous.store.set(report_key(self), to_json(end.failures).dump());
    end.staying = {self};
    bool is_complete = true;
    const Stopwatch watch;
    for (int node = 0; node < nodes; ++node) {
      if (node == self) continue;
      // Does not wait for a node that is gone.
      const auto report = rendezvous.store.get_unless(
          rendezvous.gone_key(node), report_key(node),
          node == end.notice.lost_node ? 0 : timeout_s - watch.seconds());
      for (auto& failure : failures_from_json(report.value_or("[]"))) {
        end.failures.push_back(std::move(failure));
      }
      is_complete = is_complete && report.has_value();
      if (report && !rendezvous.store.get(leaving_key(node))) {
        end.staying.push_back(node);
      }
    }
    end.is_complete = is_complete;
  } catch (const LaunchError& error) {
    log_debug("launch", text_of(error));  // use the reports so far
  }
  return end;
}

void announce_leaving(Rendezvous& rendezvous) {
  try {
    rendezvous.store.set(leaving_key(rendezvous.group.node_rank), "1");
  } catch (const LaunchError& error) {
    log_debug("launch", text_of(error));
  }
}

Decision decide_together(Rendezvous& rendezvous, const Decision& own_decision,
                         bool is_elastic) {
  if (rendezvous.group.nodes.size() == 1) return own_decision;
  try {
    if (is_elastic && !rendezvous.serves_store) {
      const auto decision = rendezvous.store.get(
          "decision", kDecisionTimeoutS + rendezvous.store.keep_alive_s());
      return decision ? decision_from_text(*decision) : Decision();
    }
    return decision_from_text(
        rendezvous.store.claim("decision", to_text(own_decision)));
  } catch (const LaunchError& error) {
    log_debug("launch", text_of(error));
    return {};
  }
}

void leave(Rendezvous& rendezvous, int lost_node) {
  const auto key = [](int node) { return fmt::format("left/{}", node); };
  const auto nodes = static_cast<int>(rendezvous.group.nodes.size());
  try {
    rendezvous.store.set(key(rendezvous.group.node_rank), "1");
    if (!rendezvous.serves_store) return;
    const Stopwatch watch;
    for (int node = 0; node < nodes; ++node) {
      if (node == lost_node) continue;
      rendezvous.store.get_unless(
          rendezvous.gone_key(node), key(node),
          rendezvous.store.keep_alive_s() - watch.seconds());
    }
  } catch (const LaunchError& error) {
    log_debug("launch", text_of(error));
  }
}

}  // namespace lockstep::launch
