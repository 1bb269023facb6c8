#include "lockstep/comm/foreign_backend.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/device/accelerator.h"

namespace lockstep {

void throw_backend_error(const c10::Error& error, const std::string& what,
                         ErrorCode code) {
  // Memory that ran out is not an error of the collective.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) throw;
  const std::string text = error.what_without_backtrace();
  const bool is_shared =
      text.find("Duplicate GPU detected") != std::string::npos;
  const bool is_nccl = text.find("NCCL") != std::string::npos;
  throw CommError(
      {.code = code,
       .what = what,
       .expected = is_shared ? "a GPU for each rank" : "",
       .got = last_line(text),
       .fix = is_shared ? "use as many GPUs as ranks, or the backend shm, "
                          "which copies through the host"
              : is_nccl ? "run it with NCCL_DEBUG=WARN, which prints the cause"
                        : "look at the output of the other ranks"});
}

ForeignBackend::ForeignBackend(c10::intrusive_ptr<c10d::Backend> backend,
                               std::string name, c10::DeviceType device_type)
    : backend_(std::move(backend)),
      name_(std::move(name)),
      device_type_(device_type) {}

ForeignBackend::~ForeignBackend() {
  if (is_aborted_) return;
  if (std::uncaught_exceptions() > 0) {
    abort();
  } else if (device_index_ >= 0) {
    accelerator::wait_for_all({device_type_, device_index_, 0});
  }
}

void ForeignBackend::throw_error(const c10::Error& error,
                                 const std::string& call) const {
  throw_backend_error(
      error, fmt::format("{} over {} failed on rank {} of {}", call, name_,
                         backend_->getRank(), backend_->getSize()));
}

void ForeignBackend::abort() noexcept {
  if (is_aborted_.exchange(true)) return;
  try {
    backend_->abort();
  } catch (const std::exception& error) {
    log_warning("comm", fmt::format("{} can't be aborted: {}", name_,
                                    first_line(text_of(error))));
  }
}

}  // namespace lockstep
