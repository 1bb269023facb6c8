#include "lockstep/models/convolution.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/enum.h>

#include "lockstep/device/autocast.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Layers with fewer weights, or with more pixels in an image of their output,
// are as fast or faster in oneDNN.
constexpr int64_t kMinWeights = int64_t{1} << 18;
constexpr int64_t kMaxPixels = 64;

// The rows of this many output pixels are copied at a time.
constexpr int64_t kRows = 1024;

/// A kernel that moves over an image. All in pixels.
struct Window {
  int64_t height, width;
  int64_t stride;
  int64_t padding_y, padding_x;

  int64_t out_height(const Tensor& x) const {
    return ((x.size(2) + (2 * padding_y) - height) / stride) + 1;
  }
  int64_t out_width(const Tensor& x) const {
    return ((x.size(3) + (2 * padding_x) - width) / stride) + 1;
  }
};

/// Returns a view of a channels_last tensor (N, C, H, W) as (N, H, W, C).
Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}); }

/// Returns the pixels under the kernel for each pixel of the output, a row per
/// pixel (pixels, height * width * C). Outside of the image, they are 0.
Tensor rows_under(const Tensor& images, const Window& window) {
  const Tensor x = channels_last(images);
  const int64_t height = x.size(1);
  const int64_t width = x.size(2);
  const int64_t out_height = window.out_height(images);
  const int64_t out_width = window.out_width(images);
  const int64_t lines = x.size(0) * out_height;
  const int64_t pixel = x.size(3) * x.element_size();
  const int64_t row = window.height * window.width * pixel;
  const Tensor rows =
      torch::empty({lines * out_width, row / x.element_size()}, x.options());
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(rows.mutable_data_ptr());
  // Copies the part of a row of the kernel that lies in the image at once.
  const auto copy = [&](int64_t image, int64_t y, int64_t left, char* out) {
    const int64_t begin = std::clamp<int64_t>(-left, 0, window.width);
    const int64_t end = std::clamp(width - left, begin, window.width);
    if (y < 0 || y >= height || begin == end) {
      std::memset(out, 0, window.width * pixel);
      return;
    }
    const char* line = from + (((image * height) + y) * width * pixel);
    std::memset(out, 0, begin * pixel);
    std::memcpy(out + (begin * pixel), line + ((left + begin) * pixel),
                (end - begin) * pixel);
    std::memset(out + (end * pixel), 0, (window.width - end) * pixel);
  };
  intra_op_for(lines, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const int64_t image = line / out_height;
      const int64_t top =
          ((line % out_height) * window.stride) - window.padding_y;
      for (int64_t i = 0; i < out_width; ++i) {
        const int64_t left = (i * window.stride) - window.padding_x;
        char* out = to + (((line * out_width) + i) * row);
        for (int64_t ky = 0; ky < window.height; ++ky) {
          copy(image, top + ky, left, out + (ky * window.width * pixel));
        }
      }
    }
  });
  return rows;
}

/// Calls use(rows, first, count) with the rows of some images at a time: those
/// of `count` output pixels from `first` on.
template <class Use>
void for_rows_under(const Tensor& images, const Window& window,
                    const Use& use) {
  const int64_t pixels = window.out_height(images) * window.out_width(images);
  const int64_t step = std::max<int64_t>(1, kRows / pixels);
  for (int64_t i = 0; i < images.size(0); i += step) {
    const int64_t count = std::min(step, images.size(0) - i);
    use(rows_under(images.narrow(0, i, count), window), i * pixels,
        count * pixels);
  }
}

/// Returns the convolution of images (N, C, H, W) with a matrix
/// (height * width * C, K) of weights, as a channels_last tensor.
Tensor convolve_rows(const Tensor& images, const Tensor& weights,
                     const Window& window) {
  const int64_t channels = weights.size(1);
  const Tensor out = torch::empty(
      {images.size(0), channels, window.out_height(images),
       window.out_width(images)},
      images.options().memory_format(torch::MemoryFormat::ChannelsLast));
  const Tensor pixels = channels_last(out).view({-1, channels});
  for_rows_under(images, window,
                 [&](const Tensor& rows, int64_t first, int64_t count) {
                   Tensor part = pixels.narrow(0, first, count);
                   torch::mm_out(part, rows, weights);
                 });
  return out;
}

Tensor gradient_of_weight(const Tensor& upstream, const Tensor& x,
                          const Tensor& weight, const Window& window) {
  const Tensor above = channels_last(upstream).view({-1, weight.size(0)});
  Tensor sum;
  for_rows_under(
      x, window, [&](const Tensor& rows, int64_t first, int64_t count) {
        const Tensor part = torch::mm(above.narrow(0, first, count).t(), rows);
        // Parts in bfloat16 are added in float32.
        if (!sum.defined()) {
          sum = count == above.size(0) ? part : part.to(torch::kFloat32);
        } else {
          sum.add_(part);
        }
      });
  return sum.to(weight.scalar_type())
      .view({weight.size(0), window.height, window.width, weight.size(1)})
      .permute({0, 3, 1, 2});
}

