#include "lockstep/comm/gloo_collectives.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/call_of.h"
#include "lockstep/comm/dense.h"

namespace lockstep {

using shm::Operation;

GlooCollectives::GlooCollectives(c10::intrusive_ptr<c10d::Backend> gloo,
                                 std::vector<std::string> rank_names)
    : gloo_(std::move(gloo)),
      rank_(gloo_->getRank()),
      size_(gloo_->getSize()),
      rank_names_(std::make_shared<const std::vector<std::string>>(
          std::move(rank_names))) {}

void GlooCollectives::run(const shm::Call& call, Timeout timeout,
                          const std::function<void()>& task) {
  const BlockedSigpipe blocked;
  try {
    if (is_debug_detail()) check_calls(call, timeout);
    task();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    throw gloo_error(rank_names_, rank_, call.describe(), error);
  }
}

void GlooCollectives::check_calls(const shm::Call& call, Timeout timeout) {
  at::Tensor own = new_bytes(sizeof(call));
  std::memcpy(own.data_ptr(), &call, sizeof(call));
  const at::Tensor all = gathered(own, timeout);
  for (int rank = 0; rank < size_; ++rank) {
    shm::Call theirs;
    std::memcpy(&theirs,
                static_cast<const std::byte*>(all.const_data_ptr()) +
                    static_cast<size_t>(rank) * sizeof(theirs),
                sizeof(theirs));
    if (theirs == call) continue;
    throw CommError(
        {.code = ErrorCode::kCallsDiffer,
         .what = fmt::format("rank {} and rank {} called different collectives",
                             std::min(rank, rank_), std::max(rank, rank_)),
         .got = fmt::format("rank {}: {}; rank {}: {}", rank_, call.describe(),
                            rank, theirs.describe()),
         .fix = "make every rank call the same ones in the same order"});
  }
}

at::Tensor GlooCollectives::gathered(const at::Tensor& bytes, Timeout timeout) {
  at::Tensor input = bytes;
  at::Tensor output = new_bytes(bytes.numel() * size_);
  if (bytes.numel() > 0) {
    gloo_->_allgather_base(output, input, {.timeout = timeout})->wait();
  }
  return output;
}

void GlooCollectives::exchange(at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t> output_splits,
                               std::vector<int64_t> input_splits,
                               Timeout timeout) {
  gloo_
      ->alltoall_base(output, input, output_splits, input_splits,
                      {.timeout = timeout})
      ->wait();
}

void GlooCollectives::broadcast(at::Tensor& tensor, int root, Timeout timeout) {
  Result result(tensor);
  run(call_of(Operation::kBroadcast, tensor, root), timeout, [&] {
    if (tensor.numel() == 0) return;
    Tensors bytes{byte_view(result.dense())};
    gloo_->broadcast(bytes, {.rootRank = root, .timeout = timeout})->wait();
    if (rank_ != root) result.write_back();
  });
}

void GlooCollectives::all_gather(Tensors& outputs, const at::Tensor& input,
                                 Timeout timeout) {
  check_parts(outputs, input, size_, "all_gather");
  run(call_of(Operation::kAllGather, input), timeout, [&] {
    const at::Tensor all = gathered(byte_view(dense(input)), timeout);
    const Tensors parts = all.tensor_split(size_, 0);
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      Result result(outputs[rank]);
      byte_view(result.dense()).copy_(parts[rank]);
      result.write_back();
    }
  });
}

void GlooCollectives::gather(Tensors& outputs, const at::Tensor& input,
                             int root, Timeout timeout) {
  if (rank_ == root) check_parts(outputs, input, size_, "gather");
  run(call_of(Operation::kGather, input, root), timeout, [&] {
    if (input.numel() == 0) return;
    Tensors bytes{byte_view(dense(input))};
    std::vector<Tensors> lists;
    std::vector<Result> results;
    if (rank_ == root) {
      lists.emplace_back();
      for (const auto& output : outputs) {
        results.emplace_back(output);
        lists[0].push_back(byte_view(results.back().dense()));
      }
    }
    gloo_->gather(lists, bytes, {.rootRank = root, .timeout = timeout})->wait();
    for (auto& result : results) result.write_back();
  });
}

void GlooCollectives::scatter(at::Tensor& output, const Tensors& inputs,
                              int root, Timeout timeout) {
  if (rank_ == root) check_parts(inputs, output, size_, "scatter");
  Result result(output);
  run(call_of(Operation::kScatter, output, root), timeout, [&] {
    if (output.numel() == 0) return;
    Tensors bytes{byte_view(result.dense())};
    std::vector<Tensors> lists;
    if (rank_ == root) {
      lists.emplace_back();
      for (const auto& input : inputs) {
        lists[0].push_back(byte_view(dense(input)));
      }
    }
    gloo_->scatter(bytes, lists, {.rootRank = root, .timeout = timeout})
        ->wait();
    result.write_back();
  });
}

