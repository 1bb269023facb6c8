// The launcher's main messages, word for word. Other tests check codes and
// names, so a message that changes has to be changed only here.
#include <csignal>
#include <functional>
#include <ostream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/failure/fault_log.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/launch/options/program_command.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/launch/rendezvous/membership.h"
#include "lockstep/launch/rendezvous/rendezvous.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

const CheckStop kNeverStop = [] {};

// The store of a job, and nodes that join it.
class Job {
 public:
  explicit Job(int nodes) {
    options.nodes = nodes;
    options.backend = Backend::kC10d;
  }
  Node come(const std::string& host) {
    Node node{.host = host, .pid = 1, .workers = 1, .role = "r"};
    register_member(store, options, node);
    return node;
  }
  void form_group(const Node& self) {
    Participants group{.nodes = {self}};
    launch::form_group(store, options, group, shortly);
  }

  RunOptions options;
  Endpoint endpoint{"127.0.0.1", 0};
  JobStore store{{.run_id = "job", .secret = store::JobSecret::random()},
                 endpoint,
                 listen_at(endpoint)};
  const Deadline shortly{0.1, kNeverStop};
};

RunOptions with_taken_port() {
  static Endpoint endpoint{"127.0.0.1", 0};
  static const auto listeners = listen_at(endpoint);
  RunOptions options;
  options.master_port = endpoint.port;
  return options;
}

const std::string& folder() {
  static const TemporaryFolder folder;
  static const std::string path = folder.path();
  write_text(path + "/train.py", "");
  return path;
}

Failure failure_of_rank(int rank, const std::string& message) {
  Failure failure;
  failure.rank = rank;
  failure.local_rank = rank;
  failure.host = "node7";
  failure.pid = 12;
  failure.exit_code = 1;
  failure.time_s = rank;
  failure.message = message;
  return failure;
}

std::string report_of_two() {
  Failure root = failure_of_rank(0, "");
  root.signal = SIGSEGV;
  root.last_lines = {"almost there", "there"};
  return failure_report({failure_of_rank(1, "peer gone\nmore"), root});
}

std::string log_of_two() {
  FaultLog log;
  log.began_training(100, 0);
  const Failure failure = failure_of_rank(3, "no such shard\nand more");
  log.add({.root = &failure, .began_s = 100, .failed_s = 160, .steps = 41});
  log.recovered(161);
  log.began_training(163, 40);
  log.add({.why = "rank 9 on node8 failed", .began_s = 170, .failed_s = 171});
  log.recovered(172);
  return log.text();
}

std::string why_stuck() {
  FaultLog log;
  const Failure failure = failure_of_rank(3, "no such shard");
  for (int i = 0; i < 3; ++i) {
    log.add({.root = &failure, .began_s = 1, .failed_s = 2, .steps = 8});
  }
  return log.is_stuck() ? log.why_stuck() : "";
}

struct Message {
  std::string name;
  std::function<void()> act;  // throws the message
  std::string text;           // "*" stands for text that varies
};
std::ostream& operator<<(std::ostream& out, const Message& message) {
  return out << message.name;
}

std::string without_stars(std::string text) {
  static const std::regex special(R"([.^$|()\[\]{}*+?\\])");
  text = std::regex_replace(text, special, R"(\$&)");
  return std::regex_replace(text, std::regex(R"(\\\*)"), "[\\s\\S]*");
}

class Messages : public testing::TestWithParam<Message> {};

TEST_P(Messages, ReadAsTheyShould) {
  const std::string text = error_of<Error>(GetParam().act);
  EXPECT_TRUE(
      std::regex_match(text, std::regex(without_stars(GetParam().text))))
      << text;
}

// A report is not an exception. It is thrown as one to fit into the table.
struct Report : Error {
  explicit Report(const std::string& text)
      : Error("report", {.code = ErrorCode::kMisuse, .what = text}) {}
};

