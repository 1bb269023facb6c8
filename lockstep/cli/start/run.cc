#include "lockstep/launch/run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/numa_binding.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/launch/options/gpus.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/launch/options/program_command.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::cli {
namespace {

struct RunFlags {
  std::string nproc_per_node = "1";
  std::string nnodes = "1";
  int node_rank = -1;
  std::string rdzv_backend = "static";
  std::string rdzv_conf;
  bool is_standalone = false;
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string redirects = "0";
  std::string tee = "0";
  std::string shown_ranks;
  std::string label_lines = "auto";
  std::string stdout_filters;
  std::string stderr_filters;
  std::string omp_threads = "auto";
  std::string pin_cores = "auto";
  std::string numa_binding;
  bool is_module = false;
  bool is_executable = false;
  bool is_script = false;
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string logs_specs;
  launch::RunOptions options;
};

double seconds(const std::string& key, const std::string& text) {
  const auto value = parse_number<double>(text);
  if (!value || !(*value > 0) || !std::isfinite(*value)) {
    throw BadUsage("[usage] --rdzv-conf " + key +
                   ": expected a number above 0, got '" + text + "'");
  }
  return *value;
}

bool truth(const std::string& key, const std::string& text) {
  for (const char* yes : {"1", "true", "True", "yes", "y", "t"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"0", "false", "False", "no", "n", "f"}) {
    if (text == no) return false;
  }
  throw BadUsage("[usage] --rdzv-conf " + key +
                 ": expected true or false, got '" + text + "'");
}

/// Sets the options in "join_timeout=60,is_host=true". Keys of torchrun that
/// have no meaning here are accepted and ignored. Throws BadUsage.
void apply_rendezvous_conf(const std::string& text,
                           launch::RunOptions& options) {
  const std::vector<std::string> keys{
      "join_timeout",  "timeout",      "keep_alive_interval",
      "is_host",       "read_timeout", "keep_alive_max_attempt",
      "close_timeout", "heartbeat",    "last_call_timeout",
      "interface"};
  double interval_s = 5;
  double attempts = 3;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value =
        equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "join_timeout" || key == "timeout") {
      options.join_timeout_s = seconds(key, value);
    } else if (key == "last_call_timeout") {
      options.last_call_s = seconds(key, value);
    } else if (key == "keep_alive_interval") {
      interval_s = seconds(key, value);
    } else if (key == "keep_alive_max_attempt") {
      attempts = seconds(key, value);
    } else if (key == "is_host") {
      options.is_host = truth(key, value);
    } else if (key == "interface") {
      options.interface = value;
    } else if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw BadUsage("[usage] --rdzv-conf: unknown key '" + key + "'; " +
                     did_you_mean(key, keys));
    }
  }
  options.keep_alive_s = interval_s * attempts;
}

std::string random_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

void apply_rendezvous(const RunFlags& flags, launch::RunOptions& options) {
  const auto [least, most] = launch::parse_nnodes(flags.nnodes);
  options.min_nodes = least;
  options.nodes = most;
  if (flags.node_rank >= 0) options.node_rank = flags.node_rank;
  if (flags.rdzv_backend == "c10d") options.backend = launch::Backend::kC10d;
  apply_rendezvous_conf(flags.rdzv_conf, options);
  if (options.is_elastic() && options.backend == launch::Backend::kStatic) {
    throw BadUsage("[usage] --nnodes " + flags.nnodes +
                   ", where nodes join and leave, needs --rdzv-backend c10d "
                   "and --rdzv-endpoint; with --rdzv-backend static, the "
                   "number of nodes is fixed");
  }
  if (!flags.is_standalone) return;
  if (options.nodes > 1) {
    throw BadUsage("[usage] --standalone is for one node; got --nnodes " +
                   flags.nnodes);
  }
  options.backend = launch::Backend::kC10d;
  options.endpoint = launch::Endpoint{store::loopback_host(), 0}.text();
  options.run_id = random_run_id();
}

