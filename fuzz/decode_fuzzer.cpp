// libFuzzer on the decoder of one codec: any bytes decode, to the same at every instruction set, and touch nothing
// beside their buffers. TIGHTWIRE_FUZZ_CODEC names the codec; `scripts/fuzz.sh` runs all.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

namespace {

using namespace tightwire;

std::vector<std::shared_ptr<const Coder>> coders;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* spec = std::getenv("TIGHTWIRE_FUZZ_CODEC");
  for (const BuiltinCodec& codec : builtin_codecs())
    for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512})
      if (spec != nullptr && codec.name == spec && level <= host::supported_level())
        coders.push_back(codec.make({}, level));
  if (coders.empty()) {
    std::fprintf(stderr, "TIGHTWIRE_FUZZ_CODEC must be one of %s\n", codec_names().c_str());
    std::exit(2);
  }
  return 0;
}

/// Two bytes of count, then the payload, cut or filled up with zeros to its size.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t count = (data[0] | std::size_t{data[1]} << 8) % 5000;
  const std::size_t bytes = coders[0]->wire_bytes(count);
  const auto wire = std::make_unique<std::byte[]>(bytes);
  if (bytes != 0 && size > 2) std::memcpy(wire.get(), data + 2, std::min(bytes, size - 2));
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
    const std::size_t out_bytes = count * element_bytes(type);
    const auto first = std::make_unique<std::byte[]>(out_bytes), next = std::make_unique<std::byte[]>(out_bytes);
    const auto sum = std::make_unique<std::byte[]>(bytes);
    for (const auto& coder : coders) {
      const auto& out = coder == coders[0] ? first : next;
      coder->decode(type, {wire.get(), count, out.get()});
      if (coder != coders[0] && std::memcmp(out.get(), first.get(), out_bytes) != 0) std::abort();
      const std::byte* sources[2] = {wire.get(), wire.get()};
      coder->combine(type, {sources, nullptr, {}, {}, count, 2, sum.get(), next.get()});
    }
  }
  return 0;
}