INSTANTIATE_TEST_SUITE_P(
    Launcher, Messages,
    testing::Values(
        Message{"Nproc", [] { parse_nproc("many"); },
                "[launch] can't use --nproc-per-node; expected a number from 1 "
                "to 4096, auto, cpu or gpu, got 'many' [bad-option]"},
        Message{"Nnodes", [] { parse_nnodes("4:1"); },
                "[launch] can't use --nnodes; expected a number from 1 to "
                "4096, or MIN:MAX, got '4:1' [bad-option]"},
        Message{"Streams", [] { parse_streams("--tee", "4", 2); },
                "[launch] can't use --tee; expected 0 (none), 1 (stdout), 2 "
                "(stderr) or 3 (both), or one by local rank: 0:1,1:2, got '4' "
                "[bad-option]"},
        Message{"Ranks", [] { parse_ranks("--local-ranks-filter", "3", 3); },
                "[launch] can't use --local-ranks-filter; expected local ranks "
                "from 0 to 2, got '3' [bad-option]"},
        Message{"Signals", [] { parse_signals("SIGTREM"); },
                "[launch] can't handle the signal 'SIGTREM'; expected names "
                "such as SIGTERM,SIGINT,SIGUSR1, got 'SIGTREM'; did you mean "
                "'SIGTERM'?* [bad-option]"},
        Message{"Endpoint",
                [] { parse_endpoint("--rdzv-endpoint", "a:70000", 0); },
                "[launch] can't use --rdzv-endpoint; expected HOST:PORT with a "
                "port up to 65535, got 'a:70000' [bad-option]"},
        Message{"NoProgram", [] { program_command({}, ProgramKind::kByName); },
                "[launch] no program to run; put it after the options: "
                "lockstep run --nproc-per-node 2 -- ./program ARGUMENTS "
                "[process-start]"},
        Message{"NoScript",
                [] {
                  program_command({folder() + "/trian.py"},
                                  ProgramKind::kByName);
                },
                "[launch] can't start the program '*/trian.py'; expected an "
                "executable file, got no such file; did you mean "
                "'*/train.py'? [process-start]"},
        Message{"NoProgramInPath",
                [] {
                  find_program("tol", {{"PATH", folder()}});
                },
                "[launch] can't start the program 'tol'; expected an "
                "executable file in $PATH, got no such file; check its name, "
                "or give its path [process-start]"},
        Message{"NotExecutable",
                [] { find_program(folder() + "/train.py", {}); },
                "[launch] can't start the program '*/train.py'; expected an "
                "executable file, got a file without permission to execute; "
                "run `chmod +x */train.py`, or run a script with its "
                "interpreter, such as `bash */train.py` [process-start]"},
        Message{"PortInUse",
                [] { join_rendezvous(with_taken_port(), kNeverStop); },
                "[launch] the port of 127.0.0.1:* is in use; expected a free "
                "port for the job's store, got another program that listens "
                "there; leave out --master-port to use a free one "
                "[cannot-listen]"},
        Message{"NoPort",
                [] {
                  RunOptions options;
                  options.nodes = 2;
                  join_rendezvous(options, kNeverStop);
                },
                "[launch] several nodes need a port that all of them know; "
                "expected --master-addr and --master-port, got no port "
                "[bad-option]"},
        Message{"NodeRank",
                [] {
                  Job job(2);
                  job.options.node_rank = 2;
                  job.come("a");
                },
                "[launch] can't use --node-rank; expected 0 to 1 with --nnodes "
                "2, got 2 [bad-option]"},
        Message{"SameNodeRank",
                [] {
                  Job job(2);
                  job.options.node_rank = 1;
                  job.come("a");
                  job.come("b");
                },
                "[launch] two agents say they are node 1; expected each "
                "--node-rank once, got a (agent 1) and b (agent 1); number the "
                "nodes from 0 [rendezvous-failed]"},
        Message{"TooFewNodes",
                [] {
                  Job job(3);
                  const Node self = job.come("a");
                  job.come("b");
                  job.form_group(self);
                },
                "[launch] too few nodes joined; expected 3 nodes, got 2: a "
                "(agent 1), b (agent 1) after 0.1 s (--rdzv-conf "
                "join_timeout=...); start the other agents; they need the same "
                "--nnodes, --rdzv-id and address [rendezvous-failed]"},
        Message{"JobIsComplete",
                [] {
                  Job job(1);
                  const Node self = job.come("a");
                  const Node late = job.come("b");
                  job.form_group(self);
                  wait_for_group(job.store, job.options, late, job.shortly);
                },
                "[launch] job 'none' is complete; expected 1 node, got one "
                "more: b (agent 1); give each job its own --rdzv-id and port "
                "[rendezvous-failed]"},
        Message{
            "LeftBehind",
            [] {
              Job job(1);
              const Node self = job.come("a");
              const Node lost = job.come("b");
              job.form_group(self);
              read_group(job.store, job.options, lost, 0, job.shortly);
            },
            "[launch] the job continued without this node; got node 0 heard "
            "nothing from it in time; start its agent again to let it "
            "rejoin [rendezvous-failed]"},
        Message{"NodeRefused",
                [] {
                  Job job(2);
                  const Node self = job.come("a");
                  refuse_job(job.store, "why");
                  job.form_group(self);
                },
                "[launch] a node was refused: why [rendezvous-failed]"},
        Message{"StoreOfAnotherJob",
                [] {
                  Job job(1);
                  JobStore(
                      {.run_id = "job", .secret = store::JobSecret::random()},
                      job.endpoint);
                },
                "[launch] what listens at 127.0.0.1:* is not the store of this "
                "job; expected the agent of node 0, with the job's secret, got "
                "* [store-refused]"},
        Message{"FailureReport", [] { throw Report(report_of_two()); },
                "[report] [launch] the job failed\n"
                "  other failures, later:\n"
                "    rank 1 on node7: exit code 1: peer gone\n"
                "  root cause: rank 0 (local rank 0) on node7, node 0, pid 12\n"
                "    ended    SIGSEGV (Segmentation fault)\n"
                "    time     *\n"
                "    last lines of its stderr:\n"
                "      almost there\n"
                "      there\n [misuse]"},
        Message{"FaultLog", [] { throw Report(log_of_two()); },
                "[report] [launch] 2 failures survived\n"
                "    *  rank 3 on node7: exit code 1: no such shard (after "
                "60.0 s and 41 steps; 3.0 s until all ran again, 1 step "
                "lost)\n"
                "    *  rank 9 on node8 failed (after 1.0 s; 1.0 s until all "
                "ran again)\n [misuse]"},
        Message{"Stuck", [] { throw Report(why_stuck()); },
                "[report] [launch] no further restart: it failed 3 times in a "
                "row after step 8, so the cause is in the program or its "
                "data\n [misuse]"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::launch
