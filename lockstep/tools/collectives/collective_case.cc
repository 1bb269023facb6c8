#include "lockstep/tools/collectives/collective_case.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep::tools {
namespace {

/// Returns what `rank` adds to the pattern. For up to 40 ranks, sums over the
/// ranks stay below 256, and bfloat16 represents every whole number up to 256.
int64_t share_of(int rank) { return rank % 3; }

at::Tensor make_pattern(int64_t count, at::ScalarType type) {
  const at::Tensor five = torch::arange(5).to(type);
  return five.repeat({count / 5 + 1}).narrow(0, 0, count).contiguous();
}

}  // namespace

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names{
      "allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall"};
  return names;
}

Collective parse_collective(const std::string& name) {
  const auto& names = collective_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Collective>(i);
  }
  throw InvalidArgument("bench",
                        {.code = ErrorCode::kUnknownName,
                         .what = "no such collective",
                         .expected = fmt::format("{}", fmt::join(names, ", ")),
                         .got = name});
}

std::string name_of(Collective collective) {
  return collective_names().at(static_cast<size_t>(collective));
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kBroadcast:
      return 1;
    default:
      return others;
  }
}

CollectiveCase::CollectiveCase(Collective collective, int64_t count,
                               at::ScalarType type, int rank, int ranks)
    : collective_(collective),
      count_(count),
      rank_(rank),
      ranks_(ranks),
      pattern_(make_pattern(count, type)) {}

bool CollectiveCase::is_in_place() const {
  return collective_ == Collective::kAllReduce ||
         collective_ == Collective::kBroadcast;
}

CollectiveBuffers CollectiveCase::make_buffers() const {
  const at::Tensor whole = torch::empty_like(pattern_);
  if (is_in_place()) return {whole, whole};
  const at::Tensor part = torch::empty({count_ / ranks_}, pattern_.options());
  switch (collective_) {
    case Collective::kAllGather:
      return {part, whole};
    case Collective::kReduceScatter:
      return {whole, part};
    default:
      return {whole, torch::empty_like(whole)};
  }
}

void CollectiveCase::fill(CollectiveBuffers& buffers) const {
  if (!is_in_place()) buffers.output.zero_();
  at::add_out(buffers.input, pattern_.narrow(0, 0, buffers.input.numel()),
              torch::scalar_tensor(share_of(rank_), pattern_.options()));
}

void CollectiveCase::run(const ProcessGroup& group,
                         CollectiveBuffers& buffers) const {
  switch (collective_) {
    case Collective::kAllReduce:
      group.all_reduce(buffers.output);
      return;
    case Collective::kAllGather:
      group.all_gather_into_tensor(buffers.output, buffers.input);
      return;
    case Collective::kReduceScatter:
      group.reduce_scatter_tensor(buffers.output, buffers.input);
      return;
    case Collective::kBroadcast:
      group.broadcast(buffers.output, 0);
      return;
    case Collective::kAllToAll:
      group.all_to_all_single(buffers.output, buffers.input);
      return;
  }
}

at::Tensor CollectiveCase::expected() const {
  const int64_t part = count_ / ranks_;
  const at::Tensor own = pattern_.narrow(0, rank_ * part, part);
  int64_t shares = 0;
  std::vector<at::Tensor> parts;
  for (int from = 0; from < ranks_; ++from) {
    shares += share_of(from);
    parts.push_back((collective_ == Collective::kAllToAll
                         ? own
                         : pattern_.narrow(0, 0, part)) +
                    share_of(from));
  }
  switch (collective_) {
    case Collective::kAllReduce:
      return pattern_ * ranks_ + shares;
    case Collective::kReduceScatter:
      return own * ranks_ + shares;
    case Collective::kBroadcast:
      return pattern_ + share_of(0);
    default:
      return torch::cat(parts);
  }
}

int64_t CollectiveCase::count_wrong(const CollectiveBuffers& buffers) const {
  return buffers.output.ne(expected()).sum().item<int64_t>();
}

void CollectiveCase::copy_over(CollectiveBuffers& buffers) const {
  std::memcpy(larger(buffers).data_ptr(), pattern_.const_data_ptr(),
              pattern_.nbytes());
}

void CollectiveCase::update_in_place(CollectiveBuffers& buffers) const {
  auto* words = static_cast<uint32_t*>(larger(buffers).data_ptr());
  const size_t count = pattern_.nbytes() / sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i) words[i] = ~words[i];
}

at::Tensor& CollectiveCase::larger(CollectiveBuffers& buffers) const {
  return buffers.input.numel() == count_ ? buffers.input : buffers.output;
}

}  // namespace lockstep::tools
