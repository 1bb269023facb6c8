#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/transport/callback_threads.h"
#include "lockstep/comm/transport/queued_work.h"
#include "lockstep/comm/transport/transport.h"
#include "lockstep/comm/transport/work_queue.h"
#include "lockstep/shm/p2p_channel.h"
#include "lockstep/transport/transport.h"

namespace lockstep {

/// Transport over shm or tcp. It makes the tensors dense, describes each call
/// to the other ranks, and finds the kernel of a reduction. A
/// transport::Transport moves the bytes, and a channel carries messages.
/// Tensors on another device are copied to the host and back.
///
/// A reduction combines the elements of all ranks along the tree of
/// tree_reduce.h, which gives the same bits on every rank and with every
/// transport.
///
/// A call that its caller waits for runs in the caller's thread if nothing is
/// queued before it. All other calls run in the thread of a WorkQueue. Calls
/// are counted, and shown to a profiler ("shm:all_reduce").
class HostTransport : public Transport {
 public:
  /// `device_type` is the device type of the tensors. In a child of this
  /// process, the result is never destroyed: its threads do not exist there,
  /// and the other ends of its connections must not notice the child.
  static std::shared_ptr<HostTransport> make(
      std::unique_ptr<shm::P2pChannel> messages,
      std::unique_ptr<transport::Transport> bytes, int rank, int size,
      c10::DeviceType device_type, Timeout timeout);

  void run(const CollectiveCall& call, Timeout timeout) override;
  WorkPtr begin(CollectiveCall call, Timeout timeout) override;
  uint64_t sequence_number() const override { return sequence_number_; }
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  int64_t sent_bytes() const override { return bytes_->sent_bytes(); }
  bool can_share_memory() const override {
    return device_type_ == torch::kCPU && bytes_->can_share();
  }
  void abort(const std::string& reason) noexcept override;

 private:
  using MessagePtr = c10::intrusive_ptr<MessageWork>;

  HostTransport(std::unique_ptr<shm::P2pChannel> messages,
                std::unique_ptr<transport::Transport> bytes, int rank, int size,
                c10::DeviceType device_type, Timeout timeout);

  uint64_t take_number();
  /// Returns a title in the style of ProcessGroupGloo: "tcp:all_reduce".
  std::string title_of(c10d::OpType type) const;
  // These two make an event only while a profiler is running, because an event
  // costs more than a small all-reduce.
  c10::intrusive_ptr<QueuedWork> submit(uint64_t number, CollectiveCall call,
                                        bool is_async, Timeout timeout);
  MessagePtr new_message(c10d::OpType type, const at::Tensor& tensor) const;

  void perform(const CollectiveCall& call, Timeout timeout);

  /// Returns the function that the channel calls at the end of a message. It
  /// keeps the work alive until then.
  shm::P2pDone done_of(MessagePtr work);
  MessagePtr send_message(const at::Tensor& tensor, int to, int tag,
                          Timeout timeout);
  MessagePtr receive_message(const at::Tensor& tensor, int from, int tag,
                             Timeout timeout);
  void wait_for_arrivals(uint32_t number, Timeout timeout, bool wait_all_ranks);
  void arrive(uint32_t number, Timeout timeout);

  const c10::DeviceType device_type_;
  std::atomic<uint64_t> sequence_number_ = 0;
  std::atomic<uint32_t> monitored_barriers_ = 0;
  // Each is used by those after it, which are destroyed first.
  CallbackThreads callback_threads_;
  std::unique_ptr<shm::P2pChannel> messages_;
  std::unique_ptr<transport::Transport> bytes_;
  WorkQueue queue_;
};

}  // namespace lockstep
