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

template <class T>
CLI::Option* add(CLI::App& command, const std::string& names, T& value,
                 const std::string& type, const std::string& help) {
  CLI::Option* option = nullptr;
  if constexpr (requires { add_number(command, names, value, help); }) {
    option = add_number(command, names, value, help);
  } else {
    option = command.add_option(names, value, help);
  }
  return from_environment(option->type_name(type));
}

void add_worker_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Workers";
  add(command, "--nproc-per-node", flags.nproc_per_node, "N",
      "workers on this node: a number, cpu (one for each core), gpu (one for "
      "each CUDA device), or auto (GPUs, or else cores); other accelerators: "
      "a number")
      ->group(group);
  add(command, "--role", flags.options.role, "NAME",
      "role of the workers; ROLE_RANK counts within a role")
      ->group(group);
  add(command, "--omp-threads", flags.omp_threads, "N",
      "OMP_NUM_THREADS of a worker; auto: the number of its cores, unless the "
      "variable is set")
      ->check(whole_number(1, 4096) | one_of({"auto"}))
      ->group(group);
  add(command, "--pin-cores", flags.pin_cores, "WHEN",
      "on: divide the cores equally, in order of local rank, and pin each "
      "worker to its own; off: no pinning; auto: on, except for Python "
      "programs that would have one core each")
      ->check(one_of({"auto", "on", "off"}))
      ->group(group);
  add(command, "--numa-binding", flags.numa_binding, "NAME",
      "instead of --pin-cores, bind each worker to cores near its GPU, or "
      "distribute the workers evenly over the NUMA nodes if there are no GPUs: "
      "node (all cores of the NUMA node), socket (of its socket), exclusive "
      "(an equal part of the node) or core-complex (cores that share a "
      "last-level cache, in turn)")
      ->check(one_of({"node", "socket", "exclusive", "core-complex"}))
      ->default_str("none")
      ->group(group);
  from_environment(
      command.add_flag("--virtual-local-rank",
                       flags.options.has_virtual_local_rank,
                       "LOCAL_RANK is 0 in each worker, and "
                       "CUDA_VISIBLE_DEVICES has only the worker's GPU"))
      ->group(group);
  from_environment(command.add_flag("-m,--module", flags.is_module,
                                    "the program is a Python module"))
      ->group(group);
  from_environment(
      command.add_flag("--no-python", flags.is_executable,
                       "run the program itself even if it is a .py file"))
      ->group(group);
  from_environment(
      command.add_flag("--run-path", flags.is_script,
                       "the program is a Python script, whatever its name is"))
      ->group(group);
}

void add_node_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Nodes";
  auto& options = flags.options;
  add(command, "--nnodes", flags.nnodes, "N|MIN:MAX",
      "nodes of the job; MIN:MAX: nodes may join and leave while it runs")
      ->group(group);
  add(command, "--node-rank", flags.node_rank, "N",
      "this node's number, from 0; c10d: by order of arrival if not given, "
      "and always with MIN:MAX")
      ->check(whole_number(0, 4095))
      ->default_str("0")
      ->group(group);
  add(command, "--master-addr", options.master_addr, "HOST",
      "static: address of node 0")
      ->group(group);
  add(command, "--master-port", options.master_port, "PORT",
      "static: port of node 0; required for several nodes")
      ->check(whole_number(0, 65535))
      ->default_str("a free one")
      ->group(group);
  from_environment(
      command.add_flag("--standalone", flags.is_standalone,
                       "one node, with a free port and a random job name"))
      ->group(group);
  add(command, "--rdzv-backend", flags.rdzv_backend, "NAME",
      "how nodes meet: static (--node-rank, --master-addr) or c10d "
      "(--rdzv-endpoint)")
      ->check(one_of({"static", "c10d"}))
      ->group(group);
  add(command, "--rdzv-endpoint", options.endpoint, "HOST:PORT",
      "address of the job's store, which the agent of that host serves")
      ->default_str("none")
      ->group(group);
  add(command, "--rdzv-id", options.run_id, "ID",
      "name of the job, the same on all nodes")
      ->group(group);
  add(command, "--rdzv-conf", flags.rdzv_conf, "K=V,K=V",
      "join_timeout (300 s), keep_alive_interval (5 s) times "
      "keep_alive_max_attempt (3): how long agents survive a network that "
      "fails, last_call_timeout (30 s), is_host, interface (address to listen "
      "on; default: what the endpoint's name resolves to)")
      ->default_str("none")
      ->group(group);
  add(command, "--local-addr", options.local_addr, "HOST",
      "this node's name in messages")
      ->default_str("the host's name")
      ->group(group);
}

