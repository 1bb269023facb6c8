#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/options/stream_choice.h"

namespace lockstep::launch {

enum class Backend { kStatic, kC10d };
enum class LabelLines { kAuto, kOn, kOff };

/// How to start a job's workers on this node. The names are torchrun's; see
/// docs/launcher.md.
struct RunOptions {
  int workers = 1;               ///< of this node
  int nodes = 1;                 ///< at most
  int min_nodes = 0;             ///< fewer: they come and go; 0: all
  std::optional<int> node_rank;  ///< none: 0 (static), by arrival (c10d)

  Backend backend = Backend::kStatic;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;   ///< 0: a free one; several nodes must name one
  std::string endpoint;  ///< "host:port", in the place of the two above
  std::string run_id = "none";
  std::string local_addr;  ///< this node's name; empty: the host's
  /// Whether this agent serves the store; none: if the endpoint is this host.
  std::optional<bool> is_host;
  std::string interface;  ///< where to listen; empty: where the name leads
  /// Of the job, in a file or an open file; of neither: store::shared_secret().
  std::string secret_file;
  int secret_fd = -1;
  bool has_no_secret = false;
  double join_timeout_s = 300;
  /// Once min_nodes have come, for others, before the first attempt.
  double last_call_s = 30;
  /// An agent that was not heard of for so long is lost.
  double keep_alive_s = 15;

  std::string role = "default";
  /// So often workers that failed are replaced.
  int max_restarts = 0;
  double monitor_interval_s = 0.1;
  /// Workers that tell their steps and don't get on for so long: the one that
  /// the others wait for is ended. 0: never.
  double hang_timeout_s = 240;
  /// From the first signal to SIGKILL. None: 5 s after a failure, 30 s after a
  /// signal, which may be a scheduler's last warning to save one's work.
  std::optional<double> grace_s;
  /// And SIGUSR1 in any case, with which Slurm warns: it would end the agent.
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};

  std::string log_dir;  ///< empty: a temporary one
  StreamChoice redirects;
  StreamChoice tee;
  std::vector<int> shown_ranks;  ///< local; empty: all
  LabelLines label_lines = LabelLines::kAuto;
  /// Unlabelled stdout is passed on as it comes, a progress bar too: of several
  /// workers, one alone writes to it.
  bool is_stdout_raw = false;

  int omp_threads = 0;  ///< 0: as many as the worker has cores
  bool pins_cores = true;
  std::map<std::string, std::string> environment;  ///< added to ours

  /// Nodes come and go.
  bool is_elastic() const { return min_nodes > 0 && min_nodes < nodes; }
  int fewest_nodes() const { return is_elastic() ? min_nodes : nodes; }
};

}  // namespace lockstep::launch
