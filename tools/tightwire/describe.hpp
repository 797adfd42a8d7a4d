#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "devices.hpp"
#include "transports.hpp"

namespace tightwire::tool {

struct CodecState {
  std::string spec;         ///< with its default settings, as `parse_codec` reads it
  double bits_per_element;  ///< on the wire, scales included
  double relative_error;    ///< promised on Gaussian data
};

/// What `tightwire info` tells: this copy of tightwire on this machine.
struct Description {
  std::string level;            ///< instruction set the loops use now
  std::string supported_level;  ///< the best this CPU has
  std::string level_note;       ///< what TIGHTWIRE_CPU_LEVEL changes, or empty
  std::vector<CodecState> codecs;
  std::optional<UcxState> ucx;
  std::string ucx_error;  ///< why UCX could not be asked, or empty
  std::optional<CudaState> cuda;
  std::optional<NcclState> nccl;
};

Description describe();

std::string as_text(const Description& description);
std::string as_json(const Description& description);

}  // namespace tightwire::tool
