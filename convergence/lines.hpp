#pragma once
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "recorder.hpp"
#include "task.hpp"

namespace convergence {

struct Evaluated {
  std::size_t step;
  Evaluation evaluation;
  Balance balance;
  std::uint64_t sent_bytes;      ///< by rank 0, up to now
  std::uint64_t gradient_bytes;  ///< the same uncompressed: what the buffers held
  std::size_t differing_ranks;   ///< whose parameters or last results are not those of rank 0, bit for bit
};

/// What the suite reads: JSON objects, one a line, on standard output. See docs/convergence.md.
class Lines {
 public:
  /// `feedback_promised`: nothing may be lost, so that `Balance::lost` is told.
  Lines(const Options& options, const TaskDescription& task, bool feedback_promised);

  void step(std::size_t step, double loss, std::uint64_t sent_bytes) const;
  void evaluated(const Evaluated& state) const;
  /// The value of a sample of the parameters, appended to the file that was asked for.
  void parameters(std::vector<NamedParameter>& parameters);
  void final(const Evaluated& state, double seconds) const;

 private:
  bool feedback_promised_;
  std::optional<std::ofstream> sample_;
  std::string sample_path_;
};

}  // namespace convergence
