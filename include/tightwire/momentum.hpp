#pragma once
#include <cmath>
#include <optional>
#include <string>

#include <tightwire/error.hpp>

namespace tightwire {

/// Momentum correction of Deep Gradient Compression (Lin et al., arXiv:1712.01887): momentum is applied here, before
/// elements are chosen, so that an element that waits gathers the momentum it would have had. The optimizer must then
/// be plain SGD: give it momentum 0, and add weight decay to the gradient before it is reduced, if it is to have
/// momentum, too. It is applied once per reduction: with several in a step (gradients that are accumulated) add them up
/// first.
///
/// The formula is that of torch.optim.SGD, b := factor * b + g, and g + factor * b by Nesterov. Parameters that are not
/// sparse get it after their reduction, so that all parameters of a model are treated alike.
struct MomentumCorrection {
  float factor = 0.0f;  ///< 0: off
  bool nesterov = false;
  /// Elements that were sent start anew with momentum 0 ("factor masking"), so that stale momentum does not carry them
  /// on. Off: for comparison.
  bool masking = true;
  /// The L2 norm, over all parameters, that the gradient of all ranks together shall not pass: that of each rank is
  /// clipped to it divided by the root of the number of ranks, before anything else. 0: no clipping. Needs `all_reduce`
  /// of the whole model.
  float clip_norm = 0.0f;
  /// What momentum the optimizer applies by itself. Must be given, and 0: it guards against applying momentum twice.
  std::optional<double> optimizer_momentum = {};

  explicit operator bool() const { return factor != 0.0f; }

  /// Throws Error(invalid_argument).
  void check() const {
    const auto refuse = [](const std::string& why) {
      throw Error(Errc::invalid_argument, "momentum correction: " + why);
    };
    if (!(factor >= 0.0f && factor < 1.0f)) refuse("factor must be from 0 to below 1, got " + std::to_string(factor));
    if (!(clip_norm >= 0.0f) || std::isinf(clip_norm))
      refuse("clip_norm must be 0 or a positive number, got " + std::to_string(clip_norm));
    if (!*this && (nesterov || clip_norm != 0.0f)) refuse("nesterov and clip_norm need a factor above 0");
    if (*this && !optimizer_momentum)
      refuse("say with optimizer_momentum what momentum the optimizer applies by itself; it must be 0");
    if (*this && *optimizer_momentum != 0.0)
      refuse("momentum " + std::to_string(factor) + " here and " + std::to_string(*optimizer_momentum) +
             " in the optimizer would be applied one on top of the other; set the optimizer's to 0");
  }
};

}  // namespace tightwire
