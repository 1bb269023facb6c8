#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace lockstep {

/// Path of the built program.
inline const std::string kProgram = LOCKSTEP_BINARY_DIR "/bin/lockstep";

/// The built program, running in a separate process.
class Program {
 public:
  /// `environment` is added to that of this process. Without additions, the
  /// process is forked from one that has loaded LibTorch.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {});
  /// Kills the program if it is still running.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Waits until stdout contains `text`. Returns false if the program ended
  /// without it, or after a deadline.
  bool wait_for_output(std::string_view text);
  /// Waits for `count` times "ready", which that many workers print.
  bool wait_for_ready(int count);
  void send(int signal);
  pid_t pid() const { return pid_; }
  /// Waits for the end of the program. Returns the exit code, or minus the
  /// signal that ended it. Fails the test after a deadline.
  int wait();

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool read_some();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

struct Ended {
  int code;
  std::string out;
  std::string err;
};

/// Runs the program to its end.
Ended run_lockstep(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {});

/// Returns the arguments of `lockstep run options -- sh -c script`.
std::vector<std::string> sh_job(std::vector<std::string> options,
                                const std::string& script);

/// Runs such a job to its end.
Ended run_sh(const std::vector<std::string>& options, const std::string& script,
             const std::map<std::string, std::string>& environment = {});

/// Returns the names of the commands in the text of `lockstep help`.
std::set<std::string> commands_in(const std::string& help);

/// Returns the lines of a text, without line ends.
std::vector<std::string> lines_of(const std::string& text);

/// Returns the number of occurrences of `part` in `text`.
int count_of(const std::string& text, const std::string& part);

}  // namespace lockstep
