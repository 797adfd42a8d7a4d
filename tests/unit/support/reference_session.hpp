#pragma once
#include <memory>
#include <string>
#include <vector>

#include <tightwire/testing/reference_codec.hpp>

#include "model.hpp"

namespace tightwire::testing {

/// The compressed all-reduce by its definition: parameter by parameter, without buckets, chunks, shares, threads or
/// frames. `two_shot` sums are encoded again, with the owner's residual; `one_shot` sums are only rounded to the
/// buffer.
class ReferenceSession {
 public:
  ReferenceSession(const Model& model, int ranks, bool two_shot, bool average, bool feedback,
                   ElementType residual = ElementType::f32)
      : two_shot_(two_shot),
        feedback_(feedback),
        divisor_(average ? static_cast<float>(ranks) : 1.0f),
        residual_(residual) {
    for (const Tensor& tensor : model) {
      State& state = states_.emplace_back();
      const auto coder = tensor.codec.coder(tensor.type);
      state.type = tensor.type;
      state.codec = reference(coder->spec());
      state.lossless = coder->lossless(tensor.type);
      state.stochastic = coder->stochastic(feedback);
      state.senders.assign(static_cast<std::size_t>(ranks), std::vector<float>(tensor.count()));
      state.owner.resize(tensor.count());
    }
  }

  /// What every rank must hold after this step, for the contributions of all ranks to a parameter.
  std::vector<float> step(std::size_t parameter, const std::vector<std::vector<float>>& contributions) {
    State& state = states_[parameter];
    const Noise of_sum{0, state.uses, static_cast<std::uint32_t>(parameter), 0, 0};
    const std::uint32_t use = state.uses++;
    std::vector<float> total;
    for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
      const bool keeps = feedback_ && !state.lossless;
      const std::vector<float> v = keeps ? sum(contributions[rank], state.senders[rank]) : contributions[rank];
      const Noise own{0, use, static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(rank) + 1, 0};
      const Encoded encoded = state.codec->encode(v, ElementType::f32, state.stochastic ? &own : nullptr);
      if (keeps) state.senders[rank] = kept(residual_after(v, encoded.values, state.senders[rank]), own);
      total = rank == 0 ? encoded.values : sum(total, encoded.values);
    }
    for (float& x : total) x /= divisor_;
    const Noise* const noise = state.stochastic ? &of_sum : nullptr;
    if (!two_shot_) {
      for (float& x : total) x = rounded(state.type, x);
      return total;
    }
    const bool keeps = feedback_ && !state.lossless;
    if (keeps) total = sum(total, state.owner);
    const Encoded encoded = state.codec->encode(total, state.type, noise);
    if (keeps) state.owner = kept(residual_after(total, encoded.values, state.owner), of_sum);
    return encoded.values;
  }

  const std::vector<float>& sender_residual(std::size_t parameter, std::size_t rank) const {
    return states_[parameter].senders[rank];
  }

 private:
  struct State {
    ElementType type = ElementType::f32;
    std::unique_ptr<ReferenceCodec> codec;
    bool lossless = false;
    bool stochastic = false;
    std::uint32_t uses = 0;
    std::vector<std::vector<float>> senders;
    std::vector<float> owner;
  };

  /// In the type of residuals.
  std::vector<float> kept(std::vector<float> residual, const Noise& noise) const {
    if (residual_ == ElementType::bf16)
      for (std::size_t i = 0; i < residual.size(); ++i)
        residual[i] = detail::from_bf16(detail::bf16_residual_at(residual[i], noise, i));
    return residual;
  }

  static std::unique_ptr<ReferenceCodec> reference(const std::string& spec) {
    const int block = std::stoi(spec.substr(spec.find('=') + 1));
    const std::string name = spec.substr(0, spec.find(':'));
    if (name == "int8") return std::make_unique<NaiveCodec<Int8>>(block);
    if (name == "int4") return std::make_unique<NaiveCodec<Int4>>(block);
    if (name == "bf16") return std::make_unique<NaiveCodec<Bf16>>(block);
    if (name == "fp16") return std::make_unique<NaiveCodec<Fp16>>(block);
    return std::make_unique<NaiveCodec<Dense>>(block);
  }

  bool two_shot_;
  bool feedback_;
  float divisor_;
  ElementType residual_;
  std::vector<State> states_;
};

}  // namespace tightwire::testing