void GlooCollectives::all_to_all(Tensors& outputs, const Tensors& inputs,
                                 Timeout timeout) {
  const auto size = static_cast<size_t>(size_);
  if (outputs.size() != size || inputs.size() != size) {
    throw CommError(
        {.code = ErrorCode::kBadTensor,
         .what = "all_to_all needs a tensor to and from each rank",
         .expected = fmt::format("{} and {}", size, size),
         .got = fmt::format("{} and {}", inputs.size(), outputs.size())});
  }
  shm::Call call{.operation = Operation::kAllToAll};
  run(call, timeout, [&] {
    // The sizes first: Gloo would wait for bytes that nobody sends.
    at::Tensor sizes = torch::empty({size_}, torch::kLong);
    Tensors bytes;
    std::vector<int64_t> input_splits, output_splits;
    for (const auto& input : inputs) {
      bytes.push_back(byte_view(dense(input)));
      input_splits.push_back(bytes.back().numel());
    }
    for (const auto& output : outputs) {
      output_splits.push_back(static_cast<int64_t>(output.nbytes()));
    }
    std::copy(input_splits.begin(), input_splits.end(),
              sizes.data_ptr<int64_t>());
    const at::Tensor all = gathered(byte_view(sizes), timeout);
    const auto* sent = static_cast<const int64_t*>(all.const_data_ptr());
    for (size_t from = 0; from < size; ++from) {
      const int64_t got = sent[from * size + static_cast<size_t>(rank_)];
      if (got == output_splits[from]) continue;
      throw CommError(
          {.code = ErrorCode::kCallsDiffer,
           .what = fmt::format("all_to_all: rank {} sends rank {} another size "
                               "than that expects",
                               from, rank_),
           .expected = fmt::format("{} bytes", output_splits[from]),
           .got = fmt::format("{} bytes", got),
           .fix = "make the split sizes of the two agree"});
    }
    at::Tensor mine = torch::cat(bytes);
    int64_t total = 0;
    for (const int64_t split : output_splits) total += split;
    at::Tensor theirs = new_bytes(total);
    exchange(theirs, mine, output_splits, input_splits, timeout);
    const Tensors parts = theirs.split_with_sizes(output_splits, 0);
    for (size_t rank = 0; rank < size; ++rank) {
      Result result(outputs[rank]);
      byte_view(result.dense()).copy_(parts[rank]);
      result.write_back();
    }
  });
}

void GlooCollectives::barrier(Timeout timeout) {
  run({.operation = Operation::kBarrier}, timeout,
      [&] { gloo_->barrier({.device_ids = {}, .timeout = timeout})->wait(); });
}

// Of Gloo's own: it sends messages that no tag of a user's reaches.
void GlooCollectives::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  const BlockedSigpipe blocked;
  try {
    gloo_->monitoredBarrier({.device_ids = {}, .timeout = timeout},
                            wait_all_ranks);
  } catch (const std::exception& error) {
    throw gloo_error(rank_names_, rank_, "monitoredBarrier", error);
  }
}

Collectives::Work GlooCollectives::send(const at::Tensor& tensor, int to,
                                        int tag, Timeout timeout) {
  return start_mail(shm::MailOperation::Kind::kSend, tensor, to, tag, timeout);
}

Collectives::Work GlooCollectives::recv(const at::Tensor& tensor, int from,
                                        int tag, Timeout timeout) {
  return start_mail(shm::MailOperation::Kind::kReceive, tensor, from, tag,
                    timeout);
}

Collectives::Work GlooCollectives::recv_any(const at::Tensor& tensor, int tag,
                                            Timeout timeout) {
  return start_mail(shm::MailOperation::Kind::kReceive, tensor, shm::kAnySource,
                    tag, timeout);
}

Collectives::Work GlooCollectives::start_mail(shm::MailOperation::Kind kind,
                                              const at::Tensor& tensor,
                                              int peer, int tag,
                                              Timeout timeout) {
  const shm::MailOperation operation{.kind = kind,
                                     .peer = peer,
                                     .tag = tag,
                                     .bytes = tensor.nbytes(),
                                     .deadline = {},
                                     .done = {}};
  return c10::make_intrusive<GlooMail>(*gloo_, rank_names_, operation, tensor,
                                       timeout);
}

// Ends this rank's waits; the others' end when its connections close.
void GlooCollectives::fail(const std::string&) noexcept {
  try {
    gloo_->abort();
  } catch (const std::exception&) {
    // Then they end at the timeout.
  }
}

SharedMemory GlooCollectives::share(size_t, Timeout) {
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "ranks over gloo share no memory",
                   .fix = "use --backend shm on one host"});
}

}  // namespace lockstep
