// libFuzzer on the sections of sparse frames: any bytes are refused, or give ascending indices in range.
// TIGHTWIRE_FUZZ_CODEC names the codec of the values; `scripts/fuzz.sh` runs it with some.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/sparse/section.hpp>

namespace {

using namespace tightwire;

std::shared_ptr<const Coder> coder;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* spec = std::getenv("TIGHTWIRE_FUZZ_CODEC");
  coder = parse_codec(spec == nullptr ? "dense" : spec).coder(ElementType::f32);
  return 0;
}

/// Two bytes of the number of elements, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t elements = (data[0] | std::size_t{data[1]} << 8) % 5000;
  // Memory of its own, so that AddressSanitizer sees a byte too far.
  const auto wire = std::make_unique<std::byte[]>(size - 2);
  std::memcpy(wire.get(), data + 2, size - 2);
  std::span<const std::byte> rest(wire.get(), size - 2);
  sparse::Entries entries;
  try {
    sparse::read_section(*coder, rest, elements, entries);
  } catch (const Error& error) {
    if (error.code() != Errc::corrupt) std::abort();
    return 0;
  }
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries.indices[i] >= elements || (i != 0 && entries.indices[i] <= entries.indices[i - 1])) std::abort();
  return 0;
}
