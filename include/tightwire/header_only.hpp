#pragma once
// Everything that needs no library: codecs, loops, collectives, Session, the in-process transport. Compiled into the
// including file; <tightwire/tightwire.hpp> takes the built-in codecs from tightwire::core instead, which compiles
// faster.
#include <tightwire/agreement.hpp>
#include <tightwire/codec.hpp>
#include <tightwire/consistency.hpp>
#include <tightwire/error.hpp>
#include <tightwire/local_transport.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/session.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/version.hpp>
