#include "tests/differential/trace.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::differential {

using torch::Tensor;

namespace {

Tensor widened(const Tensor& value) {
  return value.to(value.is_complex() ? torch::kComplexDouble : torch::kDouble);
}

double largest(const Tensor& value) {
  if (value.numel() == 0) return 0;
  return value.abs().nan_to_num(0, 0, 0).max().item<double>();
}

std::optional<std::string> difference(const Tensor& got, const Tensor& expected,
                                      std::optional<double> tolerance) {
  // A gradient without elements may also be undefined.
  const auto is_empty = [](const Tensor& tensor) {
    return !tensor.defined() || tensor.numel() == 0;
  };
  if (is_empty(got) && is_empty(expected)) return std::nullopt;
  if (got.defined() != expected.defined()) {
    return got.defined() ? "defined, expected undefined"
                         : "undefined, expected defined";
  }
  if (!tolerance) {
    if (got.sizes() == expected.sizes() &&
        got.scalar_type() == expected.scalar_type() &&
        torch::allclose(got, expected, 0, 0, /*equal_nan=*/true)) {
      return std::nullopt;
    }
    if (got.sizes() != expected.sizes()) return "other bits, another shape";
    return fmt::format("other bits, off by {:.3g} of {:.3g}",
                       largest(widened(got) - widened(expected)),
                       largest(widened(expected)));
  }
  Tensor own = widened(got);
  const Tensor plain = widened(expected);
  // Scalars of shards are gathered to a vector.
  if (plain.dim() == 0 && own.dim() == 1 && own.numel() > 0) own = own.mean();
  if (own.sizes() != plain.sizes()) {
    return fmt::format("of shape {}, expected {}", c10::str(own.sizes()),
                       c10::str(plain.sizes()));
  }
  const double scale = std::max(1.0, largest(plain));
  if (torch::allclose(own, plain, 0, *tolerance * scale, /*equal_nan=*/true)) {
    return std::nullopt;
  }
  return fmt::format("off by {:.3g} of {:.3g}", largest(own - plain),
                     largest(plain));
}

}  // namespace

void Trace::add(const std::string& label, const Tensor& value,
                bool has_fixed_bits) {
  entries.push_back({label, value.defined() ? value.detach().clone() : Tensor(),
                     has_fixed_bits});
}

void Trace::add(const std::string& label, double value, bool has_fixed_bits) {
  entries.push_back(
      {label, torch::tensor(value, torch::kDouble), has_fixed_bits});
}

std::optional<std::string> difference(const Trace& got, const Trace& expected,
                                      std::optional<double> tolerance) {
  const size_t count = std::min(got.entries.size(), expected.entries.size());
  for (size_t i = 0; i < count; ++i) {
    const auto& own = got.entries[i];
    const auto& other = expected.entries[i];
    if (own.label != other.label) {
      return fmt::format("recorded '{}', expected '{}'", own.label,
                         other.label);
    }
    if (!tolerance && !own.has_fixed_bits) continue;
    if (const auto what = difference(own.value, other.value, tolerance)) {
      return fmt::format("{}: {}", own.label, *what);
    }
  }
  if (got.error.empty() && expected.error.empty() &&
      got.entries.size() != expected.entries.size()) {
    return fmt::format("recorded {} values, expected {}", got.entries.size(),
                       expected.entries.size());
  }
  return std::nullopt;
}

}  // namespace lockstep::differential