void apply_logs(const RunFlags& flags, launch::RunOptions& options) {
  options.redirects =
      launch::parse_streams("--redirects", flags.redirects, options.workers);
  options.tee = launch::parse_streams("--tee", flags.tee, options.workers);
  options.stdout_filters =
      launch::parse_filters("--duplicate-stdout-filters", flags.stdout_filters);
  options.stderr_filters =
      launch::parse_filters("--duplicate-stderr-filters", flags.stderr_filters);
  const bool wants_logs = !options.log_dir.empty() ||
                          !options.stdout_filters.empty() ||
                          !options.stderr_filters.empty();
  if (wants_logs && options.redirects.is_none() && options.tee.is_none()) {
    options.tee.for_all = launch::Streams::kBoth;
  }
  options.shown_ranks = launch::parse_ranks("--local-ranks-filter",
                                            flags.shown_ranks, options.workers);
  if (options.label_template.empty()) {
    options.label_template =
        env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  }
  options.label_lines = flags.label_lines == "on" ? launch::LabelLines::kOn
                        : flags.label_lines == "off"
                            ? launch::LabelLines::kOff
                            : launch::LabelLines::kAuto;
}

// Returns the grace period of torchrun's variables, if one is set.
std::optional<double> grace_of_environment() {
  for (const char* name :
       {"PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}) {
    const auto text = env(name);
    if (!text) continue;
    const auto value = parse_number<double>(*text);
    if (value && *value >= 0 && std::isfinite(*value)) return value;
    throw BadUsage(fmt::format(
        "[usage] {}: expected a number of at least 0, got '{}'; unset it, or "
        "set it to seconds",
        name, *text));
  }
  return std::nullopt;
}

void apply_gpus(const RunFlags& flags, launch::RunOptions& options) {
  if (options.has_virtual_local_rank) {
    // Fails here, before a worker starts, if there are too few GPUs.
    launch::variables_of_own_gpu(options.workers - 1);
  }
  if (flags.numa_binding.empty()) return;
  if (flags.pin_cores != "auto") {
    throw BadUsage(fmt::format(
        "[usage] --numa-binding {} and --pin-cores {} can't be used together, "
        "because both choose the workers' cores; leave out one of them",
        flags.numa_binding, flags.pin_cores));
  }
  const auto gpus = launch::gpu_pci_addresses();
  options.is_bound_to_gpus = !gpus.empty();
  options.bound_cores.per_worker =
      bind_to_numa(flags.numa_binding, options.workers, gpus, allowed_cores());
}

// Refuses the options of torchrun that name Python code.
void refuse_python_plugins(const RunFlags& flags) {
  if (flags.event_log_handler != "null") {
    throw BadUsage(fmt::format(
        "[usage] --event-log-handler names a handler of Python's logging, and "
        "this launcher has no Python; expected null, got '{}'; leave it out: "
        "failures are reported on stderr and in error.json",
        flags.event_log_handler));
  }
  if (!flags.logs_specs.empty()) {
    throw BadUsage(fmt::format(
        "[usage] --logs-specs names a Python class, and this launcher has no "
        "Python; expected no such option, got '{}'; use --log-dir, "
        "--redirects and --tee",
        flags.logs_specs));
  }
}

launch::ProgramKind to_kind(const RunFlags& flags) {
  // As in torchrun, --run-path takes precedence.
  if (flags.is_script) return launch::ProgramKind::kPythonScript;
  if (flags.is_module && flags.is_executable) {
    throw BadUsage(
        "[usage] --module and --no-python can't be used together; leave out "
        "one of them");
  }
  if (flags.is_module) return launch::ProgramKind::kPythonModule;
  if (flags.is_executable) return launch::ProgramKind::kExecutable;
  return launch::ProgramKind::kByName;
}

launch::RunOptions to_options(const RunFlags& flags) {
  launch::RunOptions options = flags.options;
  options.workers = launch::parse_nproc(flags.nproc_per_node);
  apply_rendezvous(flags, options);
  apply_logs(flags, options);
  if (!options.grace_s) options.grace_s = grace_of_environment();
  apply_gpus(flags, options);
  options.signals = launch::parse_signals(flags.signals);
  if (flags.omp_threads != "auto") {
    options.omp_threads = std::stoi(flags.omp_threads);
  }
  return options;
}

// When a program ends, PyTorch's Gloo thread may still hold the last
// collective, and then aborts in an interpreter that is shutting down. This
// almost always happens if the thread shares a core with the main thread.
bool pins_cores(const RunFlags& flags, const std::vector<std::string>& command,
                int workers) {
  if (flags.pin_cores != "auto") return flags.pin_cores == "on";
  const bool has_one_core_each =
      allowed_cores().size() < 2 * static_cast<size_t>(workers);
  return !(has_one_core_each && launch::is_python(command));
}

void run(const RunFlags& flags) {
  refuse_python_plugins(flags);
  const auto command = launch::program_command(program_words(), to_kind(flags));
  launch::RunOptions options = to_options(flags);
  options.pins_cores = pins_cores(flags, command, options.workers);
  const int code = launch::run(options, command);
  if (code != 0) throw CLI::RuntimeError(code);
}

// As in torchrun, the variables PET_... set the defaults.
CLI::Option* from_environment(CLI::Option* option) {
  std::string name = "PET_";
  for (const char c : option->get_lnames().front()) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return option->envname(name);
}

std::vector<Option> worker_options(RunFlags& flags) {
  return {
      {.name = "--nproc-per-node",
       .value = &flags.nproc_per_node,
       .help = "workers on this node: a number, cpu (one for each core), gpu "
               "(one for each CUDA device), or auto (GPUs, or else cores); "
               "other accelerators: a number",
       .type = "N"},
      {.name = "--role",
       .value = &flags.options.role,
       .help = "role of the workers; ROLE_RANK counts within a role",
       .type = "NAME"},
      {.name = "--omp-threads",
       .value = &flags.omp_threads,
       .help = "OMP_NUM_THREADS of a worker; auto: the number of its cores, "
               "unless the variable is set",
       .type = "N",
       .range = between(1, 4096),
       .words = {"auto"}},
      {.name = "--pin-cores",
       .value = &flags.pin_cores,
       .help = "on: divide the cores equally, in order of local rank, and pin "
               "each worker to its own; off: no pinning; auto: on, except for "
               "Python programs that would have one core each",
       .type = "WHEN",
       .words = {"auto", "on", "off"}},
      {.name = "--numa-binding",
       .value = &flags.numa_binding,
       .help = "instead of --pin-cores, bind each worker to cores near its "
               "GPU, or distribute the workers evenly over the NUMA nodes if "
               "there are no GPUs: node (all cores of the NUMA node), socket "
               "(of its socket), exclusive (an equal part of the node) or "
               "core-complex (cores that share a last-level cache, in turn)",
       .type = "NAME",
       .default_text = "none",
       .words = {"node", "socket", "exclusive", "core-complex"}},
      {.name = "--virtual-local-rank",
       .value = &flags.options.has_virtual_local_rank,
       .help = "LOCAL_RANK is 0 in each worker, and CUDA_VISIBLE_DEVICES has "
               "only the worker's GPU"},
      {.name = "-m,--module",
       .value = &flags.is_module,
       .help = "the program is a Python module"},
      {.name = "--no-python",
       .value = &flags.is_executable,
       .help = "run the program itself even if it is a .py file"},
      {.name = "--run-path",
       .value = &flags.is_script,
       .help = "the program is a Python script, whatever its name is"},
  };
}

std::vector<Option> node_options(RunFlags& flags) {
  auto& options = flags.options;
  return {
      {.name = "--nnodes",
       .value = &flags.nnodes,
       .help = "nodes of the job; MIN:MAX: nodes may join and leave while it "
               "runs",
       .type = "N|MIN:MAX"},
      {.name = "--node-rank",
       .value = &flags.node_rank,
       .help = "this node's number, from 0; c10d: by order of arrival if not "
               "given, and always with MIN:MAX",
       .type = "N",
       .default_text = "0",
       .range = between(0, 4095)},
      {.name = "--master-addr",
       .value = &options.master_addr,
       .help = "static: address of node 0",
       .type = "HOST"},
      {.name = "--master-port",
       .value = &options.master_port,
       .help = "static: port of node 0; required for several nodes",
       .type = "PORT",
       .default_text = "a free one",
       .range = between(0, 65535)},
      {.name = "--standalone",
       .value = &flags.is_standalone,
       .help = "one node, with a free port and a random job name"},
      {.name = "--rdzv-backend",
       .value = &flags.rdzv_backend,
       .help = "how nodes meet: static (--node-rank, --master-addr) or c10d "
               "(--rdzv-endpoint)",
       .type = "NAME",
       .words = {"static", "c10d"}},
      {.name = "--rdzv-endpoint",
       .value = &options.endpoint,
       .help = "address of the job's store, which the agent of that host "
               "serves",
       .type = "HOST:PORT",
       .default_text = "none"},
      {.name = "--rdzv-id",
       .value = &options.run_id,
       .help = "name of the job, the same on all nodes",
       .type = "ID"},
      {.name = "--rdzv-conf",
       .value = &flags.rdzv_conf,
       .help = "join_timeout (300 s), keep_alive_interval (5 s) times "
               "keep_alive_max_attempt (3): how long agents survive a network "
               "that fails, last_call_timeout (30 s), is_host, interface "
               "(address to listen on; default: what the endpoint's name "
               "resolves to)",
       .type = "K=V,K=V",
       .default_text = "none"},
      {.name = "--local-addr",
       .value = &options.local_addr,
       .help = "this node's name in messages",
       .type = "HOST",
       .default_text = "the host's name"},
  };
}

std::vector<Option> secret_options(RunFlags& flags) {
  auto& options = flags.options;
  return {
      {.name = "--secret-file",
       .value = &options.secret_file,
       .help = "several nodes: file with the job's secret, readable only by "
               "you, the same on every node; or set LOCKSTEP_SECRET_FILE",
       .type = "FILE",
       .default_text = "on loopback: a secret of your user"},
      {.name = "--secret-fd",
       .value = &options.secret_fd,
       .help = "read the secret from this file descriptor",
       .type = "N",
       .default_text = "none",
       .range = between(0, 1'000'000)},
      {.name = "--no-secret",
       .value = &options.has_no_secret,
       .help = "no secret: anyone who can reach the port may join"},
  };
}

std::vector<Option> ending_options(RunFlags& flags) {
  return {
      {.name = "--max-restarts",
       .value = &flags.options.max_restarts,
       .help = "how many times failed workers are replaced, at most; the "
               "other workers of `lockstep train` continue from memory; other "
               "programs are restarted",
       .type = "N",
       .range = between(0, 1'000'000)},
      {.name = "--hang-timeout",
       .value = &flags.options.hang_timeout_s,
       .help = "seconds without progress after which a worker that reports "
               "its steps, as `lockstep train` does, is ended; 0: never",
       .type = "S",
       .default_text = fmt::format("{:g}", launch::kHangTimeoutS),
       .range = at_least(0)},
      {.name = "--grace-seconds,--shutdown-timeout",
       .value = &flags.options.grace_s,
       .help = "seconds from the first signal to SIGKILL; or set "
               "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
       .type = "S",
       .default_text = "after a failure 5, else 30",
       .range = at_least(0)},
      {.name = "--signals-to-handle",
       .value = &flags.signals,
       .help = "signals that are forwarded to the workers and end the job; "
               "SIGUSR1 always does",
       .type = "LIST"},
      {.name = "--monitor-interval",
       .value = &flags.options.monitor_interval_s,
       .help = "longest sleep of the agent in seconds; it notices at once if "
               "a worker ends",
       .type = "S",
       .range = Range{.least = 0,
                      .most = 60,
                      .excludes_least = true,
                      .excludes_most = true}},
  };
}

std::vector<Option> output_options(RunFlags& flags) {
  return {
      {.name = "--log-dir",
       .value = &flags.options.log_dir,
       .help = "keep the workers' stdout.log, stderr.log and error.json in a "
               "new folder in DIR",
       .type = "DIR",
       .default_text = "none"},
      {.name = "-r,--redirects",
       .value = &flags.redirects,
       .help = "write to log files instead of the console: 0 nothing, 1 "
               "stdout, 2 stderr, 3 both, or by local rank: 0:1,1:2",
       .type = "WHAT"},
      {.name = "-t,--tee",
       .value = &flags.tee,
       .help = "write to log files and to the console",
       .type = "WHAT"},
      {.name = "--local-ranks-filter",
       .value = &flags.shown_ranks,
       .help = "local ranks whose output is shown; log files have all",
       .type = "N,N",
       .default_text = "all"},
      {.name = "--label-lines",
       .value = &flags.label_lines,
       .help = "begin each line with its rank, such as \"[rank 1] \": on, "
               "off, or auto (on with several workers or a template)",
       .type = "WHEN",
       .words = {"auto", "on", "off"}},
      {.name = "--log-line-prefix-template",
       .value = &flags.options.label_template,
       .help = "label of each line, in which ${role_name}, ${local_rank}, "
               "${rank} and ${hostname} are replaced; or set "
               "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
       .type = "TEXT",
       .default_text = "[rank ${rank}] "},
      {.name = "--duplicate-stdout-filters",
       .value = &flags.stdout_filters,
       .help = "also write the shown lines of teed stdouts that contain one "
               "of these texts to filtered_stdout.log; two commas stand for a "
               "comma",
       .type = "TEXT,TEXT",
       .default_text = "none"},
      {.name = "--duplicate-stderr-filters",
       .value = &flags.stderr_filters,
       .help = "the same for stderr and filtered_stderr.log",
       .type = "TEXT,TEXT",
       .default_text = "none"},
  };
}

std::vector<Option> torchrun_options(RunFlags& flags) {
  return {
      {.name = "--start-method",
       .value = &flags.start_method,
       .help = "spawn, fork or forkserver; has no effect, because a worker is "
               "always a new process",
       .type = "NAME",
       .words = {"spawn", "fork", "forkserver"}},
      {.name = "--event-log-handler",
       .value = &flags.event_log_handler,
       .help = "only null, which has no effect",
       .type = "NAME"},
      {.name = "--logs-specs",
       .value = &flags.logs_specs,
       .help = "names Python code, so it is refused; see --log-dir, "
               "--redirects and --tee",
       .type = "NAME",
       .default_text = "none"},
  };
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command =
      add_command(app, "run", "Start the workers of a job, as torchrun does");
  auto flags = std::make_shared<RunFlags>();
  for (const auto& options : {in_group("Workers", worker_options(*flags)),
                              in_group("Nodes", node_options(*flags)),
                              in_group("Secret", secret_options(*flags)),
                              in_group("Ending", ending_options(*flags)),
                              in_group("Output", output_options(*flags)),
                              in_group("Accepted for torchrun's command lines",
                                       torchrun_options(*flags))}) {
    for (const Option& option : options) {
      from_environment(add_option(*command, option));
    }
  }
  command->get_option("--secret-file")->excludes("--secret-fd", "--no-secret");
  command->get_option("--secret-fd")->excludes("--no-secret");
  command->footer(
      "Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
      "A PROGRAM whose name ends in .py is run by $PYTHON_EXEC, else by the "
      "python3 of $VIRTUAL_ENV or $PATH. Each worker gets torchrun's "
      "variables: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and "
      "so on.\n"
      "Options can also be written with underscores. The variable "
      "PET_NPROC_PER_NODE sets the default of --nproc-per-node, and so on for "
      "every option.\n"
      "Exit codes: 0 done, 1 a worker failed, 2 bad usage (also by a worker), "
      "70 training can't continue, 75 preempted or a node or the network was "
      "lost (the same command continues), 128 plus the signal's number if a "
      "signal ended the job, 141 if nothing reads its output any more.");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
