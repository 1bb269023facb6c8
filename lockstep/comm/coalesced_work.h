#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

/// The calls between startCoalescing() and endCoalescing(), such as the
/// messages of batch_isend_irecv(). Done when all of them are done.
class CoalescedWork : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::ranges::all_of(
        works_, [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(
        works_, [](const auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override { return first_error(works_); }
  /// Returns the number of the collective, which is the last of the calls.
  uint64_t getSequencenumber() const override {
    return works_.back()->getSequencenumber();
  }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    using std::chrono::milliseconds;
    const auto begin = std::chrono::steady_clock::now();
    const auto left = [&] {
      if (timeout == kNoTimeout) return timeout;
      return std::max(milliseconds(1),
                      timeout - std::chrono::duration_cast<milliseconds>(
                                    std::chrono::steady_clock::now() - begin));
    };
    for (const auto& work : works_) work->wait(left());
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto type = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(type));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [works = works_](c10::ivalue::Future&) -> c10::IValue {
          if (const auto error = first_error(works)) {
            std::rethrow_exception(error);
          }
          return std::vector<at::Tensor>();
        },
        type);
  }

 private:
  static std::exception_ptr first_error(const Works& works) {
    for (const auto& work : works) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }

  const Works works_;
};

}  // namespace lockstep
