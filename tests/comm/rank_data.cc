#include "tests/comm/rank_data.h"

namespace lockstep {

const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> all{
      torch::kUInt8,         torch::kInt8,         torch::kInt16,
      torch::kInt32,         torch::kInt64,        torch::kFloat16,
      torch::kBFloat16,      torch::kFloat32,      torch::kFloat64,
      torch::kBool,          torch::kComplexFloat, torch::kComplexDouble,
      torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};
  return all;
}

at::Tensor data_of(int rank, int64_t count, at::ScalarType type,
                   uint64_t salt) {
  auto generator = at::detail::createCPUGenerator(
      static_cast<uint64_t>(rank) * 1009 + salt * 7 + 1);
  const at::Tensor values =
      torch::randn({count}, generator, torch::kFloat64) * 3;
  if (c10::isComplexType(type)) {
    return torch::complex(values, values * 0.5 + 1).to(type);
  }
  if (c10::isIntegralType(type, false)) return values.abs().to(type);
  if (type == torch::kBool) return values > 0;
  return values.to(type);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         torch::equal(a.contiguous().flatten().view(torch::kUInt8),
                      b.contiguous().flatten().view(torch::kUInt8));
}

}  // namespace lockstep
