// A language model on several devices: wrap it, train, save model->module(),
// load, wrap again. Arguments: devices, steps and a text to train on:
//     language_model 2xcpu 20 book.txt
#include <iostream>

#include "../arguments.h"
#include "lockstep/lm.h"
#include "lockstep/lockstep.h"
using namespace lockstep;
using torch::Tensor;

constexpr int64_t kContext = 64;
Tensor loss_of(const Tensor& logits, const Tensor& next) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "DEVICES STEPS TEXT_FILE");
  const auto list = arguments.devices();
  const auto on = torch_device(list.front());
  const int64_t steps = arguments.number(10);
  std::string text = arguments.file_text();
  while (text.size() < 3465) text += "All replicas learn the same words. ";
  const Tensor ids =
      torch::from_blob(text.data(), {int64_t(text.size())}, torch::kByte)
          .to(torch::kLong);
  auto spec = models::language_spec("gpt-char");
  spec.vocabulary = 256;
  torch::manual_seed(0);
  auto net = models::make_language_model(spec);
  to(*net, list.front());
  auto model = DataParallel(net, list);  // the only line that is new
  torch::optim::AdamW adam(model->parameters(), 1e-3);
  double last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor start = torch::randint(ids.size(0) - kContext - 1, {16, 1});
    const Tensor at = start + torch::arange(kContext);
    adam.zero_grad();
    const Tensor loss = loss_of(model->forward(ids.index({at}).to(on)),
                                ids.index({at + 1}).to(on));
    loss.backward();
    adam.step();
    last = loss.item<double>();
  }
  std::cout << "Devices: " << list.size() << " | Loss: " << last << "\n";
  save(*model->module(), "model.safetensors");
  auto again = models::make_language_model(spec);
  load(*again, "model.safetensors");
  to(*again, list.front());
  auto wrapped = DataParallel(again, list);
  const torch::NoGradGuard no_gradients;
  const Tensor x = ids.slice(0, 0, kContext).unsqueeze(0).to(on);
  std::cout << "Saved and wrapped again, its output is "
            << (wrapped->forward(x).equal(model->forward(x)) ? "" : "not ")
            << "the same\nparameter_sha256 " << parameter_digest(*again)
            << "\n";
} catch (const std::exception& error) {
  return end_with(error);
}
