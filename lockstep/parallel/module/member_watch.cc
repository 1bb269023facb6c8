#include "lockstep/parallel/module/member_watch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

constexpr uint32_t kFewChanges = 8;

}  // namespace

void MemberWatch::start(Object object) {
  object_ = std::move(object);
  skip();
  changes_without_effect_.assign(seen_.size(), 0);
}

template <class Visit>
void MemberWatch::for_each_change(const Visit& visit) const {
  size_t begin = 0;
  for (const auto& bytes : object_) {
    if (std::memcmp(bytes.data(), seen_.data() + begin, bytes.size()) != 0) {
      for (size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != seen_[begin + i]) visit(begin + i);
      }
    }
    begin += bytes.size();
  }
}

bool MemberWatch::has_change() const {
  bool has_change = false;
  for_each_change([&](size_t i) {
    const uint32_t number = changes_without_effect_[i] + 1;
    has_change |= number <= kFewChanges || std::has_single_bit(number);
  });
  return has_change;
}

void MemberWatch::note(bool had_effect) {
  for_each_change([&](size_t i) {
    changes_without_effect_[i] =
        had_effect ? 0 : changes_without_effect_[i] + 1;
  });
  skip();
}

void MemberWatch::skip() { seen_ = bytes(); }

std::vector<std::byte> MemberWatch::bytes() const {
  std::vector<std::byte> all;
  for (const auto& bytes : object_) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace lockstep