/// Returns the gradient of x, the convolution of the upstream gradient with the
/// turned kernel, for a stride of 1.
Tensor gradient_of_images(const Tensor& upstream, const Tensor& weight,
                          const Window& window) {
  const Tensor turned = torch::empty(
      {window.height, window.width, weight.size(0), weight.size(1)},
      weight.options());
  for (int64_t y = 0; y < window.height; ++y) {
    for (int64_t x = 0; x < window.width; ++x) {
      turned[window.height - 1 - y][window.width - 1 - x].copy_(
          weight.select(3, x).select(2, y));
    }
  }
  return convolve_rows(upstream, turned.view({-1, weight.size(1)}),
                       {.height = window.height,
                        .width = window.width,
                        .stride = 1,
                        .padding_y = window.height - 1 - window.padding_y,
                        .padding_x = window.width - 1 - window.padding_x});
}

class ConvolutionByRows : public torch::autograd::Function<ConvolutionByRows> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& weight, int64_t stride, int64_t padding_y,
                        int64_t padding_x) {
    const NoAutocast no_autocast;
    context->save_for_backward({x, weight});
    context->saved_data["window"] =
        std::vector<int64_t>{stride, padding_y, padding_x};
    const Tensor matrix = channels_last(weight).view({weight.size(0), -1});
    return convolve_rows(x, matrix.t(), window_of(context, weight));
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const NoAutocast no_autocast;
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Window window = window_of(context, weight);
    const Tensor upstream = upstreams[0].to(x.scalar_type());
    const bool for_x = context->needs_input_grad(0);
    const bool for_weight = context->needs_input_grad(1);
    const auto libtorch_backward = [&](bool images, bool weights) {
      return at::convolution_backward(
          upstream, x, weight, c10::nullopt, {window.stride, window.stride},
          {window.padding_y, window.padding_x}, {1, 1}, false, {0, 0}, 1,
          {images, weights, false});
    };
    Tensor grad_x, grad_weight;
    if (torch::GradMode::is_enabled()) {
      // With a graph, for second derivatives.
      std::tie(grad_x, grad_weight, std::ignore) =
          libtorch_backward(for_x, for_weight);
    } else {
      const Tensor above =
          upstream.contiguous(torch::MemoryFormat::ChannelsLast);
      if (for_x) {
        grad_x = window.stride == 1
                     ? gradient_of_images(above, weight, window)
                     : std::get<0>(libtorch_backward(true, false));
      }
      if (for_weight)
        grad_weight = gradient_of_weight(above, x, weight, window);
    }
    return {grad_x, grad_weight, {}, {}, {}};
  }

 private:
  static Window window_of(AutogradContext* context, const Tensor& weight) {
    const auto saved = context->saved_data["window"].toIntVector();
    return {.height = weight.size(2),
            .width = weight.size(3),
            .stride = saved[0],
            .padding_y = saved[1],
            .padding_x = saved[2]};
  }
};

/// Returns the window of `layer`, or nothing if the layer has other options.
std::optional<Window> window_of(const torch::nn::Conv2dImpl& layer) {
  const auto& options = layer.options;
  const auto* padding =
      std::get_if<torch::ExpandingArray<2>>(&options.padding());
  const auto stride = options.stride();
  const bool is_plain =
      padding != nullptr && !options.bias() && options.groups() == 1 &&
      std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()) &&
      options.dilation()->at(0) == 1 && options.dilation()->at(1) == 1 &&
      stride->at(0) == stride->at(1) && stride->at(0) > 0;
  if (!is_plain) return std::nullopt;
  return Window{.height = layer.weight.size(2),
                .width = layer.weight.size(3),
                .stride = stride->at(0),
                .padding_y = (*padding)->at(0),
                .padding_x = (*padding)->at(1)};
}

/// Returns true if the products support the tensors and the window.
bool are_supported(const Tensor& x, const Tensor& weight,
                   const Window& window) {
  const auto has_layout = [](const Tensor& tensor) {
    return tensor.is_cpu() &&
           (tensor.scalar_type() == torch::kFloat32 ||
            tensor.scalar_type() == torch::kBFloat16) &&
           tensor.dim() == 4 &&
           tensor.is_contiguous(torch::MemoryFormat::ChannelsLast);
  };
  const auto is_part_of = [](int64_t part, int64_t size) {
    return part >= 0 && part < size;
  };
  return has_layout(x) && has_layout(weight) && x.size(0) > 0 &&
         x.size(1) == weight.size(1) &&
         x.scalar_type() == weight.scalar_type() &&
         is_part_of(window.padding_y, window.height) &&
         is_part_of(window.padding_x, window.width);
}

bool is_faster_by_rows(const Tensor& x, const Tensor& weight,
                       const Window& window) {
  const int64_t height = window.out_height(x);
  const int64_t width = window.out_width(x);
  return window.height * window.width > 1 && weight.numel() >= kMinWeights &&
         height > 0 && width > 0 && height * width <= kMaxPixels;
}

}  // namespace

Tensor convolve(torch::nn::Conv2dImpl& layer, const Tensor& x) {
  const auto window = window_of(layer);
  if (!window) return layer.forward(x);
  return product(
      [&window](const Tensor& input, const Tensor& kernel) {
        const Tensor images = cast_for_products(input);
        const Tensor weight = cast_for_products(kernel);
        if (are_supported(images, weight, *window) &&
            is_faster_by_rows(images, weight, *window)) {
          return ConvolutionByRows::apply(images, weight, window->stride,
                                          window->padding_y, window->padding_x);
        }
        return torch::conv2d(images, weight, {}, window->stride,
                             {window->padding_y, window->padding_x});
      },
      x, layer.weight);
}

}  // namespace lockstep::models
