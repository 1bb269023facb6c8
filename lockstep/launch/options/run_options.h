#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/options/bound_cores.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::launch {

enum class Backend { kStatic, kC10d };
enum class LabelLines { kAuto, kOn, kOff };

constexpr double kHangTimeoutS = 240;

/// Options for starting a job's workers on this node. The names are torchrun's.
/// See docs/launcher.md.
struct RunOptions {
  int workers = 1;               ///< workers on this node
  int nodes = 1;                 ///< largest number of nodes
  int min_nodes = 0;             ///< smaller than `nodes`: elastic; 0: all
  std::optional<int> node_rank;  ///< unset: 0 (static), by arrival (c10d)

  Backend backend = Backend::kStatic;
  std::string master_addr = store::loopback_host();
  int master_port = 0;   ///< 0: a free port, with one node only
  std::string endpoint;  ///< "host:port"; replaces the two above
  std::string run_id = "none";
  std::string local_addr;  ///< this node's name; empty: the host's name
  /// Whether this agent serves the store. If unset, it serves the store if the
  /// endpoint is on this host.
  std::optional<bool> is_host;
  std::string interface;  ///< interface to listen on; empty: by the name
  /// The file, or the open file descriptor, that holds the job's secret. If
  /// neither is set, store::shared_secret() chooses the secret.
  std::string secret_file;
  int secret_fd = -1;
  bool has_no_secret = false;
  double join_timeout_s = 300;
  /// Time for which the first attempt waits for further nodes once there are
  /// min_nodes.
  double last_call_s = 30;
  /// Time without a heartbeat after which an agent counts as lost.
  double keep_alive_s = 15;

  std::string role = "default";
  /// Number of times that failed workers are replaced.
  int max_restarts = 0;
  double monitor_interval_s = 0.1;
  /// If workers that report their steps make no progress for this time, the
  /// worker that the others wait for is killed. 0 means never. If unset, it is
  /// kHangTimeoutS, and nothing is said about workers that don't report.
  std::optional<double> hang_timeout_s;
  /// The time from the first signal to SIGKILL. If unset, it is 5 s after a
  /// failure, and 30 s after a signal, because the signal may be a scheduler's
  /// last warning, after which programs save their work.
  std::optional<double> grace_s;
  /// Signals that the agent handles. It always handles SIGUSR1 as well, because
  /// Slurm warns with that signal, which would kill an agent that does not
  /// expect it.
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};

  std::string log_dir;  ///< empty: a temporary folder
  StreamChoice redirects;
  StreamChoice tee;
  std::vector<int> shown_ranks;  ///< local ranks; empty: all
  /// Shown lines of teed streams that contain one of these texts are also
  /// written to filtered_stdout.log and filtered_stderr.log.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  LabelLines label_lines = LabelLines::kAuto;
  /// Label with names such as ${rank}. Empty: "[rank 1] ".
  std::string label_template;
  /// Whether stdout without labels is passed on byte by byte, so that a
  /// progress bar works. For programs in which only one worker writes to
  /// stdout.
  bool is_stdout_raw = false;

  int omp_threads = 0;  ///< 0: one per core of the worker
  bool pins_cores = true;
  /// Cores that replace the equal parts of the agent's cores. Empty: none.
  BoundCores bound_cores;
  /// Set if the workers have the cores near their GPUs.
  bool is_bound_to_gpus = false;
  /// Set if LOCAL_RANK is 0 in each worker, which sees only its own GPU.
  bool has_virtual_local_rank = false;
  std::map<std::string, std::string> environment;  ///< added to the agent's own

  /// Returns true if nodes may join and leave between attempts.
  bool is_elastic() const { return min_nodes > 0 && min_nodes < nodes; }
  int fewest_nodes() const { return is_elastic() ? min_nodes : nodes; }
};

}  // namespace lockstep::launch
