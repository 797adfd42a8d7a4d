#pragma once
// Says that what a Session is made of is in tightwire::core, as core_codecs.hpp says of the codecs. A file that
// includes this must link it. Function templates of `class Once`, since `extern template` has none of ordinary
// functions.
#include <tightwire/core_codecs.hpp>
#include <tightwire/session.hpp>

// `what` is `template`: compiles them here; `extern template`: says that another file does.
#define TIGHTWIRE_SESSION_PARTS(what)                                                                       \
  what std::uint64_t agree<void>(Transport&, std::uint32_t, const std::string&, std::chrono::milliseconds); \
  what Codec choose_codec<Session>(const std::shared_ptr<Transport>&, std::uint32_t, SessionOptions,        \
                                   const ParameterList&);                                                   \
  what void plan_buckets<void>(std::deque<Bucket>&, const std::vector<Parameter>&, const SessionOptions&,   \
                               const Transport&, ErrorMemory&, std::vector<ParameterMemory>&);              \
  what void make_reductions<void>(Bucket&, Transport&, std::uint64_t, std::uint32_t, const Channels&,       \
                                  const SessionOptions&);                                                   \
  namespace detail {                                                                                        \
  what std::string describe<std::deque<Bucket>>(const SessionOptions&, int, const std::vector<Parameter>&,  \
                                                const std::deque<Bucket>&);                                 \
  what std::vector<std::byte> save<void>(const SessionMemory&, const SavedState::Counters&);                \
  what Restored restore<void>(Transport&, std::uint32_t, const SessionMemory&,                              \
                              std::span<const std::span<const std::byte>>, bool, ErrorMemory&);             \
  }

namespace tightwire {
TIGHTWIRE_SESSION_PARTS(extern template)
}  // namespace tightwire
