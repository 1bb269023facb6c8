#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// A remarkable state of a rank.
enum class RankNote {
  kNone,
  kSlow,   ///< it computes so much longer than other ranks that they wait
  kStale,  ///< its last status is older than its steps take
  kLost,   ///< its process is gone
  kEnded,
};

/// Returns "", "slow", "stale", "lost" or "ended".
const char* to_string(RankNote note);

/// The state of a job, as reported by its ranks.
struct Job {
  std::string name;  ///< safe to show, see printable_line()
  std::string folder;
  std::vector<RankStatus> ranks;  ///< by rank
  std::vector<RankNote> notes;    ///< for each rank
  double now = 0;                 ///< time of this view, seconds since 1970

  /// Returns the status of rank 0 or, if it is missing, of the first rank.
  /// There is always one.
  const RankStatus& first() const { return ranks.front(); }
  /// Returns the seconds until the last step, or nothing before the first step.
  std::optional<double> seconds_left() const;
};

/// Factor above the median of the other ranks' computing time from which a rank
/// counts as slow.
inline constexpr double kSlowFactor = 1.25;

/// Makes a job of its ranks' statuses at the time `now`. `ranks` is sorted by
/// rank and has at least one entry.
Job make_job(std::string name, std::string folder,
             std::vector<RankStatus> ranks, double now);
/// Reads the job in `folder`. Throws IoError if there is no status in it.
Job read_job(const std::string& name, const std::string& folder);
/// Returns the jobs of this user on this host.
std::vector<Job> local_jobs();

/// Returns {"jobs": [{"name": .., "ranks": [..]}]}, for scripts.
std::string jobs_json(const std::vector<Job>& jobs);
/// Returns the jobs in Prometheus's text format (version 0.0.4).
std::string jobs_metrics(const std::vector<Job>& jobs);

}  // namespace lockstep::monitor
