#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/transport/transport.h"

namespace lockstep {

/// The transport of a group of one rank, which copies its inputs to its
/// outputs.
class SoloTransport : public transport::Transport {
 public:
  using Bytes = transport::Bytes;
  using ConstBytes = transport::ConstBytes;
  using Milliseconds = transport::Milliseconds;

  const char* name() const override { return "none"; }
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
  void barrier() override {}
  bool can_share() const override { return true; }
  std::shared_ptr<const std::vector<transport::RankMemory>> share(
      size_t bytes, Milliseconds timeout) override;
  std::optional<std::string> end_of(int) const override { return {}; }
  std::string state_of(int) const override { return "this rank"; }
  void abort(const std::string& reason) noexcept override;
};

}  // namespace lockstep
