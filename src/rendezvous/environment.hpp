#pragma once
#include <functional>
#include <optional>
#include <string>

#include <tightwire/rendezvous.hpp>

namespace tightwire::rendezvous {

/// The value of a variable, if it is set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// `environment()` for any set of variables.
Rendezvous from_variables(const Variables& variables);

/// The first host of a list as Slurm writes it: "node03" of "node[03-05,9],gpu1".
std::string first_host(const std::string& list);
/// Whether such a list names more than one host.
bool names_several_hosts(const std::string& list);

}  // namespace tightwire::rendezvous
