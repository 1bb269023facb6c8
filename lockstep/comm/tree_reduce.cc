#include "lockstep/comm/tree_reduce.h"

#include <array>
#include <cmath>
#include <functional>
#include <type_traits>

#include <ATen/Dispatch_v2.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/device/torch_compat.h"

namespace lockstep {
namespace {

using Op = c10d::ReduceOp::RedOpType;
using Inputs = std::span<const std::byte* const>;

// Number of elements summed at a time. The partial sums of a tree of 256 ranks
// then fit the first-level cache.
constexpr size_t kBlock = 512;
constexpr size_t kDepth = 9;  // depth of a tree of kMaxRanks, with its root

// Types that are computed in float32.
template <typename T>
constexpr bool kIsNarrow =
    std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16> ||
    std::is_same_v<T, at::Float8_e4m3fn> || std::is_same_v<T, at::Float8_e5m2>;
template <typename T>
using Accumulator = std::conditional_t<kIsNarrow<T>, float, T>;

// Integers wrap around, as in LibTorch. In C++ that is defined only for
// unsigned types, and types smaller than int are computed as int, which
// overflows for 65,535 squared.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

template <class Function, class BoolFunction>
struct Arithmetic {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return BoolFunction()(a, b);
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(
          Function()(static_cast<Wrapping<T>>(a), static_cast<Wrapping<T>>(b)));
    } else {
      return static_cast<T>(Function()(a, b));
    }
  }
};
using Add = Arithmetic<std::plus<>, std::logical_or<>>;
using Multiply = Arithmetic<std::multiplies<>, std::logical_and<>>;
template <bool kIsMin>
struct Extreme {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
    }
    return (kIsMin ? b < a : a < b) ? b : a;
  }
};
template <class Function>
struct Bitwise {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(Function()(a, b));
  }
};
using BitAnd = Bitwise<std::bit_and<>>;
using BitOr = Bitwise<std::bit_or<>>;
using BitXor = Bitwise<std::bit_xor<>>;

// Ways to read the elements of input r: unchanged, or times factors[r] and
// rounded to their own type, which gives the same bits as scaling the tensor
// first.
struct AsTheyAre {
  template <typename T, typename A>
  auto input(size_t) const {
    return [](T value) { return static_cast<A>(value); };
  }
};
struct Scaled {
  std::span<const double> factors;
  template <typename T, typename A>
  auto input(size_t r) const {
    return [factor = static_cast<A>(factors[r])](T value) {
      return static_cast<A>(static_cast<T>(static_cast<A>(value) * factor));
    };
  }
};
template <typename T>
constexpr bool kCanScale =
    std::is_floating_point_v<T> || std::is_same_v<T, at::Half> ||
    std::is_same_v<T, at::BFloat16>;

/// Reduces the elements [at, at + count) of the inputs [first, last) along
/// their tree into `sum`. scratch[depth] and deeper entries are free.
template <typename T, typename A, typename F, typename Read>
void reduce_node(Inputs inputs, const Read& read, size_t first, size_t last,
                 size_t at, size_t count, A* sum,
                 std::array<std::array<A, kBlock>, kDepth>& scratch,
                 size_t depth) {
  const auto* left = reinterpret_cast<const T*>(inputs[first]) + at;
  const auto read_left = read.template input<T, A>(first);
  if (last - first == 1) {
    for (size_t i = 0; i < count; ++i) sum[i] = read_left(left[i]);
    return;
  }
  if (last - first == 2) {
    const auto* right = reinterpret_cast<const T*>(inputs[first + 1]) + at;
    const auto read_right = read.template input<T, A>(first + 1);
    for (size_t i = 0; i < count; ++i) {
      sum[i] = F::apply(read_left(left[i]), read_right(right[i]));
    }
    return;
  }
  const size_t middle =
      first +
      static_cast<size_t>(left_branch(static_cast<int64_t>(last - first)));
  A* right_sum = scratch[depth].data();
  reduce_node<T, A, F>(inputs, read, first, middle, at, count, sum, scratch,
                       depth + 1);
  reduce_node<T, A, F>(inputs, read, middle, last, at, count, right_sum,
                       scratch, depth + 1);
  for (size_t i = 0; i < count; ++i) sum[i] = F::apply(sum[i], right_sum[i]);
}

