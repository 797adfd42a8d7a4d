// The table of the built-in codecs, whose loops are in the files beside this one.
#include <tightwire/core_codecs.hpp>

namespace tightwire {

template std::span<const BuiltinCodec> builtin_codecs<BuiltinCodecs>();

}  // namespace tightwire
