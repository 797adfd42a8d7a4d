// The table of the built-in codecs on a device, whose kernels are in the files beside this one.
#include <string>
#include <tuple>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "make.hpp"

namespace tightwire::cuda {
namespace {

struct Entry {
  std::string_view name;
  std::shared_ptr<const Coder> (*make)(const CodecSettings&);
};
template <class Codecs>
struct Table;
template <class... C>
struct Table<std::tuple<C...>> {
  static constexpr Entry entries[] = {{C::name, &make<C>}...};
};

}  // namespace

static_assert(Coder::kMostSources == 128, "as many as kernels take (cuda/job.cuh)");

std::shared_ptr<const Coder> make_coder(std::string_view spec) {
  const auto [name, settings] = tightwire::detail::CodecReader(spec).read_block_codec();
  for (const Entry& entry : Table<BuiltinCodecs>::entries)
    if (entry.name == name) return entry.make(settings);
  throw Error(Errc::unsupported, "codec \"" + std::string(spec) +
                                     "\": has no kernels here; those of codecs of your own " +
                                     "come from tightwire/cuda/coder.cuh");
}

std::shared_ptr<const Coder> make_coder(const Codec& codec, ElementType type) {
  return make_coder(codec.coder(type)->spec());
}

}  // namespace tightwire::cuda