template <typename T, typename F, bool kIsMean, typename Read = AsTheyAre>
void combine_as(Inputs inputs, const Read& read, std::byte* output,
                size_t elements) {
  using A = Accumulator<T>;
  auto* out = reinterpret_cast<T*>(output);
  std::array<std::array<A, kBlock>, kDepth> scratch;
  std::array<A, kBlock> sum;
  for (size_t at = 0; at < elements; at += kBlock) {
    const size_t count = std::min(kBlock, elements - at);
    reduce_node<T, A, F>(inputs, read, 0, inputs.size(), at, count, sum.data(),
                         scratch, 0);
    for (size_t i = 0; i < count; ++i) {
      if constexpr (kIsMean && std::is_integral_v<T>) {
        // The number of ranks is not converted to T, because int8 ends at 127.
        out[at + i] = static_cast<T>(static_cast<int64_t>(sum[i]) /
                                     static_cast<int64_t>(inputs.size()));
      } else if constexpr (kIsMean) {
        out[at + i] = static_cast<T>(
            sum[i] / static_cast<A>(static_cast<double>(inputs.size())));
      } else {
        out[at + i] = static_cast<T>(sum[i]);
      }
    }
  }
}

template <typename T, typename F, bool kIsMean = false>
transport::Reduction reduction_of() {
  return {.element_bytes = sizeof(T),
          .combine = [](Inputs inputs, std::byte* output, size_t elements) {
            combine_as<T, F, kIsMean>(inputs, AsTheyAre(), output, elements);
          }};
}

template <typename T>
transport::Reduction premultiplied_sum() {
  transport::Reduction reduction = reduction_of<T, Add>();
  if constexpr (kCanScale<T>) {
    reduction.combine_scaled = [](Inputs inputs,
                                  std::span<const double> factors,
                                  std::byte* output, size_t elements) {
      combine_as<T, Add, false>(inputs, Scaled{factors}, output, elements);
    };
  }
  return reduction;
}

[[noreturn]] void refuse(at::ScalarType type, Op op) {
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kBadTensor,
               .what = fmt::format("no {} of {} elements", name_of(op),
                                   c10::toString(type)),
               .fix = "use another reduction, or another type"});
}

template <typename T>
constexpr bool kIsComplex = c10::is_complex<T>::value;

template <typename T>
transport::Reduction reduction_for(at::ScalarType type, Op op) {
  switch (op) {
    case Op::SUM:
      return reduction_of<T, Add>();
    case Op::PREMUL_SUM:
      return premultiplied_sum<T>();
    case Op::AVG:
      if constexpr (!std::is_same_v<T, bool>) {
        return reduction_of<T, Add, true>();
      }
      break;
    case Op::PRODUCT:
      return reduction_of<T, Multiply>();
    case Op::MIN:
      if constexpr (!kIsComplex<T>) return reduction_of<T, Extreme<true>>();
      break;
    case Op::MAX:
      if constexpr (!kIsComplex<T>) return reduction_of<T, Extreme<false>>();
      break;
    case Op::BAND:
      if constexpr (std::is_integral_v<T>) return reduction_of<T, BitAnd>();
      break;
    case Op::BOR:
      if constexpr (std::is_integral_v<T>) return reduction_of<T, BitOr>();
      break;
    case Op::BXOR:
      if constexpr (std::is_integral_v<T>) return reduction_of<T, BitXor>();
      break;
    default:
      break;
  }
  refuse(type, op);
}

}  // namespace

const char* name_of(Op op) {
  switch (op) {
    case Op::SUM:
      return "sum";
    case Op::AVG:
      return "avg";
    case Op::PRODUCT:
      return "product";
    case Op::MIN:
      return "min";
    case Op::MAX:
      return "max";
    case Op::BAND:
      return "band";
    case Op::BOR:
      return "bor";
    case Op::BXOR:
      return "bxor";
    case Op::PREMUL_SUM:
      return "premul_sum";
    default:
      return "an unknown reduction";
  }
}

transport::Reduction tree_reduction(at::ScalarType type, Op op) {
  try {
    return AT_DISPATCH_V2(
        type, "tree_reduction",
        AT_WRAP([&] { return reduction_for<scalar_t>(type, op); }),
        AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), at::kHalf, at::kBFloat16,
        at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2);
  } catch (const c10::Error&) {
    refuse(type, op);  // not one of these types
  }
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement =
      dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw CommError({.code = ErrorCode::kBadTensor,
                     .what = "premul_sum without a factor",
                     .fix = "make it with c10d::makePreMulSum(), which is "
                            "makeNCCLPreMulSum() before LibTorch 2.15"});
  }
  const at::Tensor& factor = supplement->tensor_factor;
  return factor.defined() ? factor.item<double>() : supplement->double_factor;
}

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return tensor * at::Scalar(factor_of(op));
}

}  // namespace lockstep
