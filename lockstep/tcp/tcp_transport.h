#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tcp/mesh.h"
#include "lockstep/transport/transport.h"

namespace lockstep::tcp {

/// Moves the bytes of collectives over connections between every two ranks.
/// Sums follow the order of the tree, at the cost of a ring.
class TcpTransport : public transport::Transport {
 public:
  using Bytes = transport::Bytes;
  using ConstBytes = transport::ConstBytes;
  using Milliseconds = transport::Milliseconds;

  explicit TcpTransport(std::unique_ptr<Mesh> mesh);
  ~TcpTransport() override;

  const char* name() const override { return "tcp"; }
  void begin(const transport::Call& call, Milliseconds timeout) override;
  void all_reduce(Bytes data, const transport::Reduction& reduction) override;
  void reduce(Bytes data, int root,
              const transport::Reduction& reduction) override;
  void broadcast(Bytes data, int root) override;
  void all_gather(ConstBytes input, std::span<const Bytes> outputs) override;
  void gather(ConstBytes input, std::span<const Bytes> outputs,
              int root) override;
  void scatter(Bytes output, std::span<const ConstBytes> inputs,
               int root) override;
  void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                      const transport::Reduction& reduction) override;
  void all_to_all(std::span<const Bytes> outputs,
                  std::span<const ConstBytes> inputs) override;
  void barrier() override;
  /// Throws CommError: ranks over tcp share no memory.
  std::shared_ptr<const std::vector<transport::RankMemory>> share(
      size_t bytes, Milliseconds timeout) override;
  std::optional<std::string> end_of(int rank) const override {
    return mesh_->end_of(rank);
  }
  std::string state_of(int rank) const override {
    return mesh_->state_of(rank);
  }
  int64_t sent_bytes() const override;
  void abort(const std::string& reason) noexcept override;

 private:
  std::unique_ptr<Mesh> mesh_;
};

}  // namespace lockstep::tcp
