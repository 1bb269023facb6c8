#include "lockstep/launch/workers/spare.h"

#include <array>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

// After this many, the agent goes on without a spare worker.
constexpr int kMaxLost = 3;
// A program that doesn't use Lockstep never gets ready. It would do its work
// without a rank.
constexpr double kReadyTimeoutS = 30;
constexpr int kReadyPollMs = 5;

StreamPlan stream_plan() { return {.log_path = {}, .label = "[spare] "}; }

}  // namespace

Spare::Spare(ChildOptions plan, Leftovers& leftovers, Console& console)
    : plan_(std::move(plan)), leftovers_(leftovers), console_(console) {
  start();
}

void Spare::start() {
  control::SocketPair pair = control::make_socket_pair();
  WorkerStream out(stream_plan(), console_);
  WorkerStream err(stream_plan(), console_);
  plan_.in_fd = pair.worker.get();
  plan_.out_fd = out.worker_end();
  plan_.err_fd = err.worker_end();
  ChildProcess process(plan_);
  leftovers_.add_worker(process.pid());
  out.close_worker_end();
  err.close_worker_end();
  running_.emplace(Running{.process = std::move(process),
                           .socket = std::move(pair.agent),
                           .out = std::move(out),
                           .err = std::move(err)});
}

void Spare::stop() {
  if (!running_) return;
  leftovers_.remove_worker(running_->process.pid());
  running_.reset();
}

void Spare::pass_on_output() {
  for (WorkerStream* stream : streams()) {
    pollfd ready{stream->fd(), POLLIN, 0};
    while (stream->fd() >= 0 && ::poll(&ready, 1, 0) > 0) stream->read_some();
  }
}

void Spare::lose(const std::string& why) {
  running_->process.send(SIGKILL);
  pass_on_output();  // it may say why
  for (WorkerStream* stream : streams()) stream->finish();
  stop();
  ++lost_;
  log_warning("launch",
              fmt::format("lost a spare worker: {}; {}", why,
                          lost_ < kMaxLost ? "another one is started"
                                           : "workers start without one"));
}

bool Spare::is_ready() {
  if (!running_) return false;
  running_->is_ready =
      running_->is_ready || control::is_spare_ready(running_->socket);
  return running_->is_ready;
}

void Spare::wait_until_ready(int interrupt_fd) {
  while (running_ && !is_ready()) {
    pass_on_output();
    look();
    std::array<pollfd, 1> fds{{{interrupt_fd, POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), kReadyPollMs) > 0) return;
  }
}

void Spare::look() {
  if (running_) check();
  if (running_ || lost_ >= kMaxLost) return;
  try {
    start();
  } catch (const Error& error) {
    lost_ = kMaxLost;  // training goes on without it
    log_warning("launch", text_of(error));
  }
}

void Spare::check() {
  if (const auto& end = running_->process.poll_end()) {
    // It ended before main(), and another one would do the same.
    if (!is_ready()) lost_ = kMaxLost - 1;
    lose(end->signal != 0 ? fmt::format("signal {}", end->signal)
                          : fmt::format("exit code {}", end->exit_code));
  } else if (!is_ready() && running_->age.seconds() > kReadyTimeoutS) {
    lost_ = kMaxLost - 1;  // another one would do the same
    lose(
        fmt::format("the program is not waiting after {:g} s; is it linked "
                    "with Lockstep?",
                    kReadyTimeoutS));
  }
}

std::optional<ChildProcess> Spare::fork(const control::RankSetup& setup) {
  if (!is_ready()) return std::nullopt;
  auto rank = control::fork_rank(running_->socket, setup);
  if (!rank) {
    lose("it forks no worker");
    return std::nullopt;
  }
  ChildProcess process = ChildProcess::adopt(rank->pid());
  leftovers_.add_worker(process.pid());
  rank->go();
  return process;
}

std::vector<WorkerStream*> Spare::streams() {
  if (!running_) return {};
  return {&running_->out, &running_->err};
}

}  // namespace lockstep::launch