void add_secret_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Secret";
  auto& options = flags.options;
  auto* file =
      add(command, "--secret-file", options.secret_file, "FILE",
          "several nodes: file with the job's secret, readable only by you, "
          "the same on every node; or set LOCKSTEP_SECRET_FILE")
          ->default_str("on loopback: a secret of your user")
          ->group(group);
  auto* fd = add(command, "--secret-fd", options.secret_fd, "N",
                 "read the secret from this file descriptor")
                 ->check(whole_number(0, 1'000'000))
                 ->default_str("none")
                 ->group(group);
  auto* none =
      from_environment(
          command.add_flag("--no-secret", options.has_no_secret,
                           "no secret: anyone who can reach the port may join"))
          ->group(group);
  file->excludes(fd)->excludes(none);
  fd->excludes(none);
}

void add_ending_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Ending";
  add(command, "--max-restarts", flags.options.max_restarts, "N",
      "how many times failed workers are replaced, at most; the other workers "
      "of `lockstep train` continue from memory; other programs are restarted")
      ->check(whole_number(0, 1'000'000))
      ->group(group);
  add(command, "--hang-timeout", flags.options.hang_timeout_s, "S",
      "seconds without progress after which a worker that reports its steps, "
      "as `lockstep train` does, is ended; 0: never")
      ->check(number(0))
      ->default_str(fmt::format("{:g}", launch::kHangTimeoutS))
      ->group(group);
  add(command, "--grace-seconds,--shutdown-timeout", flags.options.grace_s, "S",
      "seconds from the first signal to SIGKILL; or set "
      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
      ->check(number(0))
      ->default_str("after a failure 5, else 30")
      ->group(group);
  add(command, "--signals-to-handle", flags.signals, "LIST",
      "signals that are forwarded to the workers and end the job; SIGUSR1 "
      "always does")
      ->group(group);
  add(command, "--monitor-interval", flags.options.monitor_interval_s, "S",
      "longest sleep of the agent in seconds; it notices at once if a worker "
      "ends")
      ->check(number(0, Bound::kExcluded, 60))
      ->group(group);
}

void add_output_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Output";
  add(command, "--log-dir", flags.options.log_dir, "DIR",
      "keep the workers' stdout.log, stderr.log and error.json in a new folder "
      "in DIR")
      ->default_str("none")
      ->group(group);
  add(command, "-r,--redirects", flags.redirects, "WHAT",
      "write to log files instead of the console: 0 nothing, 1 stdout, 2 "
      "stderr, 3 both, or by local rank: 0:1,1:2")
      ->group(group);
  add(command, "-t,--tee", flags.tee, "WHAT",
      "write to log files and to the console")
      ->group(group);
  add(command, "--local-ranks-filter", flags.shown_ranks, "N,N",
      "local ranks whose output is shown; log files have all")
      ->default_str("all")
      ->group(group);
  add(command, "--label-lines", flags.label_lines, "WHEN",
      "begin each line with its rank, such as \"[rank 1] \": on, off, or auto "
      "(on with several workers or a template)")
      ->check(one_of({"auto", "on", "off"}))
      ->group(group);
  add(command, "--log-line-prefix-template", flags.options.label_template,
      "TEXT",
      "label of each line, in which ${role_name}, ${local_rank}, ${rank} and "
      "${hostname} are replaced; or set TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
      ->default_str("[rank ${rank}] ")
      ->group(group);
  add(command, "--duplicate-stdout-filters", flags.stdout_filters, "TEXT,TEXT",
      "also write the shown lines of teed stdouts that contain one of these "
      "texts to filtered_stdout.log; two commas stand for a comma")
      ->default_str("none")
      ->group(group);
  add(command, "--duplicate-stderr-filters", flags.stderr_filters, "TEXT,TEXT",
      "the same for stderr and filtered_stderr.log")
      ->default_str("none")
      ->group(group);
}

void add_torchrun_options(CLI::App& command, RunFlags& flags) {
  const std::string group = "Accepted for torchrun's command lines";
  add(command, "--start-method", flags.start_method, "NAME",
      "spawn, fork or forkserver; has no effect, because a worker is always a "
      "new process")
      ->check(one_of({"spawn", "fork", "forkserver"}))
      ->group(group);
  add(command, "--event-log-handler", flags.event_log_handler, "NAME",
      "only null, which has no effect")
      ->group(group);
  add(command, "--logs-specs", flags.logs_specs, "NAME",
      "names Python code, so it is refused; see --log-dir, --redirects and "
      "--tee")
      ->default_str("none")
      ->group(group);
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command =
      add_command(app, "run", "Start the workers of a job, as torchrun does");
  auto flags = std::make_shared<RunFlags>();
  add_worker_options(*command, *flags);
  add_node_options(*command, *flags);
  add_secret_options(*command, *flags);
  add_ending_options(*command, *flags);
  add_output_options(*command, *flags);
  add_torchrun_options(*command, *flags);
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
