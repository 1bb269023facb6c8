#include "tests/cli/program.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/file_descriptor.h"
#include "tests/cli/loaded_program.h"

namespace lockstep {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);

using Clock = std::chrono::steady_clock;

// Returns false at the end of the file.
bool append(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got > 0) text.append(buffer, static_cast<size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  if (environment.empty() && loaded_program::can_run(arguments)) {
    pid_ = loaded_program::start(arguments, out.write.get(), err.write.get());
    out_fd_ = out.read.release();
    err_fd_ = err.read.release();
    return;
  }
  std::vector<char*> argv{const_cast<char*>(kProgram.c_str())};
  for (const auto& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    for (const auto& [name, value] : environment) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::dup2(out.write.get(), STDOUT_FILENO);
    ::dup2(err.write.get(), STDERR_FILENO);
    ::execv(kProgram.c_str(), argv.data());
    ::_exit(127);
  }
  out_fd_ = out.read.release();
  err_fd_ = err.read.release();
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

// Returns false when both pipes are at their end, or when nothing arrives for
// too long.
bool Program::read_some() {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(kDeadline);
  const int ready = ::poll(fds, 2, static_cast<int>(ms.count()));
  if (ready < 0) return errno == EINTR;
  if (ready == 0) return false;
  if (fds[0].revents != 0 && !append(out_fd_, out_)) {
    ::close(out_fd_);
    out_fd_ = -1;
  }
  if (fds[1].revents != 0 && !append(err_fd_, err_)) {
    ::close(err_fd_);
    err_fd_ = -1;
  }
  return true;
}

bool Program::wait_for_output(std::string_view text) {
  const auto deadline = Clock::now() + kDeadline;
  while (out_.find(text) == std::string::npos) {
    if (Clock::now() > deadline || !read_some()) return false;
  }
  return true;
}

bool Program::wait_for_ready(int count) {
  const auto deadline = Clock::now() + kDeadline;
  while (count_of(out_, "ready") < count) {
    if (Clock::now() > deadline || !read_some()) return false;
  }
  return true;
}

void Program::send(int signal) { ::kill(pid_, signal); }

int Program::wait() {
  const auto deadline = Clock::now() + kDeadline;
  while (read_some()) {
    if (Clock::now() > deadline) break;
  }
  if (out_fd_ >= 0 || err_fd_ >= 0) {
    ADD_FAILURE() << "not done in time; its output:\n" << out_ << err_;
    ::kill(pid_, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Ended run_lockstep(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment) {
  Program program(arguments, environment);
  const int code = program.wait();
  return {code, program.out(), program.err()};
}

std::vector<std::string> sh_job(std::vector<std::string> options,
                                const std::string& script) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"--", "sh", "-c", script});
  return options;
}

Ended run_sh(const std::vector<std::string>& options, const std::string& script,
             const std::map<std::string, std::string>& environment) {
  return run_lockstep(sh_job(options, script), environment);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;
       at += part.size()) {
    ++count;
  }
  return count;
}

std::set<std::string> commands_in(const std::string& help) {
  std::set<std::string> names;
  bool is_command = false;
  for (const auto& line : lines_of(help)) {
    if (!line.starts_with("  ")) {
      is_command =
          line == "Commands:" || line == "Tools:" || line == "Language models:";
    } else if (is_command && line[2] != ' ') {
      names.insert(line.substr(2, line.find(' ', 2) - 2));
    }
  }
  return names;
}

}  // namespace lockstep
