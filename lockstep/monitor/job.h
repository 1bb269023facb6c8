#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// What is remarkable about a rank.
enum class RankNote {
  kNone,
  kSlow,   ///< it computes so much longer than the others that they wait
  kStale,  ///< it has said nothing for longer than its steps take
  kLost,   ///< its process is gone
  kEnded,
};

/// "", "slow", "stale", "lost", "ended".
const char* to_string(RankNote note);

/// A job as its ranks' statuses show it.
struct Job {
  std::string name;  ///< fit to be shown: see printable_line()
  std::string folder;
  std::vector<RankStatus> ranks;  ///< by rank
  std::vector<RankNote> notes;    ///< of each rank
  double now = 0;                 ///< when this was seen, seconds since 1970

  /// Of rank 0, or of the first there is. There is one.
  const RankStatus& first() const { return ranks.front(); }
  /// Seconds to the last step; nothing before the first one.
  std::optional<double> seconds_left() const;
};

/// A rank is slow if it computes for so many times the others' median.
inline constexpr double kSlowFactor = 1.25;

/// Of statuses by rank, at least one, as they are at `now`.
Job make_job(std::string name, std::string folder,
             std::vector<RankStatus> ranks, double now);
/// Reads `folder`. Throws IoError if it has no status.
Job read_job(const std::string& name, const std::string& folder);
/// The jobs of this user on this host.
std::vector<Job> local_jobs();

/// For scripts: {"jobs": [{"name": .., "ranks": [..]}]}.
std::string jobs_json(const std::vector<Job>& jobs);
/// Prometheus's text format (version 0.0.4).
std::string jobs_metrics(const std::vector<Job>& jobs);

}  // namespace lockstep::monitor
